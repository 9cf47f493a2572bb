"""The central update of the published program, by hand."""

import numpy as np
import pytest
from fedcore.papers.fedgrem import norm


def test_the_authors_sweep_by_hand():
    """Plain mean 3; differences of 3 are cut by the threshold of 1, the rest is taken off, the mean is taken again."""
    t = np.array([[[0.0]], [[0.0]], [[0.0]], [[12.0]]])
    found = norm.authors_sweep(t, np.ones((4, 1)), 1.0)
    # rests: -2, -2, -2, 8 about 3; t - rest = 2, 2, 2, 4
    assert found.v[0, 0] == pytest.approx(2.5)
    np.testing.assert_allclose(found.theta[:, 0, 0], [1.0, 1.0, 1.0, 11.0])
    assert found.gradient > 0.1 > 1e-7 > norm.solve(t, np.ones(4), 1.0).gradient
