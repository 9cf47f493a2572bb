"""Natural units: a linear map with an exact inverse, whose squared norm is what a difference costs."""

import numpy as np
import pytest

from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.natural_units import NaturalUnits
from fedcore.methods.mixture_models.packing import pack_symmetric, unpack_symmetric
from tests.mixture_models.cases import case
from tests.mixture_models.natural import natural

COVARIANCES = ("known", "spherical", "diag", "tied", "full")


def units(covariance: str) -> NaturalUnits:
    made = case(covariance)
    return NaturalUnits(made.model, made.theta)


def differences(model: GaussianMixture, count: int, seed: int = 0) -> np.ndarray:
    """Their weights add up to 0, as those of all differences of statistics of rows do."""
    d = np.random.default_rng(seed).standard_normal((count, model.q))
    d[:, : model.components] -= d[:, : model.components].mean(axis=1, keepdims=True)
    return d


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_linear_and_exactly_invertible(covariance):
    u = units(covariance)
    d = np.random.default_rng(1).standard_normal((7, u.model.q))
    z = u.forward(d)
    close = 1e-13 * np.abs(z).max() * np.abs(u.backward(np.eye(u.model.q))).max()
    np.testing.assert_allclose(u.forward(2 * d[:3] - d[3:6]), 2 * z[:3] - z[3:6], rtol=0, atol=close)
    np.testing.assert_allclose(u.backward(z), d, rtol=0, atol=close)
    np.testing.assert_allclose(u.forward(u.backward(d)), d, rtol=0, atol=close)
    assert u.forward(d[:0]).shape == (0, u.model.q)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_client_is_a_function_of_its_own_row(covariance):
    u = units(covariance)
    d = differences(u.model, 9)
    for map_ in (u.forward, u.backward):
        together = map_(d)
        assert all(np.array_equal(map_(d[i : i + 1])[0], together[i]) for i in range(9))


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


def test_worked_by_hand():
    """One component, N(1, 4): a mean that moves by a standard deviation is 1, in any units of the rows."""
    model = GaussianMixture(1, 1, "full")
    u = NaturalUnits(model, {"weights": np.ones(1), "means": np.ones((1, 1)), "covariances": np.full((1, 1, 1), 4.0)})
    # E x from 1 to 3 with the variance left at 4: E x^2 from 5 to 13; about the old mean the second moment grows by 4
    np.testing.assert_allclose(u.forward(np.array([[0.0, 2.0, 8.0]])), [[0.0, 1.0, 4 / 4 / np.sqrt(2)]])
