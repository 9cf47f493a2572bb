"""Mixtures of Student-t distributions, against scipy's density and formulas written out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_t
from scipy.stats import t as student_t

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputation import Imputation
from fedcore.methods.mixture_models.packing import pack_symmetric
from fedcore.methods.mixture_models.student import DEGREES, StudentMixture, degrees_in

NONE = np.zeros(0)
COVARIANCES = ("full", "diag", "spherical")


def model_and_theta(covariance="full", degrees=4.0, components=2, d=3, seed=0, **more):
    generator = np.random.default_rng(seed)
    factors = generator.normal(size=(components, d, d)) / 2 + np.eye(d)
    full = factors @ np.swapaxes(factors, 1, 2)
    variances = np.diagonal(full, axis1=1, axis2=2)
    theta = {
        "weights": generator.dirichlet(np.ones(components) * 3),
        "means": generator.normal(0, 2, (components, d)),
        "covariances": {"full": full, "diag": variances, "spherical": variances[:, 0]}[covariance],
        DEGREES: np.array([degrees]),
    }
    model = StudentMixture(components, d, covariance, centre=np.ones(d) / 2, missing=True, degrees=degrees, **more)
    return model, theta


def dense(model, theta):
    """(G, d, d) the scale matrix of every component."""
    d = model.features
    return [own if model.covariance == "full" else own * np.eye(d) for own in theta["covariances"]]


def by_scipy(model, theta, row):
    """(G,) ln(pi_g f_g) of what is there of a row."""
    o = np.flatnonzero(~np.isnan(row))
    parts = zip(theta["weights"], theta["means"], dense(model, theta), strict=True)
    return np.array(
        [np.log(w) + multivariate_t(m[o], s[np.ix_(o, o)], model.degrees).logpdf(row[o]) for w, m, s in parts]
    )


def rows_of(model, theta, n, generator):
    """(n, d) rows of the mixture."""
    g = generator.choice(model.components, n, p=theta["weights"])
    lower = np.linalg.cholesky(np.stack(dense(model, theta)))[g]
    normal = np.einsum("nij,nj->ni", lower, generator.standard_normal((n, model.features)))
    return theta["means"][g] + normal / np.sqrt(generator.chisquare(model.degrees, n) / model.degrees)[:, None]


def with_gaps(y, generator, share=0.3):
    gaps = generator.random(y.shape) < share
    gaps[gaps.all(axis=1), 0] = False
    return np.where(gaps, np.nan, y)


@pytest.mark.parametrize("far", [1.0, 1e3, 1e8])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_log_densities_are_scipys_near_and_far(covariance, far):
    model, theta = model_and_theta(covariance)
    generator = np.random.default_rng(1)
    y = with_gaps(far * generator.normal(size=(40, 3)), generator)
    y[:10] = far * generator.normal(size=(10, 3))
    found = model.log_likelihood(theta, y)
    joint = np.array([by_scipy(model, theta, row) for row in y])
    np.testing.assert_allclose(found, np.logaddexp.reduce(joint, axis=1), rtol=1e-9)
    shares = model.personalise(theta, y)["responsibilities"]
    expected = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    np.testing.assert_allclose(shares, expected, rtol=1e-6, atol=1e-9)


def test_many_degrees_of_freedom_are_a_gaussian():
    """At a squared distance delta they differ by about delta^2 / (4 nu)."""
    model, theta = model_and_theta(degrees=1e9)
    y = np.random.default_rng(2).normal(size=(50, 3))
    normal = GaussianMixture(2, 3, "full")
    np.testing.assert_allclose(model.log_likelihood(theta, y), normal.log_likelihood(theta, y), atol=1e-4)


def test_a_step_by_hand():
    """One column, 3 degrees of freedom, rows 0 and 2, mean 0 and scale 1: w = 4 / 3 and 4 / 7, so that the mean is
    (8 / 7) / (40 / 21) = 0.6, and the scale (16 / 7 - 24 / 35) / 2 = 0.8."""
    model = StudentMixture(1, 1, "full", degrees=3.0)
    theta = {"weights": np.ones(1), "means": np.zeros((1, 1)), "covariances": np.ones((1, 1, 1)), DEGREES: [3.0]}
    s = model.e_total(theta, np.array([[0.0], [2.0]])) / 2
    np.testing.assert_allclose(s, [1.0, 20 / 21, 4 / 7, 8 / 7], rtol=1e-14)
    after = model.maximise(s)
    np.testing.assert_allclose([after["means"][0, 0], after["covariances"][0, 0, 0]], [0.6, 0.8], rtol=1e-14)
    assert after["weights"] == [1.0] and after[DEGREES] == [3.0]


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_statistics_of_rows_with_gaps(covariance):
    """By the conditional distribution of a textbook: w (1, x^, x^ x^') and C in what is missing."""
    model, theta = model_and_theta(covariance)
    generator = np.random.default_rng(3)
    y, d = with_gaps(generator.normal(0, 3, (30, 3)), generator), 3
    expected = np.zeros(model.q)
    for row in y:
        o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
        joint = by_scipy(model, theta, row)
        r = np.exp(joint - np.logaddexp.reduce(joint))
        parts = []
        for share, mean, scale in zip(r, theta["means"], dense(model, theta), strict=True):
            x, left, off = row.copy(), np.zeros((d, d)), row[o] - mean[o]
            pull = np.linalg.solve(scale[np.ix_(o, o)], scale[np.ix_(o, m)]).T
            x[m] = mean[m] + pull @ off
            left[np.ix_(m, m)] = scale[np.ix_(m, m)] - pull @ scale[np.ix_(o, m)]
            w = (model.degrees + len(o)) / (model.degrees + off @ np.linalg.solve(scale[np.ix_(o, o)], off))
            x = x - model.centre
            second = w * np.outer(x, x) + left
            packed = {"full": pack_symmetric(second), "diag": np.diagonal(second), "spherical": [np.trace(second)]}
            parts.append(share * np.concatenate([[1.0, w], w * x, packed[covariance]]))
        expected += model.layout.pack(np.array(parts))
    np.testing.assert_allclose(model.e_total(theta, y), expected, rtol=1e-9)
    means, _ = model.client_means(theta, y, np.array([0, 4, 4, 17, 30]))
    np.testing.assert_allclose(np.array([4, 0, 13, 13]) @ means, expected, rtol=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_gradient_is_scipys(covariance):
    """Fisher's identity: the slope of scipy's log density along a direction, by central differences, is that of the
    expected log density of complete rows at their statistics."""
    model, theta = model_and_theta(covariance)
    generator = np.random.default_rng(4)
    y = with_gaps(generator.normal(0, 3, (20, 3)), generator)
    step = generator.normal(size=(2, 3))

    def scipys(by):
        moved = theta | {"means": theta["means"] + by * step}
        return sum(np.logaddexp.reduce(by_scipy(model, moved, row)) for row in y)

    counts, masses, first, *_ = model.layout.unpack(model.e_total(theta, y))
    off = first - masses * (theta["means"] - model.centre)
    slope = sum(b @ np.linalg.solve(s, a) for a, b, s in zip(off, step, dense(model, theta), strict=True))
    assert counts.sum() == pytest.approx(len(y))
    assert (scipys(1e-5) - scipys(-1e-5)) / 2e-5 == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("covariance", COVARIANCES)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.floats(2.1, 50.0), st.sampled_from([0.0, 0.4]), st.sampled_from([0.0, 0.05]))
def test_em_never_raises_the_objective(covariance, seed, degrees, gaps, lam):
    generator = np.random.default_rng(seed)
    model, theta = model_and_theta(covariance, degrees, seed=seed % 100, lam=lam)
    y = with_gaps(generator.standard_t(2, (60, 3)) * generator.choice([0.1, 1, 30], (60, 1)), generator, gaps)
    before = np.inf
    for _ in range(6):
        (total,), (values,) = model.e_totals_and_log_likelihoods([theta], y)
        objective = model.penalty(theta) - values.mean()
        assert objective <= before + 1e-9
        theta, before = model.maximise(total / len(y)), objective


def test_parameters_come_back():
    """One column of 40,000 rows with 5 degrees of freedom. A row has information (nu + 1) / ((nu + 3) scale) about the
    mean and nu / (2 (nu + 3)) about the logarithm of the scale: both are within 5 standard errors."""
    n, nu, scale = 40_000, 5.0, 2.0
    y = 3.0 + np.sqrt(scale) * student_t(nu).rvs((n, 1), random_state=np.random.default_rng(5))
    model = StudentMixture(1, 1, "full", degrees=nu)
    theta = {"weights": np.ones(1), "means": np.zeros((1, 1)), "covariances": np.ones((1, 1, 1)), DEGREES: [nu]}
    for _ in range(200):
        theta = model.maximise(model.e_total(theta, y) / n)
    assert abs(theta["means"][0, 0] - 3.0) < 5 * np.sqrt((nu + 3) * scale / ((nu + 1) * n))
    assert abs(np.log(theta["covariances"][0, 0, 0] / scale)) < 5 * np.sqrt(2 * (nu + 3) / (nu * n))


def test_a_far_row_hardly_moves_a_component():
    """Its w falls with the square of its distance: the mean of the others is where it is, however far the row."""
    model, theta = model_and_theta(components=1, d=2)
    y = np.random.default_rng(6).normal(size=(100, 2))
    found = []
    for far in (1e3, 1e6):
        after = theta
        for _ in range(100):
            rows = np.vstack([y, [[far, far]]])
            after = model.maximise(model.e_total(after, rows) / len(rows))
        found.append(after["means"][0])
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)
    assert np.abs(found[1] - y.mean(axis=0)).max() < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_intervals_and_draws_of_missing_entries(covariance):
    """20,000 rows of the mixture: what is hidden is in 90 % of the intervals, and below them in 5 %, within 5 standard
    errors. The same holds of draws."""
    model, theta = model_and_theta(covariance)
    model = replace(model, centre=None)
    generator = np.random.default_rng(7)
    y = rows_of(model, theta, 20_000, generator)
    gaps = with_gaps(y, generator)
    hidden = np.isnan(gaps)
    hidden[np.cumsum(hidden, axis=1) > 1] = False  # one of each row: entries of a row depend on each other
    found = Imputation(model.components_of(theta), NONE, NONE)
    low, high = found.intervals(gaps, 0.9)
    n = hidden.sum()
    for values in (y, found.draws(gaps, generator)):
        within = ((low <= values) & (values <= high))[hidden].mean()
        below = (values < low)[hidden].mean()
        assert abs(within - 0.9) < 5 * np.sqrt(0.09 / n) and abs(below - 0.05) < 5 * np.sqrt(0.0475 / n)


def test_what_is_no_student_mixture_is_refused():
    for degrees in (2.0, -1.0, np.inf, np.nan):
        with pytest.raises(ConfigError, match="degrees of freedom"):
            StudentMixture(2, 3, "full", degrees=degrees)
    for covariance in ("tied", "known"):
        with pytest.raises(ConfigError, match=covariance):
            StudentMixture(2, 3, covariance)
    model, theta = model_and_theta()
    with pytest.raises(ConfigError, match="4 degrees of freedom, and the model 5"):
        StudentMixture(2, 3, "full", degrees=5.0).check_theta(theta)
    assert degrees_in(theta) == 4.0 and degrees_in({}) is None
    with pytest.raises(ConfigError, match="above 2"):
        degrees_in({DEGREES: np.array([1.5])})
