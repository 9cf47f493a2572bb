"""Noised second moments: exact and bounded, and the tokens that are chosen from them."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedcore.methods.histograms import reduction, sensitivities
from fedcore.methods.histograms.clients import clipped_on_grid
from fedcore.methods.histograms.simplex import metric
from tests.histograms.example_clients import block_of, counts_arrays, exact


def python_triangle(z: list[int]) -> list[int]:
    """Upper triangle of z z^T with the diagonal scaled down, in Python integers."""
    d = len(z)
    return [z[i] * z[i] * 46340 // 65536 if i == j else z[i] * z[j] for i in range(d) for j in range(i, d)]


@given(counts_arrays(max_clients=5), st.sampled_from([0.3, 1.0, 3.0]))
def test_second_moments_are_exact_and_bounded(counts, clip):
    block = block_of(counts)
    grid = clipped_on_grid(block, np.sqrt(np.arange(1.0, block.features + 1)), clip)
    expected = [0] * (block.features * (block.features + 1) // 2)
    for u in range(block.clients):
        z = [0] * block.features
        for entry in range(block.indptr[u], block.indptr[u + 1]):
            z[block.indices[entry]] = int(grid[entry]) // 64
        assert sum(value * value for value in z) <= 2**20
        mine = python_triangle(z)
        assert sum(value * value for value in mine) <= 2**39
        expected = [a + b for a, b in zip(expected, mine, strict=True)]
    assert exact(reduction.moment_on_grid(block, grid)) == expected


@given(st.lists(st.integers(0, 1024), min_size=1, max_size=12))
def test_any_vector_of_the_allowed_norm_has_a_triangle_within_the_bound(z):
    square = sum(value * value for value in z)
    shrunk = z if square <= 2**20 else [value * 1024 // (math.isqrt(square) + 1) for value in z]
    norm = sum(value * value for value in python_triangle(shrunk))
    assert norm <= 2**39 <= sensitivities.second_moment("add_or_remove_one") ** 2


def test_second_moments_worked_by_hand():
    """One client with q = (1/2, 1/2): y = q, norm sqrt(1/2), clip sqrt(1/2), so z = (724, 724), 1024 / sqrt 2 = 724.08.

    Off the diagonal 724**2 = 524176; on it 524176 * 46340 / 65536 = 370640.8..., cut.
    """
    block = block_of([[1, 1]])
    grid = clipped_on_grid(block, np.ones(2), math.sqrt(0.5))
    assert exact(reduction.moment_on_grid(block, grid)) == [370640, 524176, 370640]


def test_the_covariance_is_that_of_centred_clients():
    generator = np.random.default_rng(0)
    counts = generator.multinomial(50, generator.dirichlet(np.ones(6), 40).mean(axis=0), size=300)
    counts[::2, 0] += 30
    block = block_of(counts)
    q = counts / counts.sum(axis=1, keepdims=True)
    mean = q.mean(axis=0)
    w = metric(mean, 1e-5, 150.0)
    grid = clipped_on_grid(block, 1 / np.sqrt(w), 100.0)  # nobody is clipped, hence s = 1
    found = reduction.covariance(reduction.moment_on_grid(block, grid), w, mean, 100.0)
    centred = (q - mean) / np.sqrt(w)
    np.testing.assert_allclose(found, centred.T @ centred, atol=300 * 3 * 100 / 1024)
    assert np.allclose(found, found.T)
    assert np.abs(found @ np.sqrt(w)).max() < 1e-9 * np.abs(found).max(), "histograms sum to 1"


def test_the_noise_of_the_matrix_has_the_expected_norm():
    d, scale = 120, 5000.0
    noise = np.random.default_rng(0).normal(0, scale, d * (d + 1) // 2).round().astype(np.int64)
    flat = np.full(d, 1 / d)
    matrix = reduction.covariance(noise, flat, np.full(d, 1 / d), 3.0)
    largest = np.linalg.eigvalsh(matrix)[-1]
    assert 0.8 < largest / reduction.noise_norm(scale, 3.0, d) < 1.1


def test_tokens_are_chosen_by_clear_eigenvectors_only():
    d = 12
    direction = np.zeros(d)
    direction[[3, 7]] = [0.8, -0.6]
    mean = np.linspace(1, 2, d)
    matrix = 10 * np.outer(direction, direction) + 1e-3 * np.eye(d)
    kept, clear = reduction.choose_tokens(matrix, mean, 1.0, 3, 2)
    assert (list(kept), clear) == ([3, 7], 1)
    kept, clear = reduction.choose_tokens(matrix, mean, 11.0, 3, 2)
    assert (list(kept), clear) == ([10, 11], 0)
