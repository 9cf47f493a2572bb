"""Warm starts."""

import numpy as np
import pytest

from fedcore.methods.histograms import Histograms, HistogramsConfig
from fedcore.methods.histograms.start import chosen_by_counts, filled_up, mean_of_warm_start
from tests.histograms.example_clients import RELATIONS, distance, facts_of_two_groups, two_groups
from tests.histograms.run_in_memory import rounded_normal, run


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


def test_of_too_many_centres_the_largest_are_used():
    centres = np.array([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])
    w, counts = np.full(3, 1 / 3), np.array([30.0, 10.0, 20.0, 0.0])
    chosen, groups = chosen_by_counts({"centres": centres, "counts": counts}, w, 2)
    assert groups == [[0], [2]] and np.array_equal(chosen, centres[[0, 2]])
    all_of_them, groups = chosen_by_counts({"centres": centres, "counts": counts}, w, 4)
    assert np.array_equal(all_of_them, centres) and groups == [[0], [1], [2], [3]]
    merged, groups = chosen_by_counts({"centres": centres}, w, 3)  # without counts the nearest ones are merged
    assert sorted(sorted(group) for group in groups) == [[0, 1], [2], [3]]
    np.testing.assert_allclose(merged[[sorted(group) for group in groups].index([0, 1])], [0.75, 0.15, 0.1])


def test_the_last_centres_fill_up():
    mean, centres = np.full(3, 1 / 3), np.array([[0.8, 0.1, 0.1]])
    filled = filled_up(np.zeros((0, 3)), 3, mean, 0.3, seed=1)
    assert filled.shape == (3, 3) and np.array_equal(filled[1:], filled_up(centres, 3, mean, 0.3, 1)[1:])


@pytest.mark.parametrize("relation", RELATIONS)
def test_many_given_centres_end_as_the_two_clusters(relation):
    block, truth = two_groups()
    near = np.random.default_rng(1).dirichlet(np.full(12, 5.0), 20)
    start = {"centres": np.vstack([0.8 * np.repeat(truth, 10, axis=0) + 0.2 * near, truth]), "counts": np.ones(22)}
    method = Histograms(HistogramsConfig(clusters=2, overseed=2, rounds=2))
    known = facts_of_two_groups(relation=relation, warm_start=start)
    assert [release.name for release in method.plan(known)] == ["clusters_001", "clusters_002"]
    state, _ = run(method, block, known, rounded_normal(np.random.default_rng(0)))
    assert state.centres.shape == (2, 12) and distance(state.centres, truth) < 0.15
