import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.mixture_models.counts import RATE_FLOOR, BernoulliMixture, MultinomialMixture, PoissonMixture
from fedcore.methods.mixture_models.regression import RegressionMixture

# --- regression -------------------------------------------------------------------------------------------------------


def crossed(n=400, seed=0):
    """Two lines, v = 1 + 2 u and v = -u."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(-2, 2, n)
    first = rng.random(n) < 0.4
    v = np.where(first, 1 + 2 * u, -u) + 0.1 * rng.standard_normal(n)
    return np.column_stack([u, v]), first


def test_one_component_is_least_squares():
    y, _ = crossed()
    model = RegressionMixture(1, 2, intercept=True)
    theta = {"weights": np.ones(1), "coefficients": np.zeros((1, 2)), "variances": np.ones(1)}
    new = model.maximise(model.e_total(theta, y) / len(y))
    design = np.column_stack([y[:, 0], np.ones(len(y))])
    b, residual, _, _ = np.linalg.lstsq(design, y[:, 1])
    np.testing.assert_allclose(new["coefficients"][0], b, atol=1e-12)
    np.testing.assert_allclose(new["variances"], residual / len(y), rtol=1e-10)


def test_the_ridge_leaves_the_intercept_alone():
    y, _ = crossed()
    model = RegressionMixture(1, 2, intercept=True, ridge=1e12)
    theta = {"weights": np.ones(1), "coefficients": np.zeros((1, 2)), "variances": np.ones(1)}
    new = model.maximise(model.e_total(theta, y) / len(y))
    np.testing.assert_allclose(new["coefficients"][0], [0, y[:, 1].mean()], atol=1e-8)


def test_two_lines_are_found():
    y, first = crossed()
    model = RegressionMixture(2, 2, intercept=True)
    theta = {
        "weights": np.array([0.5, 0.5]),
        "coefficients": np.array([[1.0, 0.5], [-0.5, 0.0]]),
        "variances": np.ones(2),
    }
    for _ in range(50):
        theta = model.maximise(model.e_total(theta, y) / len(y))
    # 5 standard errors: 0.1 / sqrt(160) / 1.15 for slopes, 0.1 / sqrt(160) for intercepts, 0.49 / 20 for weights
    np.testing.assert_allclose(theta["coefficients"], [[2, 1], [-1, 0]], atol=5 * 0.008)
    np.testing.assert_allclose(theta["weights"], [first.mean(), 1 - first.mean()], atol=5 * 0.025)
    np.testing.assert_allclose(np.sqrt(theta["variances"]), 0.1, atol=5 * 0.1 / np.sqrt(2 * 160))
    label = model.personalise(theta, y)["responsibilities"].argmax(axis=1)
    assert np.mean((label == 0) == first) > 0.9
    density = sum(
        w * stats.norm(b[0] * y[:, 0] + b[1], np.sqrt(v)).pdf(y[:, 1])
        for w, b, v in zip(theta["weights"], theta["coefficients"], theta["variances"], strict=True)
    )
    np.testing.assert_allclose(model.log_likelihood(theta, y), np.log(density), rtol=1e-10)


def test_a_perfect_fit_or_collinear_inputs_are_not_admissible():
    u = np.linspace(-1, 1, 30)
    theta = {"weights": np.ones(1), "coefficients": np.zeros((1, 1)), "variances": np.ones(1)}
    perfect = RegressionMixture(1, 2)
    y = np.column_stack([u, 2 * u])
    s = perfect.e_total(theta, y) / 30
    assert not perfect.admissible(s)
    assert all(np.isfinite(value).all() for value in perfect.maximise(s).values())
    assert RegressionMixture(1, 2, lam=1e-3).admissible(s)
    collinear = RegressionMixture(1, 3)
    y = np.column_stack([u, 2 * u, u**2])
    s = collinear.e_total(theta | {"coefficients": np.zeros((1, 2))}, y) / 30
    assert not collinear.admissible(s)
    assert all(np.isfinite(value).all() for value in collinear.maximise(s).values())


def test_regression_checks():
    y, _ = crossed(10)
    y[3, 1] = np.nan
    with pytest.raises(PopulationError, match="Row 3, column 1 is not finite"):
        RegressionMixture(2, 2).check_rows(y)
    for settings in ({"components": 0}, {"features": 1}, {"ridge": -1.0}, {"lam": float("nan")}):
        with pytest.raises(ConfigError):
            RegressionMixture(**{"components": 2, "features": 2} | settings)


# --- counts -----------------------------------------------------------------------------------------------------------


def mixture_density(weights, density):
    return np.log(sum(w * density(g) for g, w in enumerate(weights)))


def test_likelihoods_are_those_of_scipy():
    rng = np.random.default_rng(0)
    weights = np.array([0.4, 0.6])
    rates = rng.uniform(0.2, 4, (2, 3))
    y = rng.poisson(2, (20, 3)).astype(float)
    expected = mixture_density(weights, lambda g: stats.poisson(rates[g]).pmf(y).prod(axis=1))
    theta = {"weights": weights, "rates": rates}
    np.testing.assert_allclose(PoissonMixture(2, 3).log_likelihood(theta, y), expected, rtol=1e-11)

    p = rng.dirichlet(np.ones(3), 2)
    expected = mixture_density(weights, lambda g: stats.multinomial(y.sum(axis=1).astype(int), p[g]).pmf(y.astype(int)))
    theta = {"weights": weights, "probabilities": p}
    np.testing.assert_allclose(MultinomialMixture(2, 3).log_likelihood(theta, y), expected, rtol=1e-10)

    b = (y > 1).astype(float)
    expected = mixture_density(weights, lambda g: stats.bernoulli(p[g]).pmf(b.astype(int)).prod(axis=1))
    np.testing.assert_allclose(BernoulliMixture(2, 3).log_likelihood(theta, b), expected, rtol=1e-11)


def test_one_component_is_the_penalised_mean():
    y = np.array([[2.0, 0, 1], [4, 0, 1]])
    weights = np.ones(1)
    poisson = PoissonMixture(1, 3, a=0.5, b=1.0)
    s = poisson.e_total({"weights": weights, "rates": np.ones((1, 3))}, y) / 2
    np.testing.assert_allclose(poisson.maximise(s)["rates"], [[3.5 / 2, 0.5 / 2, 1.5 / 2]])
    half = {"weights": weights, "probabilities": np.full((1, 3), 1 / 3)}
    multinomial = MultinomialMixture(1, 3, a=0.5)
    np.testing.assert_allclose(multinomial.maximise(s)["probabilities"], [[3.5 / 5.5, 0.5 / 5.5, 1.5 / 5.5]])
    bernoulli = BernoulliMixture(1, 3, a=0.5)
    s = bernoulli.e_total(half, (y > 2).astype(float)) / 2
    np.testing.assert_allclose(bernoulli.maximise(s)["probabilities"], [[1 / 2, 1 / 4, 1 / 4]])


@pytest.mark.parametrize("model", [PoissonMixture(2, 3), MultinomialMixture(2, 3), BernoulliMixture(2, 3)])
def test_counts_never_seen_stay_possible(model):
    y = np.array([[1.0, 0, 1], [0, 0, 1], [1, 0, 0]])
    name = "rates" if isinstance(model, PoissonMixture) else "probabilities"
    theta = {"weights": np.full(2, 0.5), name: np.array([[0.2, 0.3, 0.4], [0.5, 0.4, 0.1]])}
    s = model.e_total(theta, y) / 3
    assert model.admissible(s)
    new = model.maximise(s)
    assert (new[name][:, 1] >= RATE_FLOOR * 0.99).all()
    assert np.isfinite(model.log_likelihood(new, y + [[0, 1, 0]])).all()
    s[3] = -0.1  # the first component's second feature
    assert not model.admissible(s)


def test_a_component_without_tokens():
    model = MultinomialMixture(2, 3)
    s = np.array([0.5, 0.5, 0, 0, 0, 1, 1, 2.0])
    assert not model.admissible(s)
    np.testing.assert_allclose(model.maximise(s)["probabilities"], [[1 / 3] * 3, [0.25, 0.25, 0.5]])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("model", "bad", "why"),
    [
        (PoissonMixture(2, 4), -1.0, "is negative"),
        (MultinomialMixture(2, 4), np.nan, "is not finite"),
        (BernoulliMixture(2, 4), 2.0, "is neither 0 nor 1"),
        (PoissonMixture(2, 4), np.inf, "is not finite"),
    ],
)
def test_bad_counts_are_named_by_row_and_column(model, bad, why, sparse):
    y = np.eye(4)[[0, 1, 2, 3, 1]]
    y[3, 2] = bad
    with pytest.raises(PopulationError) as error:
        model.check_rows(sp.csr_matrix(y) if sparse else y)
    assert str(error.value).startswith(f"Row 3, column 2 {why}.")


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonMixture(0, 3),
        lambda: PoissonMixture(2, 0),
        lambda: PoissonMixture(2, 3, a=-1.0),
        lambda: PoissonMixture(2, 3, b=-1.0),
        lambda: MultinomialMixture(2, 3, length=0.0),
    ],
)
def test_settings_of_counts_out_of_range(make):
    with pytest.raises(ConfigError):
        make()


def test_parameters_on_the_edge_are_no_start():
    weights = np.full(2, 0.5)
    for model, name, values in (
        (PoissonMixture(2, 2), "rates", [[0.0, 1], [1, 1]]),
        (BernoulliMixture(2, 2), "probabilities", [[1.0, 0.5], [0.5, 0.5]]),
        (MultinomialMixture(2, 2), "probabilities", [[0.5, 0.6], [0.5, 0.5]]),
    ):
        with pytest.raises(ConfigError):
            model.check_theta({"weights": weights, name: np.array(values)})


def test_many_sparse_rows_in_several_tiles():
    y = sp.random(3000, 50, density=0.05, format="csr", random_state=0, data_rvs=lambda n: np.ones(n))
    model = PoissonMixture(3, 50, a=0.1)
    theta = {"weights": np.full(3, 1 / 3), "rates": np.random.default_rng(0).uniform(0.01, 0.2, (3, 50))}
    ptr = np.concatenate([[0], np.cumsum(np.random.default_rng(1).integers(0, 8, 700))])
    ptr = np.append(ptr[ptr < 3000], 3000)
    means = model.e_mean(theta, y, ptr)
    np.testing.assert_allclose(np.diff(ptr) @ means, model.e_total(theta, y), rtol=1e-10)
    np.testing.assert_allclose(means, model.e_mean(theta, y.toarray(), ptr), atol=1e-12)
