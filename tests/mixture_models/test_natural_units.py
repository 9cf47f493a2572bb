"""Natural units: a linear map with an exact inverse, whose squared norm is what a difference costs."""

from dataclasses import replace

import numpy as np
import pytest

from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.mixture import Mixture
from fedcore.methods.mixture_models.natural_regression import RegressionUnits
from fedcore.methods.mixture_models.natural_units import NaturalUnits, Units, units_at
from fedcore.methods.mixture_models.packing import pack_symmetric, unpack_symmetric
from fedcore.methods.mixture_models.regression import RegressionMixture
from tests.mixture_models.cases import case
from tests.mixture_models.natural import natural

COVARIANCES = ("known", "spherical", "diag", "tied", "full")


OTHERS = ("regression", "regression-intercept", "poisson", "multinomial", "bernoulli")


def units(name: str) -> Units:
    made = case(name)
    return units_at(made.model, made.theta, np.zeros(0))


def differences(model: Mixture, count: int, seed: int = 0) -> np.ndarray:
    """Their weights add up to 0, as those of all differences of statistics of rows do."""
    d = np.random.default_rng(seed).standard_normal((count, model.q))
    d[:, : model.components] -= d[:, : model.components].mean(axis=1, keepdims=True)
    return d


@pytest.mark.parametrize("name", (*COVARIANCES, *OTHERS))
def test_linear_and_exactly_invertible(name):
    u = units(name)
    d = np.random.default_rng(1).standard_normal((7, u.model.q))
    z = u.forward(d)
    close = 1e-13 * np.abs(z).max() * np.abs(u.backward(np.eye(u.model.q))).max()
    np.testing.assert_allclose(u.forward(2 * d[:3] - d[3:6]), 2 * z[:3] - z[3:6], rtol=0, atol=close)
    np.testing.assert_allclose(u.backward(z), d, rtol=0, atol=close)
    np.testing.assert_allclose(u.forward(u.backward(d)), d, rtol=0, atol=close)
    assert u.forward(d[:0]).shape == (0, u.model.q)


@pytest.mark.parametrize("name", (*COVARIANCES, *OTHERS))
def test_a_client_is_a_function_of_its_own_row(name):
    u = units(name)
    d = differences(u.model, 9)
    for map_ in (u.forward, u.backward):
        together = map_(d)
        assert all(np.array_equal(map_(d[i : i + 1])[0], together[i]) for i in range(9))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_squared_sizes_are_those_of_the_images_of_single_numbers(covariance):
    u = units(covariance)
    model = u.model
    off = replace(model, centre=model.centre + np.random.default_rng(2).standard_normal(model.features))
    for own in (u, NaturalUnits(off, u.theta)):
        np.testing.assert_allclose(own.squared_sizes(), (own.forward(np.eye(model.q)) ** 2).sum(axis=1), rtol=1e-10)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_half_the_squared_norm_is_the_loss(covariance):
    """Second differences of the expected log-likelihood of the complete data, along the path of the M-step."""
    u = units(covariance)
    model, s = u.model, u.model.statistic_of(u.theta)
    for d in differences(model, 5):
        d = d / np.linalg.norm(u.forward(d[None]))
        if covariance == "tied":  # not recentred: only where the between-component part stays
            counts, first, second = u._split(d[None])
            cross = np.einsum("gi,gj->ij", u._mu, first[0] - 0.5 * u._mu * counts[0][:, None])
            expected = u.forward(d[None])[0]
            moved = unpack_symmetric(second[0], model.features) - cross - cross.T
            white = np.linalg.solve(u._factor, np.linalg.solve(u._factor, moved).T)
            expected[-len(second[0]) :] = pack_symmetric(white) / np.sqrt(2)
        else:
            expected = u.forward(d[None])[0]

        def loss(step, d=d):
            phi, psi = natural(model, model.maximise(s + step * d))
            return psi - float(s @ phi)

        h = 1e-3
        curvature = (loss(h) - 2 * loss(0) + loss(-h)) / h**2
        assert curvature == pytest.approx(expected @ expected, rel=2e-3)


