"""Steps and starts of the local learners; samples in tiles (acceptance A11)."""

import tracemalloc

import numpy as np
import pytest
from fedcore.papers.perma.truth import shared_atoms

from fedcore.errors import PopulationError
from fedcore.methods.dictionary_learning import distances
from fedcore.methods.dictionary_learning.distances import d12
from fedcore.methods.dictionary_learning.operators import normalise, polar, random_atoms
from fedcore.methods.dictionary_learning.sparse_codes import descend
from fedcore.methods.perma import learners
from fedcore.methods.perma.initialisation import (
    SETTLING_STEPS,
    Schedule,
    best_of_starts,
    singular_start,
    starting_dictionaries,
)
from fedcore.methods.perma.learners import Coder
from fedcore.randomness import stream
from tests.perma.run_in_memory import block_of

THRESHOLD = Coder("threshold", 0.15)


def sparse_samples(seed, n=200, d=6, theta=0.2, floor=0.3):
    """(samples (n, d), orthonormal dictionary (d, d)) of the paper's synthetic task."""
    generator = stream(seed, "sparse")
    atoms = random_atoms(generator, d, d)
    codes = generator.standard_normal((n, d)) * (generator.random((n, d)) < theta)
    codes = np.where((codes != 0) & (np.abs(codes) < floor), floor * np.sign(codes), codes)
    return codes @ atoms, atoms


def loss(y, atoms, coder):
    return float(((y - coder(y, atoms) @ atoms) ** 2).sum())


def test_sums_of_a_pass_by_hand():
    y = np.array([[[2.0, 0.0], [0.1, 3.0]]])
    sums = learners.pass_over(lambda: [y[:, :1], y[:, 1:]], np.eye(2)[None, None], THRESHOLD, second=True)
    np.testing.assert_allclose(sums.xy[0, 0], [[2 * 2, 0], [0.3, 9]])
    np.testing.assert_allclose(sums.xx[0, 0], [[4, 0], [0, 9]])
    assert sums.nonzero[0, 0] == 2 and sums.loss[0, 0] == pytest.approx(0.01)
    np.testing.assert_array_equal(sums.used[0, 0], [1, 1])


def test_the_orthogonal_step_is_the_best_orthonormal_dictionary_for_its_codes():
    y, truth = sparse_samples(0)
    start = polar(truth + 0.3 * stream(0, "off").standard_normal(truth.shape))
    codes = THRESHOLD(y, start)
    moved, _ = learners.step("orthogonal", lambda: [y[None]], start[None], THRESHOLD)
    best = ((y - codes @ moved[0]) ** 2).sum()
    generator = stream(1, "other")
    for _ in range(30):
        other = polar(moved[0] + 0.1 * generator.standard_normal(truth.shape))
        assert best <= ((y - codes @ other) ** 2).sum()


def test_the_gradient_step_is_minus_the_gradient_and_goes_down():
    y, truth = sparse_samples(1)
    atoms = normalise(truth + 0.2 * stream(2, "off").standard_normal(truth.shape))[0]
    codes = THRESHOLD(y, atoms)
    xx, xy = codes.T @ codes, codes.T @ y
    small = 1e-7
    numeric = np.empty_like(atoms)
    for at in np.ndindex(*atoms.shape):
        moved = atoms.copy()
        moved[at] += small
        numeric[at] = (((y - codes @ moved) ** 2).sum() - ((y - codes @ atoms) ** 2).sum()) / small
    size = 0.5 / np.linalg.eigvalsh(xx)[-1]
    own = learners.gradient_step(atoms[None], xx[None], xy[None])[0]
    np.testing.assert_allclose(own, normalise(atoms - size * numeric)[0], atol=1e-6)
    best = np.linalg.lstsq(codes, y, rcond=None)[0]
    assert np.linalg.norm(own - best) < np.linalg.norm(atoms - best)


def test_descent_solves_for_one_atom_at_a_time():
    generator = stream(3, "descend")
    y, atoms = generator.standard_normal((40, 5)), normalise(generator.standard_normal((7, 5)))[0]
    codes = generator.standard_normal((40, 7)) * (generator.random((40, 7)) < 0.4)
    codes[:, 4] = 0.0
    xx, xy = codes.T @ codes, codes.T @ y
    once = descend(atoms, xx, xy)
    free = np.linalg.lstsq(codes[:, :1], y - codes[:, 1:] @ atoms[1:], rcond=None)[0]
    np.testing.assert_allclose(once[0], normalise(free)[0][0], atol=1e-10)
    np.testing.assert_array_equal(once[4], atoms[4])  # nobody uses it
    np.testing.assert_allclose(np.linalg.norm(once, axis=1), 1)


def test_several_starts_in_the_same_passes_are_those_one_by_one():
    y, truth = sparse_samples(4)
    passes = []

    def tiles():
        passes.append(1)
        return [y[None]]

    starts = starting_dictionaries(6, 6, 3, 0, np.array([7]))
    schedule = Schedule(steps=30)
    together, score = best_of_starts("orthogonal", tiles, np.array([200.0]), starts, THRESHOLD, schedule)
    count = len(passes)
    alone = [
        best_of_starts("orthogonal", tiles, np.array([200.0]), starts[:, s : s + 1], THRESHOLD, schedule)
        for s in range(3)
    ]
    assert len(passes) == 4 * count
    best = min(range(3), key=lambda s: alone[s][1][0])
    np.testing.assert_allclose(together, alone[best][0], atol=1e-12)
    assert score[0] == pytest.approx(alone[best][1][0])


