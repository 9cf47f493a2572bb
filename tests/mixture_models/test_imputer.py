import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.mixture_models.imputer import GaussianImputer
from fedcore.methods.mixture_models.packing import pack_symmetric


def incomplete(n=80, d=4, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((n, 2)) @ rng.standard_normal((2, d)) + 0.5 * rng.standard_normal((n, d)) + 2.0
    y[rng.random(y.shape) < 0.35] = np.nan
    y[3] = np.nan
    return y


def truth(d=4):
    rng = np.random.default_rng(9)
    a = rng.standard_normal((d, d))
    return {"mean": rng.normal(2, 0.5, d), "covariance": a @ a.T + 0.5 * np.eye(d)}


def slow(theta, y, centre):
    """Statistics, imputed rows and log-likelihoods, one row at a time, by the textbook."""
    statistics, imputed, logs = [], [], []
    mu, sigma = theta["mean"], theta["covariance"]
    for row in y:
        m = np.isnan(row)
        o = ~m
        x, c = row.copy(), np.zeros_like(sigma)
        if o.any():
            gain = sigma[np.ix_(m, o)] @ np.linalg.inv(sigma[np.ix_(o, o)])
            x[m] = mu[m] + gain @ (row[o] - mu[o])
            c[np.ix_(m, m)] = sigma[np.ix_(m, m)] - gain @ sigma[np.ix_(o, m)]
            logs.append(multivariate_normal(mu[o], sigma[np.ix_(o, o)]).logpdf(row[o]))
        else:
            x, c = mu.copy(), sigma
            logs.append(0.0)
        shifted = x - centre
        statistics.append(np.concatenate([shifted, pack_symmetric(np.outer(shifted, shifted) + c)]))
        imputed.append(x)
    return np.array(statistics), np.array(imputed), np.array(logs)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_against_one_row_at_a_time(dtype):
    y, theta, centre = incomplete().astype(dtype), truth(), np.array([1.0, 2, 3, 0])
    statistics, imputed, logs = slow(theta, y.astype(np.float64), centre)
    model = GaussianImputer(4, centre=centre)
    np.testing.assert_allclose(model.e_mean(theta, y, np.arange(81)), statistics, atol=1e-11)
    ptr = np.array([0, 5, 5, 6, 50, 80])
    expected = [statistics[a:b].mean(axis=0) if b > a else np.zeros(14) for a, b in zip(ptr, ptr[1:], strict=False)]
    np.testing.assert_allclose(model.e_mean(theta, y, ptr), expected, atol=1e-11)
    np.testing.assert_allclose(model.log_likelihood(theta, y), logs, atol=1e-11)
    outputs = model.personalise(theta, y)
    np.testing.assert_allclose(outputs["imputed"], imputed, atol=1e-11)
    assert np.array_equal(outputs["imputed"][~np.isnan(y)], y[~np.isnan(y)])


def test_complete_rows_give_the_sample_moments_at_once():
    y = np.random.default_rng(1).standard_normal((50, 3))
    model = GaussianImputer(3)
    new = model.maximise(model.e_total({"mean": np.zeros(3), "covariance": np.eye(3)}, y) / 50)
    np.testing.assert_allclose(new["mean"], y.mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(new["covariance"], np.cov(y.T, ddof=0), atol=1e-13)


def test_ppca_has_the_form_of_tipping_and_bishop():
    y = np.random.default_rng(1).standard_normal((200, 4)) * [3, 2, 1, 0.5]
    model = GaussianImputer(4, rank=2)
    new = model.maximise(model.e_total({"mean": np.zeros(4), "covariance": np.eye(4)}, y) / 200)
    sample = np.linalg.eigvalsh(np.cov(y.T, ddof=0))
    noise = sample[:2].mean()
    np.testing.assert_allclose(np.linalg.eigvalsh(new["covariance"]), [noise, noise, *sample[2:]], rtol=1e-10)


def test_imputation_beats_the_mean():
    """Ten columns of two factors: a missing entry follows from the others up to the noise."""
    rng = np.random.default_rng(2)
    full = rng.standard_normal((1500, 2)) @ rng.standard_normal((2, 10)) + 0.2 * rng.standard_normal((1500, 10))
    hole = rng.random(full.shape) < 0.2
    y = np.where(hole, np.nan, full)
    model = GaussianImputer(10, rank=2)
    theta = {"mean": np.nanmean(y, axis=0), "covariance": np.diag(np.nanvar(y, axis=0))}
    for _ in range(60):
        theta = model.maximise(model.e_total(theta, y) / len(y))
    residual = (model.personalise(theta, y)["imputed"] - full)[hole]
    assert residual.std() < 0.35 * full[hole].std()


def test_singular_covariances():
    y = np.tile([[1.0, 2.0]], (10, 1))
    model = GaussianImputer(2)
    s = model.e_total({"mean": np.zeros(2), "covariance": np.eye(2)}, y) / 10
    assert not model.admissible(s)
    new = model.maximise(s)
    assert np.isfinite(new["covariance"]).all()
    assert np.isfinite(model.e_total(new, np.array([[np.nan, 2.0]]))).all()
    assert GaussianImputer(2, lam=0.01).admissible(s)
    assert not GaussianImputer(2, lam=0.01).admissible(s, margin=0.02)


def test_checks():
    y = incomplete()
    y[4, 1] = np.inf
    with pytest.raises(PopulationError, match="Row 4, column 1 is infinite"):
        GaussianImputer(4).check_rows(y)
    for settings in ({"features": 0}, {"rank": 0}, {"rank": 4}, {"nu": -1.0}, {"lam": -1.0}, {"centre": np.zeros(3)}):
        with pytest.raises(ConfigError):
            GaussianImputer(**{"features": 4} | settings)
    with pytest.raises(ConfigError, match="positive definite"):
        GaussianImputer(4).check_theta(truth() | {"covariance": -np.eye(4)})
