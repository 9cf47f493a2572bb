"""Fewer tokens: kept ones and "other"; what is reduced and lifted again, and which tokens are kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.methods.histograms.clients import assign
from fedcore.methods.histograms.reduction import (
    kept_by_eigenvectors,
    kept_by_frequency,
    lift,
    lift_log_likelihood,
    reduce_block,
    reduce_rows,
    tokens_kept,
)
from fedcore.population.blocks import leaves
from tests.histograms.example_clients import block_of, counts_arrays, dense_histograms, random_counts


@pytest.fixture
def block():
    return block_of(random_counts(np.random.default_rng(1), 60, 17))


def subset(features: int, seed: int, keep: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).permutation(features)[:keep]).astype(np.int64)


# --- blocks ---------------------------------------------------------------------------------------------------------


def test_a_block_reduced_by_hand():
    block = block_of([[1, 0, 3, 4], [0, 2, 0, 0], [0, 0, 0, 0], [0, 0, 5, 6]], heldout=[[1, 1, 1, 1]] * 4)
    got = reduce_block(block, np.array([1, 2]))
    assert got.csr.toarray().tolist() == [[0, 3, 5], [2, 0, 0], [0, 0, 0], [0, 5, 6]]
    assert got.indptr.tolist() == [0, 2, 3, 3, 5] and got.indices.tolist() == [1, 2, 0, 1, 2]
    assert got.heldout.csr.toarray().tolist() == [[1, 1, 2]] * 4
    assert got.totals.tolist() == [8, 2, 0, 11] and got.features == 3
    assert got.indices.dtype == np.int32 and got.data.dtype == np.float32


@given(counts_arrays(), st.integers(0, 100), st.integers(0, 6))
def test_a_reduced_block_is_the_reduced_dense_matrix(counts, seed, keep):
    block = block_of(counts)
    kept = subset(block.features, seed, min(keep, block.features))
    got = reduce_block(block, kept)
    dense = got.csr.toarray().astype(np.float64)
    assert np.array_equal(dense, reduce_rows(counts.astype(np.float64), kept))
    assert np.array_equal(dense.sum(axis=1), block.totals) and np.array_equal(got.totals, block.totals)
    assert np.all(got.data > 0), "no stored zeros"
    lengths = np.diff(got.indptr)
    inside = np.ones(len(got.indices), bool)
    inside[got.indptr[:-1][lengths > 0]] = False  # tokens increase within a client
    assert np.all(np.diff(got.indices)[inside[1:]] > 0)


@given(counts_arrays(), st.integers(1, 4), st.integers(0, 100))
def test_the_leaves_of_a_reduced_block_are_the_reduced_leaves(counts, clients_per_leaf, seed):
    block = block_of(counts)
    kept = subset(block.features, seed, block.features // 2)
    for whole, part in zip(
        leaves(reduce_block(block, kept), clients_per_leaf), leaves(block, clients_per_leaf), strict=True
    ):
        own = reduce_block(part, kept)
        assert (own.first, own.leaf) == (whole.first, whole.leaf)
        for name in ("indptr", "indices", "data", "totals"):
            assert np.array_equal(getattr(own, name), getattr(whole, name)), name


def test_an_other_beyond_float32_is_still_exact():
    block = block_of([[1, 2**24 - 1, 2, 7]])
    assert block.data.dtype == np.float32
    got = reduce_block(block, np.array([3]))
    assert got.data.dtype == np.float64 and got.data.tolist() == [7, 2**24 + 2]


@pytest.mark.parametrize("kept", [[2, 1], [1, 1], [-1, 0], [0, 17]])
def test_tokens_that_do_not_ascend_within_the_vocabulary_are_refused(block, kept):
    with pytest.raises(ValueError, match="ascend"):
        reduce_block(block, np.array(kept))


# --- histograms -----------------------------------------------------------------------------------------------------


def test_a_lift_worked_by_hand():
    """.5 of "other" goes to tokens 0 and 3, whose F are .1 and .3: .125 and .375."""
    lifted = lift(np.array([[0.2, 0.3, 0.5]]), np.array([1, 2]), np.array([0.1, 0.4, 0.2, 0.3]))
    np.testing.assert_allclose(lifted, [[0.125, 0.2, 0.3, 0.375]], rtol=1e-15)


@given(st.integers(2, 9), st.integers(0, 8), st.integers(0, 200))
def test_reducing_what_was_lifted_gives_it_back(d, keep, seed):
    generator = np.random.default_rng(seed)
    kept = subset(d, seed, min(keep, d - 1))
    mean = generator.dirichlet(np.ones(d)) * (generator.random(d) < 0.7)  # some tokens without mass
    centres = generator.dirichlet(np.ones(len(kept) + 1), 3)
    lifted = lift(centres, kept, mean)
    np.testing.assert_allclose(reduce_rows(lifted, kept), centres, atol=1e-15)
    np.testing.assert_allclose(lifted.sum(axis=1), 1.0, rtol=1e-14)
    assert np.all(lifted >= 0)


def test_lifting_the_mean_itself_gives_the_mean():
    mean = np.random.default_rng(0).dirichlet(np.ones(12))
    kept = np.array([0, 4, 7])
    np.testing.assert_allclose(lift(reduce_rows(mean[None, :], kept), kept, mean), [mean], rtol=1e-14)


def test_lifted_centres_choose_the_clusters_of_reduced_ones(block):
    """The lift adds to every centre's score the same number for a client."""
    generator, kept = np.random.default_rng(3), subset(17, 5, 6)
    mean = dense_histograms(block)[block.totals > 0].mean(axis=0)
    centres = generator.dirichlet(np.ones(7), 4)
    few = assign(reduce_block(block, kept), np.log(centres).T)
    assert np.array_equal(few, assign(block, np.log(lift(centres, kept, mean)).T)) and len(set(few)) > 2