def test_starts_find_the_dictionary():
    found = []
    for seed in range(10):
        y, truth = sparse_samples(20 + seed)
        starts = starting_dictionaries(6, 6, 5, seed, np.array([0]))
        own, _ = best_of_starts("orthogonal", lambda y=y: [y[None]], np.array([200.0]), starts, THRESHOLD, Schedule())
        found.append(d12(own[0], truth) < 1e-2)
    assert sum(found) >= 9


def test_a_known_density_ends_the_shrinking_early():
    y, _ = sparse_samples(6)
    passes = []

    def tiles():
        passes.append(1)
        return [y[None]]

    starts = starting_dictionaries(6, 6, 1, 0, np.array([0]), np.eye(6)[None])
    for density in (None, 0.2):
        schedule = Schedule(density=density)
        best_of_starts("orthogonal", tiles, np.array([200.0]), starts, THRESHOLD, schedule)
        passes.append(0)
    first = passes.index(0)
    assert len(passes) - first < first
    assert first == 137 + SETTLING_STEPS + 1  # 0.6 * 0.99^t <= 0.15 at t = 138; one pass for the objective


def test_refinement_leaves_global_atoms_alone_and_lowers_the_loss():
    y, truth = sparse_samples(7)
    common, local = truth[:3], polar(truth[3:] + 0.2 * stream(3, "off").standard_normal((3, 6)))
    better = learners.refine("orthogonal", lambda: [y[None]], common, local[None], THRESHOLD, 20)[0]
    assert d12(better, truth[3:]) < 0.5 * d12(local, truth[3:])


def test_singular_starts_are_the_leading_singular_vectors():
    y, _ = sparse_samples(8)
    found = singular_start(lambda: [y[None, :50], y[None, 50:]], 4)[0]
    assert d12(found, np.linalg.svd(y, full_matrices=False)[2][:4]) < 1e-6


# --- samples in tiles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [6, 18, 6 * 70, 6 * 131])
def test_tiles_of_a_client_give_what_its_samples_give_in_one(monkeypatch, numbers):
    y, truth = sparse_samples(9, n=211)
    block = block_of([y[:3], y, y[:0], y[:70]])
    start = polar(truth + 0.1 * stream(4, "off").standard_normal(truth.shape))
    expected = {
        client: learners.step("orthogonal", lambda rows=rows: [rows[None]], start[None], THRESHOLD)
        for client, rows in ((0, y[:3]), (1, y), (3, y[:70]))
    }
    monkeypatch.setattr(distances, "TILE_NUMBERS", numbers)
    monkeypatch.setattr(distances, "STACK_NUMBERS", numbers)
    seen = []
    for group in distances.groups(block, np.array([6, 6, 6, 6])):
        atoms = np.broadcast_to(start, (len(group.clients), 6, 6))
        moved, sums = learners.step("orthogonal", group.tiles, atoms, THRESHOLD)
        for i, client in enumerate(group.clients):
            seen.append(int(client))
            np.testing.assert_allclose(moved[i], expected[client][0][0], rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(sums.loss[i, 0], expected[client][1].loss[0, 0], rtol=1e-10)
            np.testing.assert_allclose(sums.xy[i, 0], expected[client][1].xy[0, 0], rtol=1e-10, atol=1e-10)
    assert sorted(seen) == [0, 1, 3]


def test_groups_hold_clients_of_one_rank_and_little_padding():
    generator = stream(5, "sizes")
    sizes = generator.integers(0, 40, 100)
    ranks = np.where(sizes > 10, 4, 2)
    block = block_of([np.full((n, 3), i + 1.0) for i, n in enumerate(sizes)])
    seen = []
    for group in distances.groups(block, ranks):
        tile = next(iter(group.tiles()))
        assert set(ranks[group.clients]) == {group.rank}
        assert (group.sizes >= 1).all() and group.sizes.sum() >= 0.85 * tile.shape[0] * tile.shape[1]
        for client, rows in zip(group.clients, tile, strict=True):
            np.testing.assert_allclose(rows.sum(), 3 * sizes[client] * (client + 1))
            seen.append(int(client))
    assert sorted(seen) == np.flatnonzero(sizes).tolist()


def test_values_that_are_not_finite_are_named():
    block = block_of([np.ones((4, 2)), np.array([[1.0, np.nan]])])
    with pytest.raises(PopulationError, match="client number 1"):
        for group in distances.groups(block, np.array([2, 2])):
            list(group.tiles())


@pytest.mark.slow
def test_memory_of_a_pass_over_a_large_client_is_that_of_a_tile():
    """Spec, section 5: 8 (d b + r b + 2 d r + r^2) bytes for tiles of b samples; 20 % for what NumPy needs beside."""
    d, r = 256, 64
    block = block_of([stream(0, "large").random((20_000, d), dtype=np.float32)])
    atoms = random_atoms(stream(1, "large"), r, d)[None]
    (group,) = distances.groups(block, np.array([r]))
    tracemalloc.start()
    try:
        learners.step("orthogonal", group.tiles, atoms, Coder("top_k", sparsity=8))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    b = distances.tile_rows(d)
    assert 20_000 > 4 * b
    assert peak < 1.2 * 8 * (d * b + r * b + 2 * d * r + r * r)


def test_of_several_starts_the_one_that_codes_the_samples_is_kept():
    """With fewer atoms than features, a frame off all samples has no codes to pay for, but all residuals."""
    problem = shared_atoms(0, 1, 8, 2, 2, 80)
    y, true = problem.samples[0], problem.atoms(0)
    off = np.linalg.svd(true)[2][4:]
    atoms, scores = best_of_starts(
        "orthogonal", lambda: iter([y[None]]), np.array([80.0]), np.stack([off, true])[None], THRESHOLD, Schedule()
    )
    assert d12(atoms[0], true) < 1e-6
    x = THRESHOLD(y, true)
    assert scores[0] == pytest.approx(0.15**2 * np.count_nonzero(x), rel=1e-6)
