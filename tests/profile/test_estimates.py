"""Cells against their edges, least squares against a dense solution, and intervals against what they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.methods.profile import estimates
from fedcore.methods.profile.cells import LEAVES, LEVELS, ZERO, edges_of, leaf_of
from fedcore.methods.profile.estimates import Tree, not_negative
from fedcore.methods.profile.layout import codes_of, tree_of

NAN = float("nan")


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([(NAN, NAN), (0.0, 120.0), (-1.5, 1e6)]))
def test_a_number_lies_in_its_leaf(x, bounds):
    leaf, edges = int(leaf_of(np.array([x]), *bounds)[0]), edges_of(*bounds)
    assert edges.shape == (LEAVES + 1,) and (np.diff(edges) >= 0).all()
    cut = min(max(x, edges[0]), edges[-1])
    slack = 1e-12 * max(abs(bounds[0]), abs(bounds[1])) if bounds[0] < bounds[1] else 2.0**-30
    assert edges[leaf] - slack <= cut <= edges[leaf + 1] + slack


def test_leaves_of_bounds_and_of_zero():
    assert leaf_of(np.array([0.0, -3.0, 1e-9, 120.0, 500.0, NAN, np.inf]), 0.0, 120.0).tolist() == [
        *(0, 0, 1, LEAVES - 1, LEAVES - 1, -1, -1)
    ]
    found = leaf_of(np.array([0.0, -0.0, 1e-12, 1.0, -1.0, 1.125, 1.1249]), NAN, NAN)
    assert found[:3].tolist() == [ZERO] * 3 and found[3] - ZERO == ZERO - found[4]
    assert found[5] == found[3] + 1 and found[6] == found[3]


def test_categories_are_read_as_exactly_one():
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [NAN, 0.0], [2.0, 0.0]])
    assert codes_of(x, (0, 1)).tolist() == [0, 1, 2, 2, 2, 2]
    assert codes_of(x, (0,)).tolist() == [1, 0, 1, 0, 2, 2]


def test_trees_add_up():
    leaves = np.random.default_rng(0).integers(0, 99, (3, LEAVES))
    found = tree_of(leaves)
    assert found.shape == (3, 2 * LEAVES - 2) and np.array_equal(found[:, -LEAVES:], leaves)
    assert np.array_equal(found[:, :2].sum(axis=1), leaves.sum(axis=1))


def test_errors_follow_from_the_covariance():
    """The quick forms against dense ones; least squares finds exact counts."""
    counts = np.random.default_rng(1).uniform(0, 9, LEAVES)
    assert np.allclose(estimates._fit().solve @ tree_of(counts), counts)
    tree = Tree(counts, 3.0, 0.0, 1.0, edges_of(0.0, 1.0))
    for leaf, share in ((0, 0.3), (1, 0.05), (500, 0.5), (LEAVES, 0.95)):
        assert tree.error_below(leaf, share) == pytest.approx(tree.error_of((np.arange(LEAVES) < leaf) - share))
    assert tree.present_error == pytest.approx(tree.error_of(np.ones(LEAVES)))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_counts_without_negative_ones_keep_their_sum(values):
    counts = np.array(values)
    found = not_negative(counts)
    assert (found >= 0).all() and found.sum() == pytest.approx(max(counts.sum(), 0.0), rel=1e-6, abs=1e-6)


def drawn(x, low, high, noise, seed) -> Tree:
    true = np.bincount(leaf_of(x, low, high), minlength=LEAVES)
    nodes = tree_of(true) + noise * np.random.default_rng(seed).normal(size=2 * LEAVES - 2)
    return Tree(estimates._fit().solve @ nodes, noise, 0.0, noise / np.sqrt(LEVELS), edges_of(low, high))


SHAPES = {
    "normal": (np.random.default_rng(0).normal(45, 18, 20000).clip(0, 120), 0.0, 120.0),
    "whole": (np.random.default_rng(1).poisson(3, 20000).clip(0, 20).astype(float), 0.0, 20.0),
    "skewed": (np.exp(np.random.default_rng(2).normal(10, 1, 20000)).clip(0, 1e6), 0.0, 1e6),
    "unbounded": (np.random.default_rng(3).normal(2, 30, 20000), NAN, NAN),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_clean_counts_beat_least_squares_and_intervals_hold(shape):
    x, low, high = SHAPES[shape]
    ordered, true = np.sort(x), np.bincount(leaf_of(x, low, high), minlength=LEAVES)
    held, plain, clean = [], [], []
    for seed in range(20):
        tree = drawn(x, low, high, 60.0, seed)
        assert (tree.clean >= 0).all() and tree.clean.sum() == pytest.approx(tree.present)
        plain.append(np.abs(tree.counts - true).sum())
        clean.append(np.abs(tree.clean - true).sum())
        for share in (0.05, 0.25, 0.5, 0.75, 0.95):
            value, least, most = tree.quantile(share)
            least, most = np.nan_to_num(least, nan=-np.inf), np.nan_to_num(most, nan=np.inf)
            assert least <= value <= most
            below, up_to = np.searchsorted(ordered, least, "left"), np.searchsorted(ordered, most, "right")
            held.append(below <= share * len(x) <= up_to)
    assert np.mean(clean) < 0.6 * np.mean(plain)
    assert np.mean(held) >= 0.94  # 100 intervals of 95 %, less two standard errors


@pytest.mark.parametrize("shape", ["normal", "whole", "skewed"])
def test_errors_of_means_hold(shape):
    x, low, high = SHAPES[shape]
    means = [drawn(x, low, high, 60.0, seed).mean() for seed in range(40)]
    assert np.mean([abs(mean - x.mean()) < 2 * error for mean, error in means]) >= 0.85


def test_too_few_units_say_nothing():
    tree = drawn(np.full(100, 30.0), 0.0, 120.0, 60.0, 0)
    assert np.isnan(tree.mean()).all() and np.isnan(tree.quantile(0.5)).all()
