"""Robust weights as held-out rows say: the density of held-out rows, hostile clients, scattered ones, few rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from fedcore.methods.mixed_effects import robust_trial
from fedcore.methods.mixed_effects.regression import Common, log_density_of_others, systems
from tests.mixed_effects.run_in_memory import block_of, run
from tests.mixed_effects.test_regression import rows_of, simulated
from tests.mixed_effects.test_run import MIXED


def population(kind: str, seed: int = 0, clients: int = 80, n: int = 15) -> list[np.ndarray]:
    inputs, responses, _ = simulated(seed, clients=clients, p=3, n=n)
    random = np.random.default_rng(seed + 1)
    for k in range(clients):
        if kind == "hostile" and k < 0.3 * clients:
            responses[k] = inputs[k] @ (5 * random.normal(size=3)) + random.normal(size=n)
        elif kind == "scattered":  # of few rows, a fifth of the clients scatters more widely than the others
            inputs[k] = inputs[k][:4]
            beta = random.normal(size=3) * (0.3 if k % 5 else 4.0)
            responses[k] = inputs[k] @ beta + random.normal(size=4)
    return [np.column_stack([x, y]) for x, y in zip(inputs, responses, strict=True)]


def test_the_density_of_some_rows_given_the_others():
    inputs, responses, _ = simulated(1, clients=3, n=9)
    random = np.random.default_rng(2)
    half = random.normal(size=(3, 3))
    common = Common(random.normal(size=3), half @ half.T, 0.7, 1e-12)
    others = systems(rows_of([x[:5] for x in inputs], [y[:5] for y in responses]))
    found = log_density_of_others(systems(rows_of(inputs, responses)), others, common, robust=False)
    for value, x, y in zip(found, inputs, responses, strict=True):
        covariance = x @ common.between @ x.T + 0.7 * np.eye(9)
        gain = np.linalg.solve(covariance[:5, :5], covariance[:5, 5:]).T
        mean = x[5:] @ common.mean + gain @ (y[:5] - x[:5] @ common.mean)
        expected = multivariate_normal.logpdf(y[5:], mean, covariance[5:, 5:] - gain @ covariance[:5, 5:])
        assert_allclose(value, expected, rtol=1e-9)


@pytest.mark.parametrize(("kind", "robust"), [("hostile", 1), ("alike", 1), ("scattered", 0)])
def test_the_choice_and_where_it_ends(kind: str, robust: int):
    block = block_of(population(kind))
    chosen = run(block, **MIXED, rounds=30)
    assert chosen.state.robust == robust
    assert (chosen.state.gain > 0.02) if kind == "hostile" else (chosen.state.gain < 0.005)
    named = run(block, **MIXED, rounds=30, robust=bool(robust))
    assert np.array_equal(chosen.state.centres, named.state.centres)
    assert np.array_equal(chosen.outputs()["centres"], named.outputs()["centres"])
    assert set(chosen.memory) == set(named.memory) == {"root", "target", "rss", "n"}
    assert len(chosen.infos) == len(named.infos) + robust_trial.TRIAL_ROUNDS + 1


def test_the_choice_does_not_depend_on_leaves():
    block = block_of(population("hostile", clients=20))
    gains = [run(block, **MIXED, rounds=1, clients_per_leaf=size).state.gain for size in (7, 64)]
    assert_allclose(gains, gains[0], rtol=1e-9)


def test_clients_of_one_row_and_without_rows_have_no_say():
    rows = [own[: k % 2] for k, own in enumerate(population("alike", clients=30))]
    ran = run(block_of(rows), **MIXED, rounds=5)
    assert ran.state.robust in (0, 1)
    assert np.isfinite(ran.state.gain)
