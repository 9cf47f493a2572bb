"""What experiments are made of: synthetic tasks, contamination, errors."""

from itertools import permutations

import numpy as np
import pytest
from fedcore.papers.fedgrem.simulation import (
    CENTRES,
    _bottleneck,
    contaminated,
    errors,
    misclustered,
    simulated_clients,
)

from fedcore.errors import ConfigError


def test_tasks_of_the_paper():
    tasks = simulated_clients(0, h=2.0, rows=20_000, clients=3)
    np.testing.assert_allclose(np.linalg.norm(tasks.theta[:2] - CENTRES, axis=2), 2.0)
    assert tasks.inlier.tolist() == [True, True, False] and np.isnan(tasks.theta[2]).all()
    own = tasks.rows[0][tasks.labels[0] == 3]
    np.testing.assert_allclose(own.mean(axis=0), tasks.theta[0, 3], atol=5 / np.sqrt(len(own)))
    np.testing.assert_allclose(np.bincount(tasks.labels[0]) / 20_000, tasks.w[0], atol=0.02)
    np.testing.assert_allclose(tasks.rows[2].mean(), 2.0, atol=0.03)
    np.testing.assert_allclose(tasks.rows[2].var(), 3.0, atol=0.05)
    distances = [np.linalg.norm(a - b) for a, b in permutations(CENTRES, 2)]
    assert 2.0 / min(distances) == pytest.approx(0.3592, abs=1e-4), "the ratio that the paper quotes for h = 2"


@pytest.mark.parametrize("preset,slope", [("paper", 3.0), ("code", -3.0)])
def test_regressions_of_the_paper(preset, slope):
    tasks = simulated_clients(0, model="regression", rows=4000, clients=2, preset=preset)
    x, y = tasks.rows[1][:, :-1], tasks.rows[1][:, -1]
    np.testing.assert_allclose(np.linalg.lstsq(x, y, rcond=None)[0], slope, atol=0.1)
    x, y = tasks.rows[0][:, :-1], tasks.rows[0][:, -1]
    rest = y - np.einsum("np,np->n", x, tasks.theta[0][tasks.labels[0]])
    assert abs(rest.std() - 1.0) < 0.05
    assert len(simulated_clients(0, model="regression", preset="code").rows[0]) == 200


def test_a_task_does_not_depend_on_how_many_there_are():
    few, many = simulated_clients(3, clients=5), simulated_clients(3, clients=9)
    assert all(np.array_equal(few.rows[k], many.rows[k]) for k in range(4))
    with pytest.raises(ConfigError, match="cannot be outliers"):
        simulated_clients(0, clients=2, outliers=3)


def test_contamination():
    generator = np.random.default_rng(0)
    x, ptr = generator.normal(size=(6000, 3)) + [1, 2, 3], np.array([0, 2000, 4000, 6000])
    outlier = contaminated(x, ptr, [1], "outlier", 0)
    assert np.array_equal(outlier[:2000], x[:2000]) and np.array_equal(outlier[4000:], x[4000:])
    np.testing.assert_allclose(outlier[2000:4000].mean(axis=0), 2.0, atol=0.2)
    np.testing.assert_allclose(outlier[2000:4000].var(axis=0), 3.0, atol=0.4)
    flipped = contaminated(x, ptr, [0, 2], "flipped", 0)
    np.testing.assert_allclose(flipped[:2000].mean(axis=0), x[:2000].mean(axis=0))
    np.testing.assert_allclose(flipped[:2000] - x[:2000].mean(axis=0), x[:2000].mean(axis=0) - x[:2000])
    answer = contaminated(x, ptr, [0], "flipped", 0, response=True)
    assert np.array_equal(answer[:2000, -1], -x[:2000, -1]) and np.array_equal(answer[:, :-1], x[:, :-1])
    moved = contaminated(x, ptr, [0], "shifted", 0, length=7.0)[:2000] - x[:2000]
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 7.0)
    np.testing.assert_allclose(moved - moved[0], 0.0, atol=1e-12)
    uniform = contaminated(x, ptr, [0], "random", 0)[:2000]
    assert (uniform.min(axis=0) >= x[:2000].min(axis=0)).all() and (uniform.max(axis=0) <= x[:2000].max(axis=0)).all()
    some = contaminated(x, ptr, [0], "outlier", 0, share=0.25)
    assert 400 < (some != x).any(axis=1).sum() < 600
    two, one = (contaminated(x, ptr, clients, "random", 5)[4000:] for clients in ([1, 2], [2]))
    assert np.array_equal(two, one)


@pytest.mark.parametrize("wrong", [{"kind": "odd"}, {"share": 0.0}, {"clients": [3]}, {"clients": [-1]}])
def test_contamination_that_is_refused(wrong):
    settings = {"clients": [0], "kind": "outlier", "share": 1.0, **wrong}
    with pytest.raises(ConfigError):
        contaminated(np.zeros((3, 2)), np.array([0, 1, 2, 3]), seed=0, **settings)


def test_errors_by_hand():
    truth = np.array([[[0.0], [10.0]], [[0.0], [10.0]], [[0.0], [0.0]]])
    found = np.array([[[10.0], [3.0]], [[4.0], [10.0]], [[99.0], [99.0]]])
    mine = errors(found, truth, np.array([True, True, False]))
    assert mine.largest == 4.0 and mine.rms == pytest.approx(np.sqrt((9 + 16) / 4))
    weights = errors(np.array([[0.2, 0.8]]), np.array([[0.7, 0.3]]), np.array([True]))
    assert weights.largest == pytest.approx(0.1)


def test_the_least_largest_entry_of_a_matching():
    generator = np.random.default_rng(0)
    for _ in range(20):
        cost = generator.random((7, 7))
        brute = min(max(cost[np.arange(7), list(order)]) for order in permutations(range(7)))
        assert _bottleneck(cost) == brute


def test_misclustered_by_hand():
    assert misclustered(np.array([2, 2, 0, 0, 1]), np.array([0, 0, 1, 2, 2]), 3) == 1
    assert misclustered(np.array([0, 0]), np.array([1, 1]), 2) == 0
