"""Fewer tokens in runs of `paper_histograms`: the covariance, what is kept of it, and lifted centres."""

import numpy as np
import pytest
from fedcore.papers.histograms.algorithms import check_matrix, whitened_covariance
from fedcore.papers.histograms.clients import second_moment

from fedcore.errors import ConfigError
from fedcore.population.blocks import leaves
from fedcore.rounds.statistics import values
from tests.histograms.example_clients import block_of, dense_histograms, random_counts
from tests.histograms.run_in_memory import answer, facts, run
from tests.papers.histograms.paper import in_two_orders, paper


@pytest.fixture
def block():
    return block_of(random_counts(np.random.default_rng(1), 60, 17))


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
    method = paper(algorithm="algorithm2", reduction="eigenvectors", clusters=3)
    state = method.init(facts(17))
    state, _ = method.server_update(state, values(answer(method, method.message(state), block, 8)))
    assert state.phase == "covariance"
    message, parts = method.message(state), list(leaves(block, 8))
    one, two = in_two_orders(method, message, parts, 5)
    assert np.array_equal(one["second_moment"], two["second_moment"])


def test_a_vocabulary_too_large_for_a_matrix_is_refused_before_data_are_read():
    check_matrix(4096)
    config = dict(algorithm="algorithm2", reduction="eigenvectors")
    with pytest.raises(ConfigError, match="4097.*128 MiB.*4096"):
        paper(**config).init(facts(4097))
    paper(**{**config, "reduction": "frequency"}).init(facts(4097))
    with pytest.raises(ConfigError, match="kept"):
        paper(**{**config, "keep": 17}).init(facts(17))


# --- runs -----------------------------------------------------------------------------------------------------------


def test_algorithm_2_on_two_of_four_tokens_worked_by_hand():
    """Tokens 0 and 3 tell the groups apart; 1 and 2 vary within them. F = (.4, .1, .1, .4) over four clients."""
    block = block_of([[16, 1, 3, 0], [16, 3, 1, 0], [0, 3, 1, 16], [0, 1, 3, 16], [0, 0, 0, 0]])
    for reduction in ("eigenvectors", "frequency"):
        config = dict(algorithm="algorithm2", clusters=2, temperature=1e6, reduction=reduction, keep=2)
        state, infos = run(paper(**config), block, facts(4), clients_per_leaf=2)
        assert state.kept.tolist() == [0, 3]
        order = np.argsort(-state.centres[:, 0])
        np.testing.assert_allclose(state.centres[order], [[0.8, 0.1, 0.1, 0], [0, 0.1, 0.1, 0.8]], atol=1e-12)
        assert state.counts.tolist() == [2, 2] and state.phase == "done"
        assert len(infos) < paper(**config).total_rounds(state)
        # KL of (.05, .15) within "other" to (.1, .1), the same for all clients; smoothing moves it by 3e-6 at most
        kl = 0.05 * np.log(0.05 / 0.1) + 0.15 * np.log(0.15 / 0.1)
        assert infos[-1].scalars["objective"] == pytest.approx(kl, abs=1e-5)


def test_the_pass_of_the_covariance_says_what_is_kept(block):
    config = dict(algorithm="algorithm2", clusters=3, reduction="eigenvectors", keep=5)
    state, infos = run(paper(**config), block, facts(17))
    assert infos[1].scalars["kept_tokens"] == 5 == len(state.kept)
    assert infos[1].scalars["kept_mass"] == pytest.approx(state.mean[state.kept].sum())


@pytest.mark.parametrize("start", ["algorithm1", "perturbed_mean", "uniform"])
@pytest.mark.parametrize("reduction", ["eigenvectors", "frequency"])
def test_every_state_of_a_reduced_run_is_lifted(block, start, reduction):
    """Whenever the run ends, centres are histograms of the whole vocabulary, eliminated tokens in proportion to F."""
    config = dict(algorithm="algorithm2", clusters=4, start=start, reduction=reduction, keep=6, rounds=9)
    method = paper(**config)
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
    config = dict(algorithm="algorithm2", clusters=3, rounds=20)
    plain, _ = run(paper(**config), block, facts(17))
    few, _ = run(paper(**{**config, "reduction": "frequency", "keep": 16}), block, facts(17))
    np.testing.assert_allclose(few.centres, plain.centres, atol=1e-9)
    assert np.array_equal(few.counts, plain.counts)
