"""Laws of the operators: polar factors, thresholds, distances of atoms and dictionaries (acceptance A4)."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedcore.methods.dictionary_learning.distances import (
    ZERO_DISTANCE,
    atom_distances,
    bottleneck_assign,
    d12,
    dictionary_distance,
    matched_distances,
)
from fedcore.methods.dictionary_learning.operators import hard_threshold, normalise, polar, random_atoms, top_k
from fedcore.randomness import stream

FINITE = st.floats(-5, 5, allow_nan=False, width=32)


def frame(seed, r=5, d=7):
    return random_atoms(stream(seed, "test"), r, d)


def test_threshold_and_top_k_by_hand():
    a = np.array([[0.1, -0.15, 0.2, -3.0], [1.0, -1.0, 1.0, 0.5]])
    np.testing.assert_array_equal(hard_threshold(a, 0.15), [[0, -0.15, 0.2, -3.0], [1, -1, 1, 0.5]])
    np.testing.assert_array_equal(top_k(a, 2), [[0, 0, 0.2, -3.0], [1, -1, 0, 0]])  # ties: lowest index
    np.testing.assert_array_equal(top_k(a, 0), np.zeros_like(a))
    np.testing.assert_array_equal(top_k(a, 9), a)


@given(arrays(np.float64, (3, 6), elements=FINITE), st.integers(1, 6))
def test_top_k_keeps_exactly_the_largest(a, k):
    kept = top_k(a, k)
    for row, out in zip(a, kept, strict=True):
        expected = np.zeros(6)
        order = np.lexsort((np.arange(6), -np.abs(row)))[:k]
        expected[order] = row[order]
        np.testing.assert_array_equal(out, expected)


@given(arrays(np.float64, (4, 6), elements=FINITE))
@settings(max_examples=60)
def test_polar_has_orthonormal_rows_whatever_the_rank(a):
    q = polar(a, frame(1, 4, 6))
    np.testing.assert_allclose(q @ q.T, np.eye(4), atol=1e-9)


def test_polar_is_the_svd_factor_and_nearest():
    a = stream(0, "polar").standard_normal((3, 4, 6))
    left, _, right = np.linalg.svd(a, full_matrices=False)
    np.testing.assert_allclose(polar(a), left @ right, atol=1e-12)


def test_polar_completes_from_the_previous_dictionary():
    before = frame(2, 4, 6)
    a = before.copy() * [[3.0], [2.0], [0.0], [1.0]]
    np.testing.assert_allclose(polar(a, before), before, atol=1e-12)  # the unused atom stays what it was
    np.testing.assert_allclose(polar(np.zeros((4, 6)), before), before, atol=1e-12)
    # and is projected off what the others became
    a[0] = before[0] + before[2]
    q = polar(a, before)
    np.testing.assert_allclose(q[[0, 2]] @ a[0], [np.sqrt(2), 0], atol=1e-12)


def test_polar_near_the_edge_of_conditioning():
    left, right = frame(3, 4, 4), frame(4, 4, 9)
    for least in (1e-3, 1e-4, 1.1e-4, 1e-6, 1e-9):
        a = (left * [1, 0.5, 0.1, least]) @ right
        np.testing.assert_allclose(polar(a), left @ right, atol=1e-16 / least + 1e-11)


def test_polar_refuses_more_atoms_than_features():
    with pytest.raises(ValueError, match="do not fit"):
        polar(np.zeros((3, 2)))


@given(st.integers(0, 10_000))
@settings(max_examples=40)
def test_distance_ignores_signed_permutations(seed):
    generator = stream(seed, "permute")
    a = normalise(generator.standard_normal((5, 7)))[0]
    b = normalise(generator.standard_normal((5, 7)))[0]
    moved = b[generator.permutation(5)] * generator.choice([-1.0, 1.0], 5)[:, None]
    assert d12(a, b, exact=True) == pytest.approx(d12(a, moved, exact=True), abs=1e-12)
    assert d12(a, b) == pytest.approx(d12(a, moved), abs=1e-12)
    assert d12(b, moved) < ZERO_DISTANCE and d12(b, moved, exact=True) < ZERO_DISTANCE
    assert d12(a, b, exact=True) <= d12(a, b) + 1e-12


@given(arrays(np.float64, (4, 5), elements=st.floats(0, 2, width=16)))
@settings(max_examples=60)
def test_bottleneck_is_that_of_all_assignments(costs):
    best = min(max(costs[i, j] for i, j in enumerate(p)) for p in itertools.permutations(range(5), 4))
    chosen = bottleneck_assign(costs)
    assert len(set(chosen)) == 4
    assert costs[np.arange(4), chosen].max() == best


def test_a_smaller_dictionary_is_matched_into_a_larger_one():
    a = frame(5, 6, 6)
    found = dictionary_distance(-a[[4, 1]], a)
    assert found.match.tolist() == [4, 1] and found.signs.tolist() == [-1, -1]
    assert found.value < ZERO_DISTANCE and found.spectral < ZERO_DISTANCE
    assert d12(a, a[[4, 1]]) < ZERO_DISTANCE
    assert d12(np.zeros((0, 6)), a) == 0


def test_distances_of_atoms_that_are_not_of_norm_1():
    a, b = np.array([[2.0, 0]]), np.array([[-1.0, 0], [0, 1]])
    np.testing.assert_allclose(atom_distances(a, b), [[1, np.sqrt(5)]])
    np.testing.assert_allclose(matched_distances(np.repeat(a, 2, 0), b), [1, np.sqrt(5)])
