"""Warm starts."""

import numpy as np
import pytest

from fedcore.methods.histograms import Histograms, HistogramsConfig
from fedcore.methods.histograms.start import elected, filled_up, mean_of_warm_start
from tests.histograms.example_clients import RELATIONS, distance, facts_of_two_groups, two_groups
from tests.histograms.run_in_memory import answer, rounded_normal, run


def test_a_warm_start_spends_everything_on_its_two_rounds():
    block, truth = two_groups()
    start = {"centres": truth, "mean": truth.mean(axis=0), "counts": np.array([3.0, 1.0])}
    state, infos = run(Histograms(HistogramsConfig(clusters=2)), block, facts_of_two_groups(warm_start=start))
    assert len(infos) == 2 and state.rounds == 2
    cold = Histograms(HistogramsConfig(clusters=2, rounds=2, overseed=2)).init(facts_of_two_groups())
    assert state.multipliers[-1] < cold.multipliers[-1]


def test_the_mean_of_a_start():
    centres = np.array([[0.5, 0.5, 0.0], [0.1, 0.1, 0.8]])
    np.testing.assert_allclose(mean_of_warm_start({"centres": centres}, 1e-9), [0.3, 0.3, 0.4])
    np.testing.assert_allclose(
        mean_of_warm_start({"centres": centres, "counts": np.array([3.0, 1.0])}, 1e-9), [0.4, 0.4, 0.2]
    )
    np.testing.assert_allclose(mean_of_warm_start({"centres": centres, "counts": np.zeros(2)}, 1e-9), [0.3, 0.3, 0.4])
    mean = np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(mean_of_warm_start({"centres": centres, "mean": mean}, 1e-9), mean)


def test_elected_centres():
    centres = np.array([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])
    chosen, groups = elected(centres, np.array([30.0, 10.0, 20.0, 5.0]), 6.0, np.full(3, 1 / 3), 2)
    assert groups == [[0, 1], [2]]
    np.testing.assert_allclose(chosen, [[0.775, 0.125, 0.1], [0.1, 0.1, 0.8]])
    few, groups = elected(centres, np.array([1.0, 9.0, 2.0, 3.0]), 6.0, np.full(3, 1 / 3), 2)
    assert groups == [[1]] and np.array_equal(few, centres[1:2])
    none, groups = elected(centres, np.zeros(4), 6.0, np.full(3, 1 / 3), 2)
    assert none.shape == (0, 3) and groups == []
    mean = np.full(3, 1 / 3)
    filled = filled_up(none, 3, mean, 0.3, seed=1)
    assert filled.shape == (3, 3) and np.array_equal(filled[1:], filled_up(centres[:1], 3, mean, 0.3, 1)[1:])


@pytest.mark.parametrize("relation", RELATIONS)
def test_votes_choose_the_candidates_that_clients_are_near_to(relation):
    block, truth = two_groups()
    strangers = np.random.default_rng(1).dirichlet(np.full(12, 0.1), 20)
    start = {"centres": np.vstack([strangers[:10], truth, strangers[10:]])}
    method = Histograms(HistogramsConfig(clusters=2, overseed=2, rounds=2))
    known = facts_of_two_groups(relation=relation, warm_start=start)
    state, noise = method.init(known), rounded_normal(np.random.default_rng(0))
    planned = method.plan(known)[0]
    assert (planned.name, planned.shape) == ("votes", (22,))
    message = method.message(state)
    assert message.kind == "votes" and message.release == "votes"
    grid = method.release_values(message, answer(method, message, block, 1024))
    state, info = method.server_update(state, {"votes": noise(planned, grid["votes"])})
    assert state.phase == "rounds" and state.centres.shape == (2, 12) and distance(state.centres, truth) < 0.15
    assert info.scalars["live_cells"] < 22
