"""IFCA: a gradient step divided by the number of all clients."""

import numpy as np
import pytest
from fedcore.papers.histograms.algorithms import gradient_step
from hypothesis import given
from hypothesis import strategies as st

from fedcore.population.blocks import leaves
from fedcore.rounds.statistics import values
from tests.histograms.example_clients import block_of, dense_histograms, random_counts
from tests.histograms.run_in_memory import facts, run
from tests.papers.histograms.paper import in_two_orders, paper

IFCA = dict(algorithm="ifca", clusters=3, start="perturbed_mean")


@pytest.fixture
def block():
    return block_of(random_counts(np.random.default_rng(1), 60, 17))


def test_a_step_worked_by_hand():
    """10 clients, eta 3: two clients of mean (.8, .2) move (.5, .5) by 3 * 2/10 of the way; nobody moves the second."""
    got = gradient_step(np.array([[0.5, 0.5], [0.1, 0.9]]), np.array([[1.6, 0.4], [0, 0]]), np.array([2.0, 0]), 10, 3.0)
    np.testing.assert_allclose(got, [[0.5 + 0.6 * 0.3, 0.5 - 0.6 * 0.3], [0.1, 0.9]], rtol=1e-15)


def test_a_step_ends_at_the_mean_at_the_latest():
    """Six of ten clients with eta 3 would go 1.8 of the way."""
    got = gradient_step(np.array([[0.5, 0.5]]), np.array([[4.8, 1.2]]), np.array([6.0]), 10, 3.0)
    np.testing.assert_allclose(got, [[0.8, 0.2]], rtol=1e-15)


@given(st.integers(0, 999), st.integers(1, 5), st.floats(0.1, 50))
def test_an_exact_step_lies_between_the_centre_and_the_mean(seed, k, rate):
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 20, k).astype(np.float64)
    centres, means = generator.dirichlet(np.ones(6), (2, k))
    clients = max(counts.sum(), 1.0)
    got = gradient_step(centres, means * counts[:, None], counts, clients, rate)
    share = np.minimum(rate * counts / clients, 1.0)[:, None]
    np.testing.assert_allclose(got, (1 - share) * centres + share * means, atol=1e-13)


def test_a_round_is_the_step_of_the_dense_matrices(block):
    method = paper(**{**IFCA, "rounds": 1, "learning_rate": 2.0})
    state, infos = run(method, block, facts(17, seed=3), clients_per_leaf=8)
    before = method.init(facts(17, seed=3))
    start, _ = method.server_update(before, values(method.client_update(method.message(before), block, None)[0]))
    filled = block.totals > 0
    q, n = dense_histograms(block)[filled], filled.sum()
    cells = (q @ np.log((start.centres + 1e-6) / (1 + 17e-6)).T).argmax(axis=1)
    expected = start.centres.copy()
    for k in range(3):
        mine = q[cells == k]
        expected[k] += min(2.0 / n, 1 / max(len(mine), 1)) * np.sum(mine - expected[k], axis=0)
    np.testing.assert_allclose(state.centres, expected, atol=1e-12)
    assert state.counts.tolist() == np.bincount(cells, minlength=3).tolist()
    assert len(infos) == 2 == method.total_rounds(state)
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = np.where(q > 0, q * np.log(q), 0).sum(axis=1) - np.max(q @ np.log(start.centres).T, axis=1)
    assert infos[-1].scalars["objective"] == pytest.approx(kl.mean(), abs=1e-4)


@pytest.mark.parametrize("start", ["algorithm1", "perturbed_mean", "uniform"])
@pytest.mark.parametrize("reduction", ["none", "frequency"])
def test_leaves_in_any_groups_give_the_same_bits_and_a_histogram(block, start, reduction):
    method = paper(**{**IFCA, "rounds": 4, "start": start, "reduction": reduction})
    parts, state, passes = list(leaves(block, 8)), method.init(facts(17)), 0
    total = method.total_rounds(state)
    while (message := method.message(state)) is not None:
        one, two = in_two_orders(method, message, parts, 3)
        for name, value in one.items():
            assert name == "pick" or np.array_equal(value, two[name])
        state, _ = method.server_update(state, one)
        passes += 1
    assert passes == total == (7 if start == "algorithm1" else 5)
    np.testing.assert_allclose(state.centres.sum(axis=1), 1.0)
    assert len(state.centres) == 3, "nothing is over-seeded, whatever the start"


def test_a_uniform_start_is_the_perturbed_uniform_histogram(block):
    method = paper(**{**IFCA, "start": "uniform", "perturbation": 0.2})
    state = method.init(facts(17, seed=5))
    state, _ = method.server_update(state, values(method.client_update(method.message(state), block, None)[0]))
    assert len(state.centres) == 3
    for row in state.centres:  # 17 normal logarithms of deviation .2, less their common normaliser
        assert abs(np.log(row * 17).mean()) < 0.1 and 0.1 < np.log(row * 17).std() < 0.3
        assert abs(np.corrcoef(np.log(row), np.log(state.mean))[0, 1]) < 0.7


def test_many_steps_reach_the_means_of_the_clusters():
    """Two far groups of different sizes: linear convergence at rate 1 - eta n_k / n."""
    block = block_of([[9, 1, 0]] * 4 + [[0, 1, 9]] * 2 + [[0, 0, 0]])
    for start in ("perturbed_mean", "algorithm1"):
        config = dict(algorithm="ifca", clusters=2, start=start, rounds=60, learning_rate=1.0, temperature=1e6)
        state, infos = run(paper(**config), block, facts(3))
        order = np.argsort(-state.counts)
        np.testing.assert_allclose(state.centres[order], [[0.9, 0.1, 0], [0, 0.1, 0.9]], atol=1e-5)
        objective = [info.scalars["objective"] for info in infos if "objective" in info.scalars]
        assert len(objective) == 60 and objective[-1] < 1e-4 < objective[0]


def test_it_says_that_it_is_not_private():
    method = paper(**IFCA)
    assert not method.private and method.plan(facts(3)) == [] and "exact" in method.not_private_because
