"""Matching, choosing, centres, and the number of global atoms (acceptance A3, A5)."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.dictionary_learning.distances import d12, layer_matrices
from fedcore.methods.dictionary_learning.operators import normalise, random_atoms
from fedcore.methods.perma.matching import (
    aggregate,
    align,
    by_jump,
    by_null,
    divide,
    matched_atoms,
    null_scores,
    number_by_rule,
    path,
    shortest_paths,
    star,
    with_norm,
)
from fedcore.randomness import stream


def clients(seed, count=10, d=6, shared=3, atoms=None, noise=0.0):
    """(dictionaries with the shared atoms at random places and signs, the shared atoms)"""
    generator = stream(seed, "clients")
    common, out = random_atoms(generator, d, d), []
    for i in range(count):
        rest = random_atoms(generator, d - shared, d - shared) @ common[shared:] if d > shared else common[:0]
        own = np.concatenate([common[:shared], rest])[: d if atoms is None else atoms[i]]
        own = normalise(own + noise * generator.standard_normal(own.shape))[0]
        out.append(own[generator.permutation(len(own))] * generator.choice([-1.0, 1.0], len(own))[:, None])
    return out, common[:shared]


def brute_force(dictionaries):
    """Length of the shortest path, over all of them."""
    layers = layer_matrices(dictionaries)
    paths = itertools.product(*(range(len(atoms)) for atoms in dictionaries))
    return min(sum(w[a, b] for w, a, b in zip(layers, p, p[1:], strict=False)) for p in paths)


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_paths_are_shortest_and_disjoint(seed):
    generator = stream(seed, "paths")
    ragged = [normalise(generator.standard_normal((int(r), 3)))[0] for r in generator.integers(2, 5, 4)]
    index, lengths = shortest_paths(ragged, 2)
    assert lengths[0] == pytest.approx(brute_force(ragged), abs=1e-12)
    left = [np.delete(atoms, index[i, 0], axis=0) for i, atoms in enumerate(ragged)]
    assert lengths[1] == pytest.approx(brute_force(left), abs=1e-12)
    assert all(len(set(row)) == 2 for row in index)


def test_paths_ask_for_enough_atoms():
    with pytest.raises(ValueError, match="as many atoms"):
        shortest_paths([np.eye(3), np.eye(3)[:1]], 2)


@pytest.mark.parametrize("how", ["path", "star"])
def test_shared_atoms_are_found_with_ragged_clients(how):
    dictionaries, common = clients(3, atoms=[6, 5, 4, 3, 6, 6, 5, 4, 6, 3])
    generator = stream(0, "order")
    found = {"path": lambda: path(dictionaries, 3), "star": lambda: star(dictionaries, 3, generator)}[how]()
    together = aggregate(matched_atoms(dictionaries, found), "mean", "unit")
    assert d12(together.atoms, common) < 1e-7 and together.least_norm == pytest.approx(1)


def test_the_star_leaves_out_a_client_that_has_nothing_to_do_with_it():
    dictionaries, common = clients(4)
    dictionaries[2] = random_atoms(stream(9, "other"), 6, 6)
    found = star(dictionaries, 3, stream(0, "order"))
    assert found.kept.sum(0).min() >= 9 and not found.kept[2].all()
    assert d12(aggregate(matched_atoms(dictionaries, found), "median", "unit").atoms, common) < 1e-7


def test_many_clients_are_matched_around_some_anchors():
    dictionaries, common = clients(5, count=60)
    found = star(dictionaries, 3, stream(0, "anchors"))
    assert d12(aggregate(matched_atoms(dictionaries, found), "median", "unit").atoms, common) < 1e-7


def test_an_assignment_never_collides_and_a_greedy_choice_says_so():
    generator = stream(6, "choose")
    reference = random_atoms(generator, 4, 6)
    atoms = normalise(generator.standard_normal((20, 6, 6)))[0]
    for rule in ("lsa", "seq"):
        found = align(reference, atoms, rule)
        assert not found.collisions.any()
        assert all(len(set(row)) == 4 for row in found.index)
        both = np.concatenate([found.common, found.local], axis=1)
        assert max(d12(a, b) for a, b in zip(both, atoms, strict=True)) < 1e-7  # nothing lost, nothing doubled
        assert ((found.common * reference).sum(-1) >= 0).all()
    greedy = align(reference, atoms, "greedy")
    assert greedy.collisions.sum() == sum(4 - len(set(row)) for row in greedy.index) > 0
    assert greedy.common.shape == (20, 4, 6) and greedy.local.shape == (20, 2, 6)
    with pytest.raises(ValueError, match="unknown rule"):
        align(reference, atoms, "nearest")
    with pytest.raises(ValueError, match="cannot be chosen"):
        align(reference, atoms[:, :3])


def test_a_choice_by_hand():
    reference = np.eye(3)[:2]
    atoms = np.array([[[0.1, -1.0, 0.0], [0.9, 0.5, 0.0], [0.0, 0.6, 0.8]]])
    atoms = normalise(atoms)[0]
    found = align(reference, atoms)
    assert found.index.tolist() == [[1, 0]]
    np.testing.assert_allclose(found.common[0, 1], -atoms[0, 0])
    np.testing.assert_allclose(found.local[0, 0], atoms[0, 2])
    common, local = divide(atoms, np.array([[2, 2]]))
    np.testing.assert_array_equal(local[0], atoms[0, :1])  # one too many was unchosen: the first stays
    np.testing.assert_array_equal(common[0], atoms[0, [2, 2]])


def test_centres_by_hand():
    atoms = np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]]])
    np.testing.assert_allclose(aggregate(atoms, "mean", "none").atoms, [[2 / 3, 1 / 3]])
    np.testing.assert_allclose(aggregate(atoms, "mean", "unit").atoms, [[2 / np.sqrt(5), 1 / np.sqrt(5)]])
    np.testing.assert_allclose(aggregate(atoms, "median", "unit").atoms, [[1, 0]])
    atoms[2] = np.nan
    np.testing.assert_allclose(aggregate(atoms, "mean", "none").atoms, [[0.5, 0.5]])
    atoms[:] = np.nan
    np.testing.assert_allclose(aggregate(atoms, "median", "unit", np.array([[0.0, 1.0]])).atoms, [[0, 1]])
    with pytest.raises(ValueError, match="no client has"):
        aggregate(atoms, "median", "unit")


def test_a_centre_flags_atoms_that_clients_do_not_agree_on():
    found = with_norm(np.array([[0.1, 0.0], [0.0, 0.9], [0.0, 0.0]]), "unit", np.array([[1.0, 0], [1, 0], [0.6, 0.8]]))
    assert found.not_shared == 2 and found.least_norm == 0
    np.testing.assert_allclose(found.atoms, [[1, 0], [0, 1], [0.6, 0.8]])
    np.testing.assert_allclose(with_norm(np.eye(2) * [[2], [3]], "polar", None).atoms, np.eye(2))


def test_a_jump_of_path_lengths():
    assert by_jump(np.array([1e-9, 1e-8, 0.9, 1.0]), 10) == 2
    assert by_jump(np.array([0.1, 0.11, 0.12, 2.0]), 10) == 3
    assert by_jump(np.array([0.3]), 10) == 1


def test_the_null_falls_with_the_dimension():
    null = null_scores([6, 3, 1], [6, 3, 1], 10, 0)
    assert null[0] > null[1] > null[2] == 0.15


@pytest.mark.parametrize("shared", [0, 2, 4, 6])
def test_the_number_of_global_atoms_is_found(shared):
    dictionaries, _ = clients(10 + shared, shared=shared, noise=0.01)
    count, scores = number_by_rule("null", dictionaries, 0)
    assert count == shared and (np.diff(scores) >= 0).all()
    if 0 < shared < 6:
        assert number_by_rule("jump", dictionaries, 0)[0] == shared


def test_a_long_null_is_interpolated():
    scores = np.concatenate([np.zeros(7), np.full(13, 0.9)])
    assert by_null(scores, 30, 8, 0) == 7
