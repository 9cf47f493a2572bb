"""Fewer tokens: kept ones and "other"; what is reduced and lifted again, and which tokens are kept."""

import numpy as np
import pytest
from fedcore.methods.histograms.baselines.before_rounds import check_matrix, whitened_covariance
from fedcore.methods.histograms.baselines.clients import second_moment
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import ConfigError
from fedcore.methods.histograms import Histograms, HistogramsConfig
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
from fedcore.rounds.statistics import merge, values
from tests.histograms.example_clients import block_of, counts_arrays, dense_histograms, random_counts
from tests.histograms.run_in_memory import answer, facts, run


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


def test_the_covariance_is_that_of_the_whitened_deviations(block):
    q = dense_histograms(block)[block.totals > 0]
    q[:, 3] = 0.0  # a token that nobody used
    mean = q.mean(axis=0)
    v = np.divide(q - mean, np.sqrt(mean), out=np.zeros_like(q), where=mean > 0)
    got = whitened_covariance(q.T @ q, mean, len(q))
    np.testing.assert_allclose(got, v.T @ v / len(q), atol=1e-14)
    assert not got[3].any()


def test_second_moments_are_those_of_the_dense_matrix_and_of_any_leaves(block):
    q = dense_histograms(block)
    np.testing.assert_allclose(second_moment(block), q.T @ q, atol=1e-13)
    method = Histograms(HistogramsConfig(algorithm="algorithm2", reduction="eigenvectors", clusters=3))
    state = method.init(facts(17))
    state, _ = method.server_update(state, values(answer(method, method.message(state), block, 8)))
    assert state.phase == "covariance"
    message, parts = method.message(state), list(leaves(block, 8))

    def total(group):
        result = None
        for part in group:
            result = merge(result, method.client_update(message, part, None)[0])
        return result

    one, two = values(total(parts)), values(merge(total(parts[5:]), total(parts[:5])))
    assert np.array_equal(one["second_moment"], two["second_moment"])


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


def test_a_vocabulary_too_large_for_a_matrix_is_refused_before_data_are_read():
    check_matrix(4096)
    config = HistogramsConfig(algorithm="algorithm2", reduction="eigenvectors")
    with pytest.raises(ConfigError, match="4097.*128 MiB.*4096"):
        Histograms(config).init(facts(4097))
    Histograms(config.model_copy(update={"reduction": "frequency"})).init(facts(4097))
    with pytest.raises(ConfigError, match="kept"):
        Histograms(config.model_copy(update={"keep": 17})).init(facts(17))


# --- runs -----------------------------------------------------------------------------------------------------------


def test_algorithm_2_on_two_of_four_tokens_worked_by_hand():
    """Tokens 0 and 3 tell the groups apart; 1 and 2 vary within them. F = (.4, .1, .1, .4) over four clients."""
    block = block_of([[16, 1, 3, 0], [16, 3, 1, 0], [0, 3, 1, 16], [0, 1, 3, 16], [0, 0, 0, 0]])
    for reduction in ("eigenvectors", "frequency"):
        config = HistogramsConfig(algorithm="algorithm2", clusters=2, temperature=1e6, reduction=reduction, keep=2)
        state, infos = run(Histograms(config), block, facts(4), clients_per_leaf=2)
        assert state.kept.tolist() == [0, 3]
        order = np.argsort(-state.centres[:, 0])
        np.testing.assert_allclose(state.centres[order], [[0.8, 0.1, 0.1, 0], [0, 0.1, 0.1, 0.8]], atol=1e-12)
        assert state.counts.tolist() == [2, 2] and state.phase == "done"
        assert len(infos) < Histograms(config).total_rounds(state)
        # KL of (.05, .15) within "other" to (.1, .1), the same for all clients; smoothing moves it by 3e-6 at most
        kl = 0.05 * np.log(0.05 / 0.1) + 0.15 * np.log(0.15 / 0.1)
        assert infos[-1].scalars["objective"] == pytest.approx(kl, abs=1e-5)


def test_the_pass_of_the_covariance_says_what_is_kept(block):
    config = HistogramsConfig(algorithm="algorithm2", clusters=3, reduction="eigenvectors", keep=5)
    state, infos = run(Histograms(config), block, facts(17))
    assert infos[1].scalars["kept_tokens"] == 5 == len(state.kept)
    assert infos[1].scalars["kept_mass"] == pytest.approx(state.mean[state.kept].sum())


@pytest.mark.parametrize("start", ["algorithm1", "perturbed_mean", "uniform"])
@pytest.mark.parametrize("reduction", ["eigenvectors", "frequency"])
def test_every_state_of_a_reduced_run_is_lifted(block, start, reduction):
    """Whenever the run ends, centres are histograms of the whole vocabulary, eliminated tokens in proportion to F."""
    config = HistogramsConfig(algorithm="algorithm2", clusters=4, start=start, reduction=reduction, keep=6, rounds=9)
    method = Histograms(config)
    state, seen = method.init(facts(17)), set()
    while (message := method.message(state)) is not None:
        seen.add(state.phase)
        state, _ = method.server_update(state, values(answer(method, message, block, 16)))
        assert state.centres.shape[1] == 17
        if state.phase in ("rounds", "reseed", "done"):
            np.testing.assert_allclose(state.centres.sum(axis=1), 1.0)
            rest = np.delete(np.arange(17), state.kept)
            shares = state.mean[rest] / state.mean[rest].sum()
            np.testing.assert_allclose(
                state.centres[:, rest], state.centres[:, rest].sum(axis=1)[:, None] * shares, atol=1e-12
            )
    assert ("covariance" in seen) == (reduction == "eigenvectors") and state.phase == "done"


def test_keeping_all_but_one_token_is_keeping_all(block):
    """One eliminated token *is* "other": the run is the one without a reduction, up to rounding."""
    config = HistogramsConfig(algorithm="algorithm2", clusters=3, rounds=20)
    plain, _ = run(Histograms(config), block, facts(17))
    few, _ = run(Histograms(config.model_copy(update={"reduction": "frequency", "keep": 16})), block, facts(17))
    np.testing.assert_allclose(few.centres, plain.centres, atol=1e-9)
    assert np.array_equal(few.counts, plain.counts)


def test_a_mean_has_nothing_to_reduce():
    with pytest.raises(ValueError, match="fedavg"):
        HistogramsConfig(algorithm="fedavg", reduction="frequency")
