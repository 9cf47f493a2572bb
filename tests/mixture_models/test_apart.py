"""Limits beyond which clients are apart: by hand, by the F distribution, and in runs of clients that are similar."""

import numpy as np
import pytest
from scipy import stats

from fedcore.methods.mixture_models import apart
from tests.gradient_em.run_in_memory import run as run_gaussians
from tests.mixed_effects.run_in_memory import run as run_regressions
from tests.run_in_memory import block_of


def test_a_client_counts_by_its_largest_ratio():
    ratios = np.array([[0.5, np.nan, 1.0], [np.nan, np.nan, np.nan], [0.0, 0.0, 0.0], [1.0, np.inf, 1e9]])
    counts = apart.counts_of_largest(ratios)
    assert np.flatnonzero(counts).tolist() == [0, 120, 319]  # edges are -6, -5.95, ..., 0 = log 1 is the 121st
    assert counts[[0, 120, 319]].tolist() == [1.0, 1.0, 1.0]
    counts = apart.counts_of_largest(ratios[[0, 3], ::2])
    assert np.flatnonzero(counts).tolist() == [120, 319]


@pytest.mark.parametrize("components", [1, 4])
@pytest.mark.parametrize("tail", [5.0, 10.0])
@pytest.mark.parametrize("kinds", [1, 2])
def test_the_limit_is_that_of_the_distribution_of_the_ratios(components, tail, kinds):
    """Of 20,000 clients at the quantiles of 3 F(4, tail). Half a bin of 0.05 moves the limit by 3 %."""
    each = (np.arange(20_000) + 0.5) / 20_000
    largest = 3.0 * stats.f.ppf(each ** (1 / components), 4, tail)
    limit = apart.limits(apart.counts_of_largest(largest[:, None]), 4, np.array([4.0]), components, tail, kinds)
    expected = 3.0 * stats.f.ppf(0.95 ** (1 / kinds / components), 4, tail)
    np.testing.assert_allclose(limit, expected, rtol=0.03)


def test_limits_follow_from_each_clients_own_degrees():
    each = (np.arange(20_000) + 0.5) / 20_000
    counts = apart.counts_of_largest(stats.f.ppf(each, 4, 7)[:, None])
    limits = apart.limits(counts, 4, np.array([1.0, 4.0, 50.0]), 1, 7.0)
    np.testing.assert_allclose(limits, stats.f.ppf(0.95, [1, 4, 50], 7), rtol=0.03)


def test_without_counts_the_scale_is_one():
    limit = apart.limits(np.zeros(0), 3, np.array([3.0]), 2, 10.0)
    np.testing.assert_allclose(limit, stats.f.ppf(np.sqrt(0.95), 3, 10))


# --- runs -------------------------------------------------------------------------------------------------------------

CLIENTS, RUNS = 100, 12


def named(model, seed, law, outliers):
    """(CLIENTS,) bool: the clients that a run names, of which the first `outliers` are 10 standard deviations away."""
    generator = np.random.default_rng(seed)
    components, p = (2, 4) if model == "gaussian" else (1, 4)
    centres, rows = np.array([[3.0, 0, 0, 0], [-3.0, 0, 0, 0]])[:components], []
    for client in range(CLIENTS):
        z = generator.normal(size=(components, p))
        if law == "student":
            z *= np.sqrt(0.6 * 5 / generator.chisquare(5, (components, 1)))  # variance 1
        away = generator.normal(size=(components, p)) if client < outliers else np.zeros((components, p))
        away *= 10.0 / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-9)
        n = int(generator.integers(40, 160))
        label, own = generator.integers(components, size=n), centres + 0.5 * (z + away)
        noise, x = generator.normal(size=(n, p)), generator.normal(size=n)
        regression = np.column_stack([noise, (noise * own[label]).sum(axis=1) + x])
        rows.append(own[label] + noise if model == "gaussian" else regression)
    run = run_gaussians if model == "gaussian" else run_regressions
    ran = run(block_of(rows), components=components, starts=3)
    assert ran.method.outcome(ran.state).startswith(("converged", "stopped"))
    return ran.outputs()["apart"].any(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["normal", "student"])
@pytest.mark.parametrize("model", ["gaussian", "regression"])
def test_at_most_one_in_twenty_similar_clients_is_named(model, law):
    """12 runs of 100 clients. Their mean share may be above 5 % by three standard errors of itself, as the runs differ,
    and at least by those of 1200 clients that are named independently. The limit of the shrinkage names 20 to 50 %."""
    shares = np.array([named(model, seed, law, 0).mean() for seed in range(RUNS)])
    independent = np.sqrt(0.05 * 0.95 / (RUNS * CLIENTS))
    assert shares.mean() <= 0.05 + 3.0 * max(shares.std(ddof=1) / np.sqrt(RUNS), independent)
    assert law == "normal" or shares.mean() > 0.01  # the limit is not beyond all clients


@pytest.mark.slow
@pytest.mark.parametrize("outliers", [10, 30])
@pytest.mark.parametrize("model", ["gaussian", "regression"])
def test_outliers_are_named(model, outliers):
    """Ten standard deviations away, in four coordinates: the squared distance over 4 is 25, and limits are 4 to 8."""
    found = np.array([named(model, seed, "normal", outliers) for seed in range(3)])
    assert found[:, :outliers].mean() >= 0.95 and found[:, outliers:].mean() <= 0.05
