import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.methods.mixture_models.alignment import matching


@given(st.permutations(range(4)))
def test_relabelling_is_undone(order):
    reference = np.random.default_rng(0).normal(size=(4, 2, 3))
    shuffled = reference[list(order)]
    assert np.array_equal(shuffled[matching(shuffled, reference)], reference)


def test_the_matching_is_the_best_as_a_whole():
    """Greedy would give 0 to 1 and leave 10 for -8."""
    reference = np.array([[1.0], [-8.0]])
    assert matching(np.array([[0.0], [10.0]]), reference).tolist() == [1, 0]


def test_the_scale_decides():
    locations, reference = np.array([[0.0, 5], [3, 0]]), np.array([[0.0, 0], [3, 5]])
    assert matching(locations, reference).tolist() == [1, 0]
    assert matching(locations, reference, np.array([1.0, 100.0])).tolist() == [0, 1]


def test_different_numbers_of_components():
    with pytest.raises(ValueError, match="match"):
        matching(np.zeros((2, 1)), np.zeros((3, 1)))
