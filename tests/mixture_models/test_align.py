import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.mixture_models.align import aligned, largest_differences, matching
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from tests.mixture_models.cases import MAKERS, case


@given(st.permutations(range(3)))
@settings(max_examples=10, deadline=None)
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_relabelling_is_undone(name, order):
    c = case(name)
    shuffled = dict(c.theta)
    for key in getattr(c.model, "labelled", ()):
        if key in shuffled:
            shuffled[key] = shuffled[key][list(order)]
    back = aligned(c.model, shuffled, c.theta)
    assert all(np.array_equal(back[key], c.theta[key]) for key in c.theta)
    assert largest_differences(c.model, shuffled, c.theta) == dict.fromkeys(c.theta, 0.0)
    # another name for the same distribution
    np.testing.assert_allclose(c.model.log_likelihood(shuffled, c.y), c.model.log_likelihood(c.theta, c.y), rtol=1e-10)


def test_the_matching_is_the_best_as_a_whole():
    """Greedy would give 0 to 1 and leave 10 for -8."""
    reference = np.array([[1.0], [-8.0]])
    assert matching(np.array([[0.0], [10.0]]), reference).tolist() == [1, 0]


def test_the_scale_decides():
    locations, reference = np.array([[0.0, 5], [3, 0]]), np.array([[0.0, 0], [3, 5]])
    assert matching(locations, reference).tolist() == [1, 0]
    assert matching(locations, reference, np.array([1.0, 100.0])).tolist() == [0, 1]


def test_a_tied_covariance_of_as_many_features_as_components_stays():
    model = GaussianMixture(2, 2, "tied")
    theta = {"weights": np.array([0.3, 0.7]), "means": np.eye(2), "covariances": np.array([[2.0, 0.5], [0.5, 1.0]])}
    other = theta | {"weights": theta["weights"][::-1], "means": theta["means"][::-1]}
    assert np.array_equal(aligned(model, other, theta)["covariances"], theta["covariances"])


def test_different_numbers_of_components():
    with pytest.raises(ValueError, match="match"):
        matching(np.zeros((2, 1)), np.zeros((3, 1)))
