"""Algorithm 1, Algorithm 2 and the mean, without privacy."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from fedcore.papers.histograms.algorithms import sizes_of
from fedcore.papers.histograms.clients import (
    MeanMessage,
    SeedingMessage,
    WorstFitMessage,
    entropies,
    inverse_totals,
    seeding_distances,
    sums_by_cell,
)
from fedcore.papers.histograms.config import Algorithm, Algorithm2

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.histograms.simplex import smooth
from fedcore.methods.histograms.sizes import Sizes
from fedcore.population.blocks import leaves
from fedcore.rounds.statistics import values
from tests.histograms.example_clients import block_of, dense_histograms, random_counts
from tests.histograms.run_in_memory import answer, facts, run
from tests.papers.histograms.paper import in_two_orders, paper

ALGORITHM2 = dict(algorithm="algorithm2", start="algorithm1")


@pytest.fixture
def block():
    return block_of(random_counts(np.random.default_rng(1), 60, 17))


def test_fedavg_is_the_mean_of_clients_not_of_tokens(block):
    state, infos = run(paper(algorithm="fedavg"), block, facts(17))
    filled = block.totals > 0
    np.testing.assert_allclose(state.centres, [dense_histograms(block)[filled].mean(axis=0)], rtol=1e-12)
    assert state.clients == filled.sum() == infos[0].scalars["clients"]
    assert len(infos) == 1


def test_sums_by_cell_are_those_of_the_dense_matrix(block):
    cells = np.random.default_rng(3).integers(0, 4, block.clients)
    onehot = np.eye(4)[cells]
    got = sums_by_cell(block, cells, 4, inverse_totals(block))
    np.testing.assert_allclose(got, onehot.T @ dense_histograms(block), rtol=1e-12)
    assert got.dtype == np.float64


def test_entropies_are_those_of_the_dense_matrix(block):
    q = dense_histograms(block)
    np.testing.assert_allclose(entropies(block), np.sum(q * np.log(np.where(q > 0, q, 1)), axis=1), atol=1e-9)


def test_start_distances_are_those_of_the_dense_matrix(block):
    e, rows = 1e-4, dense_histograms(block)[[3, 5, 8]]
    p, q = smooth(rows, e), smooth(dense_histograms(block), e)
    q[block.totals == 0] = e / (1 + 17 * e)
    expected = np.min([np.sum(row * np.log(row / q), axis=1) for row in p], axis=0)
    np.testing.assert_allclose(seeding_distances(block, rows, e), expected, rtol=1e-9, atol=1e-9)


def test_a_cold_start_draws_uniformly_and_a_hot_one_the_farthest():
    """Client 3 is far from the row that was chosen; client 4 is empty and is never drawn."""
    block = block_of([[9, 1, 0], [9, 1, 0], [8, 2, 0], [0, 1, 9], [0, 0, 0]])
    rows, method = dense_histograms(block)[:1], paper(**ALGORITHM2)

    def draws(temperature, seeds):
        messages = [SeedingMessage(rows, 1e-4, temperature, seed) for seed in seeds]
        return [answer(method, message, block, 2)["pick"].client for message in messages]

    assert set(draws(1e6, range(20))) == {3}
    cold = np.bincount(draws(0.0, range(600)), minlength=5)
    assert cold[4] == 0
    assert np.all(np.abs(cold[:4] - 150) < 5 * np.sqrt(600 * 0.25 * 0.75)), cold


def test_the_draw_follows_the_softmax_of_the_distances():
    block = block_of([[9, 1], [7, 3], [5, 5]])
    rows, tau, method = dense_histograms(block)[:1], 2.0, paper(**ALGORITHM2)
    weights = np.exp(tau * seeding_distances(block, rows, 1e-4))
    expected = 1000 * weights / weights.sum()
    drawn = [answer(method, SeedingMessage(rows, 1e-4, tau, seed), block, 3)["pick"].client for seed in range(1000)]
    assert np.all(np.abs(np.bincount(drawn, minlength=3) - expected) < 5 * np.sqrt(expected))


@pytest.mark.parametrize(
    "config",
    [
        dict(**ALGORITHM2, rounds=3),
        dict(algorithm="algorithm2", start="perturbed_mean", clusters=3, rounds=3),
        dict(algorithm="fedavg"),
    ],
)
def test_passes_over_leaves_of_a_block_are_those_of_single_leaves(block, config):
    """The same leaves in two groups, merged: the same bits."""
    method = paper(**config)
    parts = list(leaves(block, 8))
    state = method.init(facts(17))
    while (message := method.message(state)) is not None:
        one, two = in_two_orders(method, message, parts, 5)
        for name, value in one.items():
            if name in ("pick", "worst"):
                assert (value.score, value.client) == (two[name].score, two[name].client)
            else:
                assert np.array_equal(value, two[name])
        state, _ = method.server_update(state, one)


def two_groups():
    return block_of([[9, 1, 0], [8, 2, 0], [0, 1, 9], [0, 0, 0]])


def test_algorithm_2_worked_by_hand():
    """Whatever rows start it, the two groups are found: centres (.85, .15, 0) and (0, .1, .9); it stops early."""
    config = dict(algorithm="algorithm2", start="algorithm1", clusters=2, temperature=1e6)
    state, infos = run(paper(**config), two_groups(), facts(3), clients_per_leaf=1)
    order = np.argsort(-state.counts)
    np.testing.assert_allclose(state.centres[order], [[0.85, 0.15, 0], [0, 0.1, 0.9]], atol=1e-12)
    assert state.counts[order].tolist() == [2, 1]
    q = np.array([[0.9, 0.1], [0.8, 0.2]])
    kl = np.sum(q * np.log(q / [0.85, 0.15])) / 3
    # the smoothing of the assignment, 1e-6, moves the objective by at most d * 1e-6 per client
    assert infos[-1].scalars["objective"] == pytest.approx(kl, abs=3e-6)
    assert infos[-1].scalars["movement"] == 0.0 and state.round < 50


def test_the_objective_never_rises(block):
    for seed in range(3):
        config = dict(algorithm="algorithm2", start="algorithm1", clusters=4)
        _, infos = run(paper(**config), block, facts(17, seed=seed))
        objective = [info.scalars["objective"] for info in infos if "objective" in info.scalars]
        assert len(objective) > 1
        # centres are smoothed by 1e-6 for the score, and the scores are float32
        assert all(b <= a + 1e-4 for a, b in zip(objective, objective[1:], strict=False))


def test_an_empty_cluster_takes_the_row_that_is_served_worst():
    """Cluster 2 gets nobody in round 1; the outlier (0, 1, 9) is the worst served by cluster 1 alone."""
    block = block_of([[9, 1, 0]] * 5 + [[0, 1, 9]])
    method = paper(algorithm="algorithm2", start="algorithm1", clusters=2)
    state = method.init(facts(3))
    state, _ = method.server_update(state, values(answer(method, method.message(state), block, 2)))
    centres = np.array([[0.5, 0.1, 0.4], [1e-5, 1 - 2e-5, 1e-5]])
    state = replace(state, phase="rounds", centres=centres, counts=np.zeros(2))
    seen = []
    while (message := method.message(state)) is not None:
        seen.append(type(message))
        state, info = method.server_update(state, values(answer(method, message, block, 2)))
    assert WorstFitMessage in seen
    np.testing.assert_allclose(state.centres, [[0.9, 0.1, 0], [0, 0.1, 0.9]], atol=1e-12)
    assert state.counts.tolist() == [5, 1]


def test_more_clusters_than_different_clients_ends():
    state, _ = run(paper(algorithm="algorithm2", start="algorithm1", clusters=5), two_groups(), facts(3))
    assert state.phase == "done" and state.counts.sum() == 3
    assert np.all(np.isfinite(state.centres))


def test_perturbed_mean_merges_to_the_clusters():
    config = dict(algorithm="algorithm2", start="perturbed_mean", clusters=2, overseed=6, merge_after=2)
    counts = np.random.default_rng(0).multinomial(60, [[0.7, 0.2, 0.1]] * 40 + [[0.1, 0.2, 0.7]] * 20)
    state, infos = run(paper(**config), block_of(counts), facts(3, seed=2))
    assert sorted(state.counts.tolist()) == [20, 40] and state.centres.shape == (2, 3)


def test_nobody_with_tokens_is_an_error_with_a_name():
    with pytest.raises(PopulationError, match="tokens"):
        run(paper(**ALGORITHM2), block_of(np.zeros((3, 4))), facts(4))


def test_the_first_row_is_drawn_in_the_pass_of_the_mean():
    message = paper(**ALGORITHM2).message(paper(**ALGORITHM2).init(facts(3, seed=5)))
    assert message == MeanMessage(True, 5)


def test_baselines_say_that_they_are_not_private():
    for algorithm in ("algorithm2", "fedavg"):
        method = paper(algorithm=algorithm)
        assert not method.private and method.not_private_because


def test_sizes():
    assert sizes_of(Algorithm2(start="algorithm1"), facts(9)) == Sizes(50, 10, 10, 0, 0.3)
    assert sizes_of(Algorithm2(clusters=4), facts(9)) == Sizes(50, 4, 12, 4, 0.3)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "magic"},
        {"algorithm": "fedavg", "reduction": "frequency"},
        {"algorithm": "fedavg", "rounds": 3},
        {"algorithm": "ifca", "overseed": 6},
        {"algorithm": "ifca", "merge_after": 2},
        {"algorithm": "ifca", "published_rounds": 2},
        {"algorithm": "published", "learning_rate": 1.0},
        {"algorithm": "published", "overseed": 6},
        {"algorithm": "published_ifca", "published_clip": 1.0},
        {"clusters": 5, "overseed": 4},
        {"rounds": 5, "merge_after": 4},
        {"learning_rate": 1.0},
    ],
)
def test_settings_of_other_algorithms_are_refused(settings):
    with pytest.raises(ConfigError):
        paper(**settings)


def test_settings_of_an_algorithm_stand_beside_its_name_or_in_its_model():
    beside = paper(algorithm="ifca", rounds=5, weights="local")
    assert beside == paper(algorithm={"name": "ifca", "rounds": 5}, weights="local")
    assert beside == paper(**beside.config.model_dump(mode="json")) == paper(**dict(beside.config))
    assert beside.config.algorithm.rounds == 5 and beside.config.weights == "local"


@pytest.mark.parametrize("algorithm", get_args(get_args(Algorithm)[0]))
def test_every_setting_is_described(algorithm):
    assert all(field.description for name, field in algorithm.model_fields.items() if name != "name")
