"""Gaussian mixtures of rows with missing entries."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from fedcore.errors import PopulationError
from fedcore.methods.mixture_models import gaps
from fedcore.methods.mixture_models.gaussian import COVARIANCES, GaussianMixture
from fedcore.methods.mixture_models.initialisation import (
    cluster_sums,
    lloyd_step,
    parameters_from_clusters,
    squared_distances,
)
from fedcore.methods.mixture_models.packing import pack_symmetric


def model_and_theta(covariance, components=3, d=4, seed=0, centre=None, missing=True):
    generator = np.random.default_rng(seed)
    factors = generator.normal(size=(components, d, d)) / 2 + np.eye(d)
    full = factors @ np.swapaxes(factors, 1, 2)
    covariances = {
        "known": None,
        "spherical": full[:, 0, 0],
        "diag": np.diagonal(full, axis1=1, axis2=2).copy(),
        "tied": full[0],
        "full": full,
    }[covariance]
    theta = {"weights": generator.dirichlet(np.ones(components) * 3), "means": generator.normal(size=(components, d))}
    if covariances is not None:
        theta["covariances"] = covariances
    known = full[-1] if covariance == "known" else None
    return GaussianMixture(components, d, covariance, centre=centre, known=known, missing=missing), theta


def dense(model, theta):
    """The covariance of every component, (G, d, d)."""
    d = model.features
    if model.covariance == "known":
        return [model.known] * model.components
    if model.covariance == "tied":
        return [theta["covariances"]] * model.components
    return [own * np.eye(d) if model.covariance in ("spherical", "diag") else own for own in theta["covariances"]]


def by_hand(model, theta, row):
    """(q,) the expected statistic of one row and its log-likelihood, by the conditional normal law of a textbook."""
    o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
    logs, rows, spreads = [], [], []
    for weight, mean, sigma in zip(theta["weights"], theta["means"], dense(model, theta), strict=True):
        x, spread = row.copy(), np.zeros((len(row), len(row)))
        logs.append(np.log(weight))
        if len(o):
            logs[-1] += multivariate_normal(mean[o], sigma[np.ix_(o, o)]).logpdf(row[o])
        b = np.linalg.solve(sigma[np.ix_(o, o)], sigma[np.ix_(o, m)]).T
        x[m] = mean[m] + b @ (row[o] - mean[o])
        spread[np.ix_(m, m)] = sigma[np.ix_(m, m)] - b @ sigma[np.ix_(o, m)]
        rows.append(x - model.centre)
        spreads.append(spread)
    total = np.logaddexp.reduce(logs)
    r = np.exp(np.array(logs) - total)
    seconds = np.array([np.outer(x, x) + spread for x, spread in zip(rows, spreads, strict=True)])
    parts = [r, (r[:, None] * rows).ravel()]
    if model.covariance == "full":
        parts.append(pack_symmetric(r[:, None, None] * seconds).ravel())
    elif model.covariance == "tied":
        parts.append(pack_symmetric(np.tensordot(r, seconds, 1)))
    elif model.covariance != "known":
        squares = np.diagonal(seconds, axis1=1, axis2=2)
        parts.append((r[:, None] * squares).ravel() if model.covariance == "diag" else r * squares.sum(axis=1))
    return np.concatenate(parts), total, r


def rows_with_gaps(n, d, share, seed=0):
    generator = np.random.default_rng(seed)
    y = 2 * generator.normal(size=(n, d))
    y[generator.random(y.shape) < share] = np.nan
    y[np.isnan(y).all(axis=1), 0] = 1.0
    return y


def test_one_row_worked_by_hand():
    """One component with mean (1, 2) and covariance ((2, 1), (1, 3)); of the row (3, ?) the second entry is expected to
    be 2 + 1/2 (3 - 1) = 3, with variance 3 - 1/2 = 5/2."""
    model = GaussianMixture(1, 2, "full", missing=True)
    theta = {
        "weights": np.ones(1),
        "means": np.array([[1.0, 2.0]]),
        "covariances": np.array([[[2.0, 1.0], [1.0, 3.0]]]),
    }
    s = model.e_total(theta, np.array([[3.0, np.nan]]))
    np.testing.assert_allclose(s, [1, 3, 3, 9, np.sqrt(2) * 9, 9 + 2.5], rtol=1e-14)
    likelihood = -0.5 * np.log(2 * np.pi * 2) - (3 - 1) ** 2 / (2 * 2)
    np.testing.assert_allclose(model.log_likelihood(theta, np.array([[3.0, np.nan]])), [likelihood], rtol=1e-14)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("numbers", [gaps.NUMBERS, 50])
def test_every_row_is_that_of_the_conditional_normal_law(covariance, numbers, monkeypatch):
    """Also in batches of one row."""
    monkeypatch.setattr(gaps, "NUMBERS", numbers)
    model, theta = model_and_theta(covariance, centre=[0.5, -1.0, 0.0, 2.0])
    y = rows_with_gaps(60, 4, 0.3)
    expected = [by_hand(model, theta, row) for row in y]
    weights = np.random.default_rng(1).uniform(0, 2, len(y))
    total = sum(weight * s for weight, (s, _, _) in zip(weights, expected, strict=True))
    np.testing.assert_allclose(model.e_total(theta, y, weights), total, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(model.log_likelihood(theta, y), [own for _, own, _ in expected], rtol=1e-11)
    thetas = [theta, {**theta, "means": theta["means"] + 0.3}]
    for totals, values, own in zip(*model.e_totals_and_log_likelihoods(thetas, y, weights), thetas, strict=True):
        assert totals.tobytes() == model.e_total(own, y, weights).tobytes()
        assert values.tobytes() == model.log_likelihood(own, y).tobytes()
    found = model.personalise(theta, y)["responsibilities"]
    np.testing.assert_allclose(found, [own for _, _, own in expected], rtol=1e-9, atol=1e-12)
    ptr = np.array([0, 7, 7, 8, 20, 21, 60])
    means = [
        np.mean([s for s, _, _ in expected[a:b]], axis=0) if b > a else np.zeros(model.q) for a, b in pairwise(ptr)
    ]
    np.testing.assert_allclose(model.e_mean(theta, y, ptr), means, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("covariance", ["full", "tied"])
@pytest.mark.parametrize(
    "name, number", [("SWEPT", 0), ("SWEPT_NUMBERS", 1), ("MANY_ROWS", 0), ("FEW_NUMBERS", 0), ("FEW_NUMBERS", 10**9)]
)
def test_batched_is_by_pattern(covariance, name, number, monkeypatch):
    """By LAPACK or swept, all at once or a few at a time, one product for each row or each pattern, and with the
    patterns of few rows among those of others: the same up to rounding."""
    model, theta = model_and_theta(covariance, d=6)
    y, ptr = rows_with_gaps(200, 6, 0.4), np.array([0, 3, 90, 200])
    of = ("e_total", (theta, y)), ("log_likelihood", (theta, y)), ("e_mean", (theta, y, ptr))
    before = [getattr(model, what)(*arguments) for what, arguments in of]
    monkeypatch.setattr(gaps, name, number)
    for (what, arguments), expected in zip(of, before, strict=True):
        np.testing.assert_allclose(getattr(model, what)(*arguments), expected, rtol=1e-11, atol=1e-11)


def test_more_columns_than_a_word_has_bits():
    model, theta = model_and_theta("full", 2, 70)
    y = rows_with_gaps(12, 70, 0.1)
    y[:6, 69], y[6:, 69] = np.nan, 1.0
    expected = [by_hand(model, theta, row) for row in y]
    np.testing.assert_allclose(model.e_total(theta, y), sum(s for s, _, _ in expected), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(model.log_likelihood(theta, y), [own for _, own, _ in expected], rtol=1e-9)


@pytest.mark.slow
def test_clients_larger_than_a_tile_and_of_one_size(monkeypatch):
    model, theta = model_and_theta("full")
    y = rows_with_gaps(1600, 4, 0.2)
    for ptr in (np.arange(0, 1601, 16), np.array([0, 3, 1500, 1600])):
        monkeypatch.setattr(GaussianMixture, "_tile", lambda self, y: 264)
        sums = [model.e_total(theta, y[a:b]) / (b - a) for a, b in pairwise(ptr)]
        np.testing.assert_allclose(model.e_mean(theta, y, ptr), sums, rtol=1e-10, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(COVARIANCES), st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 3))
def test_complete_rows_have_the_bits_of_a_model_without_gaps(covariance, seed, d, components):
    model, theta = model_and_theta(covariance, components, d, seed)
    plain, _ = model_and_theta(covariance, components, d, seed, missing=False)
    y, ptr = np.random.default_rng(seed).normal(size=(50, d)), np.array([0, 5, 5, 30, 50])
    for name, arguments in (("e_total", (y,)), ("e_mean", (y, ptr)), ("log_likelihood", (y,))):
        assert np.array_equal(getattr(model, name)(theta, *arguments), getattr(plain, name)(theta, *arguments))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(COVARIANCES), st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 3))
def test_complete_rows_by_the_path_of_gaps(covariance, seed, d, components):
    """As rows whose missing entries are none; sums agree up to rounding."""
    model, theta = model_and_theta(covariance, components, d, seed)
    y = np.random.default_rng(seed).normal(size=(30, d))
    own, shared, _ = model._gap_sums(theta, gaps.Gaps(np.arange(30), y.T.copy()))
    np.testing.assert_allclose(model.layout.pack(own, shared)[0], model.e_total(theta, y), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("covariance", [name for name in COVARIANCES if name != "known"])
def test_em_climbs(covariance):
    """The likelihood of what was seen never falls."""
    model, theta = model_and_theta(covariance, 2, 3, 5)
    y, losses = rows_with_gaps(300, 3, 0.3, 2), []
    for _ in range(15):
        losses.append(-model.log_likelihood(theta, y).mean())
        theta = model.maximise(model.e_total(theta, y) / len(y))
    assert (np.diff(losses) < 1e-9).all() and losses[-1] < losses[0] - 0.01


def test_rows_that_are_refused():
    model, _ = model_and_theta("full")
    model.check_rows(rows_with_gaps(20, 4, 0.4))
    with pytest.raises(PopulationError, match="Row 1 has no entry at all"):
        model.check_rows(np.array([[np.nan, 1, 2, 3], [np.nan] * 4]))
    with pytest.raises(PopulationError, match="Row 0, column 2 is infinite"):
        model.check_rows(np.array([[np.nan, 1, np.inf, 3]]))
    plain, _ = model_and_theta("full", missing=False)
    with pytest.raises(PopulationError, match="Row 0, column 0 is not finite"):
        plain.check_rows(np.array([[np.nan, 1, 2, 3]]))


# --- starts -----------------------------------------------------------------------------------------------------------


def test_distances_are_scaled_up_to_all_columns():
    y = np.array([[1.0, np.nan, 3.0], [0.0, 0.0, 0.0]])
    assert squared_distances(y, np.array([[0.0, 5.0, 1.0], [9.0, 9.0, 9.0]])).tolist() == [(1 + 4) * 3 / 2, 26.0]


def test_clusters_count_the_entries_of_each_column():
    y = np.array([[1.0, np.nan], [3.0, 4.0], [np.nan, 6.0], [100.0, 100.0]])
    centres = np.array([[2.0, 4.0], [99.0, 99.0]])
    sums = cluster_sums(y, centres, gaps=True)
    assert sums[0].tolist() == [3, 0, 2, 2, 4, 2, 2] and sums[1].tolist() == [1, 1, 1, 1, 1, 1, 1]
    assert lloyd_step(centres, sums).tolist() == [[2, 5], [100, 100]]
    model = GaussianMixture(2, 2, "diag")
    theta = parameters_from_clusters(model, centres, sums, np.zeros(2), np.ones(2))
    assert theta["means"].tolist() == [[2, 5], [100, 100]]
    np.testing.assert_allclose(theta["covariances"][0], [(2 + 5) / (2 + 5), (2 + 5) / (2 + 5)])


def test_without_gaps_the_sums_are_those_of_before():
    y, centres = np.random.default_rng(0).normal(size=(40, 3)), np.eye(3)
    assert np.array_equal(cluster_sums(y, centres, gaps=True)[:, :7], cluster_sums(y, centres))
    assert np.array_equal(
        lloyd_step(centres, cluster_sums(y, centres, gaps=True)), lloyd_step(centres, cluster_sums(y, centres))
    )
