import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.mixture_models.row_view import RowView

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype(np.float32)
CENTRE, SCALE = RNG.normal(size=4), RNG.uniform(0.5, 2, 4)


@pytest.mark.parametrize("rows", [slice(3, 17), slice(0, 0), np.array([5, 5, 29, 0]), np.arange(30) % 3 == 0])
def test_parts_are_standardised(rows):
    part = RowView(X, CENTRE, SCALE)[rows]
    expected = (X[rows] - CENTRE) / SCALE
    assert part.shape == expected.shape == (len(part), 4) and part.ndim == 2
    assert np.asarray(part).dtype == np.float64
    np.testing.assert_allclose(np.asarray(part), expected, rtol=1e-14, atol=1e-15)
    columns = np.full((4, len(part)), np.nan)
    assert part.fill(columns, 1, 1) is None
    assert np.array_equal(columns.T, np.asarray(part)), "the same bits as rows and as columns"


def test_groups_of_columns():
    columns = np.full((4, 40), np.nan)
    RowView(X, CENTRE * 0, SCALE).fill(columns, 6, 8)
    groups = columns.reshape(4, 5, 8)
    np.testing.assert_allclose(groups[:, :, :6].reshape(4, 30).T, X / SCALE, rtol=1e-14)
    assert not groups[:, :, 6:].any()


@pytest.mark.parametrize("without", range(5))
def test_a_column_that_is_not_the_rows(without):
    view = RowView(np.insert(X, without, 99.0, axis=1), CENTRE, SCALE, without=without)
    whole = RowView(X, CENTRE, SCALE)
    assert view.shape == (30, 4) and view[3:17].shape == (14, 4)
    assert np.array_equal(np.asarray(view[3:17]), np.asarray(whole[3:17]))
    columns, expected = np.full((4, 40), np.nan), np.full((4, 40), np.nan)
    view.fill(columns, 6, 8), whole.fill(expected, 6, 8)
    assert np.array_equal(columns, expected)


def test_a_scale_too_small_to_be_inverted():
    tiny = np.full(4, 1e-310)
    np.testing.assert_allclose(np.asarray(RowView(X * 1e-30, np.zeros(4), tiny)), X * 1e-30 / tiny, rtol=1e-6)


@given(
    st.lists(st.sampled_from([0.0, -3.0, 4.0, 1e-320, 1e160, -1e300, np.inf, np.nan]), min_size=8, max_size=8),
    st.floats(1e-3, 1e9),
)
@settings(max_examples=200, deadline=None)
def test_every_row_is_within_the_bound_or_left_out(values, bound):
    rows = np.array(values).reshape(2, 4)
    columns = np.empty((4, 2))
    with np.errstate(all="ignore"):
        without = RowView(rows, np.zeros(0), np.zeros(0), bound).fill(columns, 1, 1)
    finite = np.isfinite(rows).all(axis=1)
    assert np.array_equal(np.zeros(2, bool) if without is None else without, ~finite)
    assert np.isfinite(columns).all() and not columns[:, ~finite].any()
    assert (np.linalg.norm(columns / bound, axis=0) <= 1 + 1e-15).all()
    for row, column in zip(rows, columns.T, strict=True):
        if np.isfinite(row).all() and np.abs(row / bound).max() < 0.49:
            assert np.array_equal(row, column), "a short row is not touched"


def test_rows_with_a_bound_are_columns_only():
    with pytest.raises(TypeError):
        np.asarray(RowView(X, CENTRE, SCALE, 1.0))
