"""Steps of EM with errors in them that are kept inside the domain, component by component."""

import numpy as np
import pytest

from fedcore.methods.mixture_models.gaussian import COVARIANCES, GaussianMixture
from fedcore.methods.mixture_models.mixture import LEAST_VARIANCE, LEAST_WEIGHT
from fedcore.methods.mixture_models.regression import RegressionMixture

SHAPES = {
    "full": np.array([[[2.0, 0.5], [0.5, 1.0]], np.eye(2)]),
    "tied": np.array([[2.0, 0.5], [0.5, 1.0]]),
    "diag": np.array([[2.0, 1.0], [1.0, 1.0]]),
    "spherical": np.array([2.0, 1.0]),
}
MEANS = np.array([[0.0, 0.0], [3.0, 1.0]])


def before(covariance: str):
    model = GaussianMixture(2, 2, covariance, lam=0.01, nu=0.1)
    theta = {"weights": np.array([0.4, 0.6]), "means": MEANS}
    return model, theta | ({} if covariance == "known" else {"covariances": SHAPES[covariance]})


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_step_inside_is_only_divided_by_the_sum_of_its_weights(covariance):
    model, theta = before(covariance)
    s = model.statistic_of(theta)
    near = theta | {"weights": np.array([0.2, 0.8]), "means": MEANS + 0.1}
    if covariance != "known":
        near["covariances"] = 0.1 * theta["covariances"]
    moved = model.statistic_of(near)
    np.testing.assert_allclose(model.nearest_inside(theta, s, moved)[0], moved, atol=1e-14)
    assert not model.nearest_inside(theta, s, moved)[1]
    own = 2 * (1 + 2 + {"full": 3, "diag": 2, "spherical": 1}.get(covariance, 0))
    scaled = moved.copy()
    scaled[:own] *= 1.25
    np.testing.assert_allclose(model.nearest_inside(theta, s, scaled)[0], moved, atol=1e-14)
    assert not np.shares_memory(model.nearest_inside(theta, s, scaled)[0], scaled)


@pytest.mark.parametrize("covariance", SHAPES)
def test_a_variance_keeps_a_fiftieth_of_what_it_was(covariance):
    """Errors make it negative in one direction of the first component; all others stay as they are."""
    model, theta = before(covariance)
    s = model.statistic_of(theta)
    broken = {
        "full": np.array([[[2.0, 0.5], [0.5, 0.0]], 0.5 * np.eye(2)]),
        "tied": np.array([[2.0, 0.5], [0.5, 0.0]]),
        "diag": np.array([[2.0, -0.3], [0.5, 0.5]]),
        "spherical": np.array([-0.3, 0.5]),
    }[covariance]
    moved = model.statistic_of(theta | {"covariances": broken})
    assert not model.admissible(moved)
    after, cut = model.nearest_inside(theta, s, moved)
    found = model.maximise(after)
    assert cut and model.admissible(after) and model.least_ratio(theta, found) == pytest.approx(LEAST_VARIANCE)
    np.testing.assert_allclose(found["weights"], theta["weights"])
    np.testing.assert_allclose(found["means"], theta["means"], atol=1e-12)
    if covariance == "diag":
        np.testing.assert_allclose(found["covariances"], [[2.0, LEAST_VARIANCE], [0.5, 0.5]])
    if covariance == "spherical":
        np.testing.assert_allclose(found["covariances"], [2.0 * LEAST_VARIANCE, 0.5])
    if covariance == "full":
        np.testing.assert_allclose(found["covariances"][1], 0.5 * np.eye(2), atol=1e-12)


def test_eigenvalues_are_floored_in_the_units_of_the_old_covariance():
    """Old covariance 4 I: after it diag(-1, 8) of which the first becomes 0.02 * 4; by hand."""
    model = GaussianMixture(1, 2, "full")
    theta = {"weights": np.ones(1), "means": np.zeros((1, 2)), "covariances": 4 * np.eye(2)[None]}
    moved = model.layout.join(np.ones(1), np.zeros(2), np.array([-1.0, 0.0, 8.0]))
    after, cut = model.nearest_inside(theta, model.statistic_of(theta), moved)
    assert cut
    np.testing.assert_allclose(after, [1, 0, 0, 0.08, 0, 8], atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_component_that_vanishes_keeps_its_parameters_and_a_twentieth_of_its_weight(covariance):
    model, theta = before(covariance)
    s = model.statistic_of(theta)
    gone = s.copy()
    for part in model.layout.unpack(gone)[: len(model.layout.kinds)]:
        part[0] *= -0.1
    after, cut = model.nearest_inside(theta, s, gone)
    found = model.maximise(after)
    kept = LEAST_WEIGHT * 0.4
    assert cut
    np.testing.assert_allclose(found["weights"], [kept / (kept + 0.6), 0.6 / (kept + 0.6)])
    np.testing.assert_allclose(found["means"], MEANS, atol=1e-12)


def test_regressions_keep_a_fiftieth_of_their_variance_and_of_their_inputs():
    """y = 2 u + e in component 0, with u of second moment 1 and e of variance 1. Its fit is perfect, or u is gone."""
    model = RegressionMixture(2, 2, lam=0.01)
    theta = {"weights": np.array([0.5, 0.5]), "coefficients": np.array([[2.0], [0.0]]), "variances": np.ones(2)}
    s = model.statistic_of(theta)
    good = model.nearest_inside(theta, s, s)
    np.testing.assert_allclose(good[0], s, atol=1e-14)
    assert not good[1]
    parts = model.layout.unpack(s.copy())
    perfect = model.layout.join(*parts[:3], parts[3] - np.array([[0.6], [0.0]]))
    assert not model.admissible(perfect)
    after, cut = model.nearest_inside(theta, s, perfect)
    assert cut and model.admissible(after)
    np.testing.assert_allclose(model.maximise(after)["variances"], [LEAST_VARIANCE, 1.0])
    np.testing.assert_allclose(model.maximise(after)["coefficients"], theta["coefficients"])
    no_inputs = model.layout.join(parts[0], parts[1] * np.array([[-1.0], [1.0]]), *parts[2:])
    assert not model.admissible(no_inputs)
    after, cut = model.nearest_inside(theta, s, no_inputs)
    assert cut and model.admissible(after)
    np.testing.assert_allclose(model.layout.unpack(after)[1], [[0.5 * LEAST_VARIANCE], [0.5]])
