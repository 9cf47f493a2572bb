"""The clients' kernels against dense brute force, and the exact bound of one client's part."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.methods.histograms.clients import assign, clipped_on_grid, integer_sums_by_cell
from fedcore.population.blocks import leaves, segment_sums
from fedcore.privacy.grid import GRID_NORM, bound_norms, grid_step
from tests.histograms.example_clients import block_of, counts_arrays, dense_histograms, random_counts


@pytest.fixture
def block():
    return block_of(random_counts(np.random.default_rng(1), 60, 17))


def exact_squares(grid: np.ndarray, indptr: np.ndarray) -> list[int]:
    """Squared norm of every client in Python integers."""
    whole = [int(z) for z in grid]
    assert whole == list(grid), "grid values must be whole numbers"
    return [sum(z * z for z in whole[a:b]) for a, b in zip(indptr[:-1], indptr[1:], strict=True)]


def test_assignment_is_the_least_kl(block):
    centres = np.random.default_rng(2).dirichlet(np.ones(17), 5)
    q = dense_histograms(block)
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = np.where(q > 0, q * np.log(q), 0).sum(axis=1)[:, None] - q @ np.log(centres).T
    filled = block.totals > 0
    got = assign(block, np.log(centres).T.astype(np.float32))
    assert np.array_equal(got[filled], kl.argmin(axis=1)[filled])
    assert np.all(got[~filled] == 0) and (~filled).any()


def test_ties_go_to_the_lowest_cell(block):
    logs = np.log(np.full((17, 4), 1 / 17)).astype(np.float32)
    assert not assign(block, logs).any()


def test_integer_sums_by_cell_are_exact(block):
    grid = clipped_on_grid(block, np.full(17, 5.0), 3.0)
    cells = np.random.default_rng(3).integers(0, 4, block.clients)
    expected = np.zeros((4, 17), object)
    rows = block.rows_of_entries()
    for row, token, z in zip(rows, block.indices, grid, strict=True):
        expected[cells[row], token] += int(z)
    got = integer_sums_by_cell(block, cells, 4, grid)
    assert got.dtype == np.int64 and np.array_equal(got, expected.astype(np.int64))


def test_clipping_is_that_of_the_dense_matrix_up_to_one_grid_step(block):
    whitening, clip = np.random.default_rng(4).uniform(1, 20, 17), 3.0
    y = dense_histograms(block) * whitening
    norms = np.maximum(np.linalg.norm(y, axis=1), 1e-300)
    y *= np.minimum(1.0, clip / norms)[:, None]
    got = np.zeros(y.shape)
    got[block.rows_of_entries(), block.indices] = clipped_on_grid(block, whitening, clip) * grid_step(clip)
    assert np.all(got <= y + 1e-12), "truncation is towards zero"
    assert np.all(got >= y - grid_step(clip) - 1e-12)
    assert (norms > clip).any() and (norms[block.totals > 0] < clip).any(), "the test needs clients on both sides"


@given(counts_arrays(), st.sampled_from([1.0, 3.0, 31.6, 1e4]), st.sampled_from([0.2, 1.0, 3.0, 0.1 + 0.2]))
def test_no_client_exceeds_the_sensitivity(counts, whitening, clip):
    block = block_of(counts)
    spread = whitening * np.linspace(1.0, 2.0, block.features)
    assert all(square <= GRID_NORM**2 for square in exact_squares(clipped_on_grid(block, spread, clip), block.indptr))


def test_an_unclipped_client_would_exceed_it():
    """The check above can fail: without the clip a one-token client of a rare token is far outside."""
    block = block_of([[0, 1]])
    assert exact_squares(np.trunc(np.array([31.6]) / grid_step(3.0)), block.indptr)[0] > GRID_NORM**2


def test_whole_numbers_above_the_bound_are_scaled_exactly():
    indptr = np.array([0, 2, 2, 3, 5])
    grid = np.array([GRID_NORM, 1.0, GRID_NORM + 1.0, -GRID_NORM, 9.0])
    got = bound_norms(grid, indptr)
    assert all(square <= GRID_NORM**2 for square in exact_squares(got, indptr))
    # r = 65537 for the first client: floor(65536 * 65536 / 65537) = 65535, floor(65536 / 65537) = 0
    assert got.tolist()[:2] == [65535.0, 0.0]
    assert got[3] < 0


@given(st.lists(st.integers(-(2**17), 2**17), min_size=1, max_size=12))
def test_scaling_bounds_any_whole_numbers(values):
    grid, indptr = np.array(values, np.float64), np.array([0, len(values)])
    assert exact_squares(bound_norms(grid, indptr), indptr)[0] <= GRID_NORM**2


def test_a_client_that_overflows_contributes_nothing():
    block = block_of([[1, 2], [3, 4]])
    block.data[:2] = np.finfo(np.float32).max
    grid = clipped_on_grid(block, np.full(2, 1e120), 3.0)
    assert grid[:2].tolist() == [0.0, 0.0] and grid[2:].any()


@given(counts_arrays(), st.integers(1, 4))
def test_any_cut_into_leaves_gives_the_same_integers(counts, clients_per_leaf):
    block = block_of(counts)
    logs = np.log(np.random.default_rng(5).dirichlet(np.ones(block.features), 3)).T.astype(np.float32)
    whitening = np.linspace(1.0, 9.0, block.features)

    def total(parts):
        sums = 0
        for part in parts:
            sums = sums + integer_sums_by_cell(part, assign(part, logs), 3, clipped_on_grid(part, whitening, 3.0))
        return sums

    assert np.array_equal(total([block]), total(leaves(block, clients_per_leaf)))


def test_segment_sums_of_empty_segments_are_zero():
    assert segment_sums(np.array([1.0, 2.0, 4.0]), np.array([0, 0, 2, 2, 3, 3])).tolist() == [0.0, 3.0, 0.0, 4.0, 0.0]
    assert segment_sums(np.zeros(0), np.array([0, 0])).tolist() == [0.0]