def test_what_the_lift_adds_to_the_likelihood(block):
    kept, filled = subset(17, 5, 6), block.totals > 0
    q = dense_histograms(block)[filled]
    mean = q.mean(axis=0)
    centre = np.random.default_rng(4).dirichlet(np.ones(7), 1)
    whole = np.mean(q @ np.log(lift(centre, kept, mean))[0])
    few = np.mean(reduce_rows(q, kept) @ np.log(centre)[0])
    assert whole - few == pytest.approx(lift_log_likelihood(kept, mean), rel=1e-12)


# --- which tokens ---------------------------------------------------------------------------------------------------


def test_eigenvectors_worked_by_hand():
    """Leading ones (1, 0, 0, 1)/sqrt 2 and (0, 1, 0, 0): rank 1 keeps {0, 3}, rank 2 puts token 1 before both."""
    matrix = np.array([[2.0, 0, 0, 2], [0, 3, 0, 0], [0, 0, 1, 0], [2, 0, 0, 2]])
    assert kept_by_eigenvectors(matrix, 1, 2).tolist() == [0, 3]
    assert kept_by_eigenvectors(matrix, 1, 1).tolist() == [0]  # a tie up to rounding
    assert kept_by_eigenvectors(matrix, 2, 1).tolist() == [1]
    assert kept_by_eigenvectors(matrix, 2, 3).tolist() == [0, 1, 3]
    assert kept_by_eigenvectors(matrix, 9, 4).tolist() == [0, 1, 2, 3]


def test_frequency_worked_by_hand():
    mean = np.array([0.2, 0.3, 0.2, 0.1, 0.2])
    assert [kept_by_frequency(mean, keep).tolist() for keep in (1, 2, 3)] == [[1], [0, 1], [0, 1, 2]]
    assert kept_by_frequency(mean, 3).dtype == np.int64


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_exactly_as_many_tokens_as_asked_for(d, keep, rank, flat, seed):
    generator, keep = np.random.default_rng(seed), min(keep, d)
    rows = np.zeros((d, d)) if flat else generator.normal(size=(d, d))
    for kept in (kept_by_eigenvectors(rows @ rows.T, rank, keep), kept_by_frequency(np.round(rows[0], 0), keep)):
        assert len(kept) == keep and np.all(np.diff(kept) > 0) and 0 <= kept[0] and kept[-1] < d


def test_how_many_are_kept():
    assert tokens_kept(None, 1000) == 400 and tokens_kept(None, 2) == 1 and tokens_kept(7, 8) == 7
    with pytest.raises(ConfigError, match="8"):
        tokens_kept(8, 8)
