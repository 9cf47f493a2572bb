"""Means, draws and intervals of missing entries, against the conditional normals written out."""

import numpy as np
import pytest
from scipy.stats import norm

from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputation import Imputation

WEIGHTS = np.array([0.5, 0.3, 0.2])
NONE = np.zeros(0)


def model_and_theta(covariance, d=3):
    generator = np.random.default_rng(5)
    factors = generator.normal(size=(3, d, d)) / 2 + np.eye(d)
    full = factors @ np.swapaxes(factors, 1, 2)
    variances = np.diagonal(full, axis1=1, axis2=2)
    shapes = {"full": full, "tied": full[0], "diag": variances, "spherical": variances[:, 0]}
    theta = {"weights": WEIGHTS, "means": generator.normal(0, 3, (3, d)), "covariances": shapes[covariance]}
    as_full = {
        "full": full,
        "tied": np.stack([full[0]] * 3),
        "diag": np.stack([np.diag(v) for v in variances]),
        "spherical": np.stack([np.eye(d) * v[0] for v in variances]),
    }[covariance]
    return GaussianMixture(3, d, covariance, missing=True), theta, as_full


def conditional(theta, covariances, row):
    """(weights (G,), means (G, k), covariances (G, k, k)) of the missing entries of a row."""
    m, o = np.isnan(row), ~np.isnan(row)
    logs, means, left = [], [], []
    for weight, mean, sigma in zip(theta["weights"], theta["means"], covariances, strict=True):
        inverse = np.linalg.inv(sigma[np.ix_(o, o)])
        off = row[o] - mean[o]
        log_det = np.linalg.slogdet(2 * np.pi * sigma[np.ix_(o, o)])[1]
        logs.append(np.log(weight) - 0.5 * (off @ inverse @ off + log_det))
        pull = sigma[np.ix_(m, o)] @ inverse
        means.append(mean[m] + pull @ off)
        left.append(sigma[np.ix_(m, m)] - pull @ sigma[np.ix_(o, m)])
    r = np.exp(np.array(logs) - max(logs))
    return r / r.sum(), np.array(means), np.array(left)


ROWS = np.array([[1.0, np.nan, -0.5], [np.nan, np.nan, 2.0], [0.3, 0.2, 0.1], [np.nan, 1.5, np.nan], [np.nan] * 3])


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
def test_means_and_intervals_are_those_of_the_conditional_mixture(covariance):
    model, theta, full = model_and_theta(covariance)
    found = Imputation(model.components_of(theta), NONE, NONE)
    filled, (low, high) = found.means(ROWS), found.intervals(ROWS, 0.9)
    seen = ~np.isnan(ROWS)
    for part in (filled, low, high):
        np.testing.assert_array_equal(part[seen], ROWS[seen])
    for number, row in enumerate(ROWS):
        if not np.isnan(row).any():
            continue
        r, means, left = conditional(theta, full, row)
        np.testing.assert_allclose(filled[number, np.isnan(row)], r @ means, rtol=1e-9)
        for at, column in enumerate(np.flatnonzero(np.isnan(row))):
            for part, share in ((low, 0.05), (high, 0.95)):
                below = r @ norm.cdf(part[number, column], means[:, at], np.sqrt(left[:, at, at]))
                assert below == pytest.approx(share, abs=1e-9)


def test_standardised_columns_change_nothing():
    model, theta, _ = model_and_theta("full")
    centre, scale = np.array([100.0, -3.0, 0.0]), np.array([7.0, 0.01, 1e6])
    plain = Imputation(model.components_of(theta), NONE, NONE)
    scaled = Imputation(model.components_of(theta), centre, scale)
    given = ROWS * scale + centre
    np.testing.assert_allclose(scaled.means(given), plain.means(ROWS) * scale + centre, rtol=1e-9)
    for one, other in zip(scaled.intervals(given, 0.5), plain.intervals(ROWS, 0.5), strict=True):
        np.testing.assert_allclose(one, other * scale + centre, rtol=1e-9)


@pytest.mark.parametrize("covariance", ["full", "tied", "diag", "spherical"])
def test_draws_have_the_moments_of_the_conditional_mixture(covariance):
    """40,000 draws of the entries of one row: means and covariances within 5 standard errors."""
    model, theta, full = model_and_theta(covariance)
    n, row = 40_000, ROWS[1]
    drawn = Imputation(model.components_of(theta), NONE, NONE).draws(np.tile(row, (n, 1)), np.random.default_rng(0))
    np.testing.assert_array_equal(drawn[:, 2], row[2])
    drawn = drawn[:, :2]
    r, means, left = conditional(theta, full, row)
    mean = r @ means
    off = means - mean
    covariance = np.einsum("g,gij->ij", r, left) + np.einsum("g,gi,gj->ij", r, off, off)
    error = np.sqrt(np.diagonal(covariance) / n)
    assert (np.abs(drawn.mean(axis=0) - mean) < 5 * error).all()
    products = np.einsum("ni,nj->nij", drawn - mean, drawn - mean)
    assert (np.abs(products.mean(axis=0) - covariance) < 5 * products.std(axis=0) / np.sqrt(n)).all()


def test_rows_without_gaps_come_back():
    model, theta, _ = model_and_theta("full")
    found = Imputation(model.components_of(theta), NONE, NONE)
    rows = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(found.means(rows), rows)
    np.testing.assert_array_equal(found.draws(rows, np.random.default_rng(0)), rows)
    assert found.means(rows[:0]).shape == (0, 3)
