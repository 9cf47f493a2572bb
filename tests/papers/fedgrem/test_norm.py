"""The central update against a generic convex solver, the alternating scheme and its own laws."""

import numpy as np
import pytest
from fedcore.papers.fedgrem import norm, reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedcore.methods.gradient_em.server import next_penalty
from fedcore.methods.mixture_models import spatial_median


def problem(seed, clients=12, components=2, p=3, outliers=0, h=0.5):
    generator = np.random.default_rng(seed)
    n = generator.integers(20, 400, clients).astype(float)
    t = generator.normal(size=(components, p)) + h * generator.normal(size=(clients, components, p))
    t += generator.normal(size=t.shape) / np.sqrt(n / 5)[:, None, None]
    t[clients - outliers :] += 8.0
    return t, n


def full_objective(flat, t, n, penalty):
    """The objective as Algorithm 1 writes it, over v and all v_k, of one component."""
    v, each = flat[: t.shape[1]], flat[t.shape[1] :].reshape(t.shape)
    # smoothed at the kink, so that a quasi-Newton method can be used
    distance = np.sqrt(((each - v) ** 2).sum(axis=1) + 1e-14)
    return float((n / 2 * ((each - t) ** 2).sum(axis=1) + np.sqrt(n) * penalty * distance).sum())


def objective(t, v, n, penalty):
    """(R,) sum_k n_k rho_tau(|t_k - v|), the objective after the minimum over all v_k. n: (K, R) or (K, 1)."""
    tau, s = norm.thresholds(penalty, n), spatial_median.distances(t, v)
    return (n * np.where(s <= tau, 0.5 * s * s, tau * s - 0.5 * tau * tau)).sum(axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_equals_a_direct_convex_solver(seed):
    t, n = problem(seed, clients=6, outliers=seed % 3)
    penalty = [0.5, 3.0, 8.0, 30.0][seed % 4]
    found = norm.solve(t, n, penalty)
    for r in range(t.shape[1]):
        own = t[:, r]
        mine = np.concatenate([found.v[r], found.theta[:, r].ravel()])
        best = full_objective(mine, own, n, penalty)
        # a generic solver of all variables gets near, and never below
        start = np.concatenate([own.mean(axis=0), own.ravel()])
        direct = minimize(full_objective, start, (own, n, penalty), method="L-BFGS-B", options={"maxfun": 5000})
        assert best <= direct.fun * (1 + 1e-9)
        assert best == pytest.approx(objective(t, found.v, n[:, None], penalty)[r], rel=1e-5)
        reduced = minimize(
            lambda v, own=own: objective(own[:, None], v[None], n[:, None], penalty)[0],
            own.mean(axis=0),
            method="BFGS",
            options={"gtol": 1e-9, "maxiter": 5000},
        )
        np.testing.assert_allclose(found.v[r], reduced.x, atol=1e-5)
    assert found.gradient < 1e-7


@pytest.mark.parametrize("h", [0.0, 0.5, 2.0])
def test_equals_the_alternating_scheme_run_to_convergence(h):
    t, n = problem(3, clients=40, outliers=8, h=h)
    found = norm.solve(t, n, 8.0)
    for r in range(t.shape[1]):
        own, v = reference.central_update(t[:, r], n, 8.0)
        np.testing.assert_allclose(found.v[r], v, atol=1e-7)
        np.testing.assert_allclose(found.theta[:, r], own, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 50), st.floats(0, 5))
def test_a_step_never_increases_the_objective_and_the_gradient_vanishes(seed, penalty, h):
    t, n = problem(seed, outliers=seed % 4, h=h)
    each = np.broadcast_to(n[:, None], t.shape[:2])
    tau, v = norm.thresholds(penalty, each), np.median(t, axis=0)
    before = objective(t, v, each, penalty)
    for _ in range(10):
        v = spatial_median.moved_centre(v, spatial_median.weighted_sums(t, norm.huber_weights(t, v, each, tau)))
        after = objective(t, v, each, penalty)
        assert (after <= before * (1 + 1e-12)).all()
        before = after
    assert norm.solve(t, n, penalty, most_steps=20_000, tolerance=1e-11).gradient < 1e-6


def test_a_far_outlier_moves_the_centre_by_no_more_than_the_bound():
    generator = np.random.default_rng(0)
    t = np.concatenate([0.1 * generator.normal(size=(9, 1, 10)), np.full((1, 1, 10), 1e6)])
    n, penalty = np.full(10, 150.0), 7.79
    tau = penalty / np.sqrt(150.0)
    found = norm.solve(t, n, penalty)
    shift = np.linalg.norm(found.v[0] - t[:9, 0].mean(axis=0))
    assert 0.9 * tau / 9 < shift <= tau / 9 * (1 + 1e-6)
    assert np.linalg.norm(t[:, 0].mean(axis=0)) > 1e5, "the plain mean is carried away"


def test_limits():
    t, n = problem(1)
    assert np.array_equal(norm.solve(t, n, 0.0).theta, t)
    found = norm.solve(t, n, 1e9)
    np.testing.assert_allclose(found.v, np.average(t, axis=0, weights=n), rtol=1e-12)
    assert np.array_equal(found.theta, np.broadcast_to(found.v, t.shape))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_who_counts_for_nothing_changes_nothing(seed):
    t, n = problem(seed)
    n[3] = 0.0
    t[3] = np.nan
    others = np.arange(len(n)) != 3
    with np.errstate(invalid="ignore"):
        found = norm.solve(t, n, 5.0)
    np.testing.assert_allclose(found.v, norm.solve(t[others], n[others], 5.0).v, rtol=1e-12)


def test_the_proximal_step_leaves_exactly_the_estimate_or_exactly_the_centre():
    t, v = np.array([[[3.0, 4.0]], [[0.3, 0.4]]]), np.zeros((1, 2))
    np.testing.assert_allclose(norm.proximal_step(t, v, np.array([[1.0], [1.0]]))[0], [[2.4, 3.2]])
    assert np.array_equal(norm.proximal_step(t, v, np.array([[1.0], [1.0]]))[1], v)
    assert np.array_equal(norm.proximal_step(t, v, np.zeros((2, 1))), t)


def test_the_schedule_of_the_paper():
    found = [1.0]
    for _ in range(3):
        found.append(next_penalty(found[-1], 0.1, 2.0, 10, 10))
    np.testing.assert_allclose(found[1:], [7.1150, 7.7265, 7.7877], atol=1e-4)
    assert found[1:] == reference.schedule(3, 10, 10)