@pytest.mark.parametrize("name", OTHERS)
def test_half_the_squared_norm_is_the_loss_of_other_mixtures(name):
    """Without a penalty. Inputs of regressions cost nothing beside their residuals; nor do tokens of a component that
    are more than those of its rows, in proportion."""
    made = case(name)
    none = {"a": 0.0} | ({"b": 0.0} if name == "poisson" else {})
    none |= {"ridge": 0.0, "nu": 0.0, "lam": 0.0} if name.startswith("regression") else {}
    model = replace(made.model, **none)
    u, s = units_at(model, made.theta, np.zeros(0)), model.statistic_of(made.theta)
    for d in differences(model, 5):
        d = d / np.linalg.norm(u.forward(d[None]))
        z = u.forward(d[None])[0]
        cost = z @ z
        parts, roots = model.layout.unpack(z), np.sqrt(made.theta["weights"])
        if name.startswith("regression"):
            cost -= np.sum(parts[1] ** 2)
        if name == "multinomial":
            counts, first = model.layout.unpack(d)
            more = first.sum(axis=1) - model.length * counts[:, 0]
            cost -= np.sum((more / roots) ** 2) / model.length

        def loss(step, d=d):
            phi, psi = natural(model, model.maximise(s + step * d))
            return psi - float(s @ phi)

        h = 3e-4
        curvature = (loss(h) - 2 * loss(0) + loss(-h)) / h**2
        assert curvature == pytest.approx(cost, rel=2e-3)


def test_units_of_regressions_do_not_depend_on_those_of_the_columns():
    """A column a thousand times as large, which S says."""
    rng = np.random.default_rng(0)
    u = np.column_stack([rng.normal(2.0, 3.0, 50), np.ones(50)])
    rows = np.column_stack([u[:, 0], u @ np.array([1.0, 2.0]) + rng.normal(size=50)])
    numbers = []
    for factor in (1.0, 1000.0):
        model, y = RegressionMixture(2, 2, True), rows * np.array([factor, 1.0])
        theta = {"weights": np.array([0.4, 0.6]), "coefficients": np.array([[1.0, 2.0], [-1.0, 0.5]])}
        theta = {**theta, "coefficients": theta["coefficients"] / np.array([factor, 1.0]), "variances": np.ones(2)}
        s = model.e_total(theta, y) / len(y)
        own = model.e_mean(theta, y, np.array([0, 5, 20, 50]))
        numbers.append(RegressionUnits(model, model.maximise(s), s).forward(own - s))
    np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ("poisson", "multinomial", "bernoulli"))
def test_counts_that_no_rows_have_are_cut_back(name):
    """To a fifth of the rate; a statistic that rows can have stays."""
    u = units(name)
    s = case(name).model.e_total(u.theta, case(name).y) / 60
    near = u.possible(s)
    np.testing.assert_array_equal(u.possible(near), near)
    assert np.mean(near == s) > 0.7
    counts, first = u.model.layout.unpack(s)
    first[0, 0] = -10.0
    cut = u.model.layout.unpack(u.possible(s))[1]
    means = u._means * counts
    assert cut[0, 0] == pytest.approx(0.2 * means[0, 0]) and u.model.admissible(u.possible(s))
    if name == "bernoulli":
        first[0, 0] = 10.0
        cut = u.model.layout.unpack(u.possible(s))[1]
        assert counts[0, 0] - cut[0, 0] == pytest.approx(0.2 * (counts - means)[0, 0])


def test_models_without_natural_units_are_named():
    with pytest.raises(TypeError, match="GaussianImputer has no natural units"):
        units_at(case("imputer").model, case("imputer").theta, np.zeros(0))


def test_worked_by_hand():
    """One component, N(1, 4): a mean that moves by a standard deviation is 1, in any units of the rows."""
    model = GaussianMixture(1, 1, "full")
    u = NaturalUnits(model, {"weights": np.ones(1), "means": np.ones((1, 1)), "covariances": np.full((1, 1, 1), 4.0)})
    # E x from 1 to 3 with the variance left at 4: E x^2 from 5 to 13; about the old mean the second moment grows by 4
    np.testing.assert_allclose(u.forward(np.array([[0.0, 2.0, 8.0]])), [[0.0, 1.0, 4 / 4 / np.sqrt(2)]])
