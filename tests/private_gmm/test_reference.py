"""With no noise the product finds the partition of `fedcore.papers.private_gmm.reference`, and its parameters.

Tolerances: rows are rounded to 2^-16 of a ball's radius, which moves a mean by less than such a step, and a covariance
by a few steps times a standard deviation. Cells are small enough that no row is cut: the radius of a cell leaves out
0.5 % of its rows, hence none of fewer than 200.
"""

import numpy as np
import pytest
from fedcore.papers.private_gmm.reference import PublicInputs, gq, pgme
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.private_gmm import PrivateGMM, PrivateGMMConfig
from fedcore.methods.private_gmm.tree import node_of
from fedcore.population.blocks import RowsBlock
from tests.private_gmm.worlds import facts, run_without_noise

SIGMA_MIN, SIGMA_MAX = 0.3, 2.0


@st.composite
def mixtures(draw):
    """(X, k): k components of 50 to 190 rows each, at points of a lattice whose spacing is 60 to 200 times the smallest
    standard deviation; in 40 columns it is the projected rows that have terrific balls."""
    d, spacing = draw(st.sampled_from([(2, 80.0), (2, 200.0), (3, 100.0), (5, 80.0), (6, 200.0), (40, 60.0)]))
    corners = draw(
        st.lists(st.tuples(*[st.integers(0, 2)] * (2 if d == 40 else min(d, 4))), min_size=2, max_size=4, unique=True)
    )
    sizes = draw(st.lists(st.integers(50, 190), min_size=len(corners), max_size=len(corners)))
    generator = np.random.default_rng(draw(st.integers(0, 2**31)))
    parts = [
        spacing * np.append(np.array(corner) - 1.0, np.zeros(d - len(corner)))
        + generator.normal(size=(size, d)) * generator.uniform(1.0, SIGMA_MAX, d)
        for corner, size in zip(corners, sizes, strict=True)
    ]
    return generator.permutation(np.concatenate(parts)), len(corners)


def learned(X: np.ndarray, k: int, w_min: float, covariance: str):
    """(state, mixture) of the product."""
    radius = 2.0 * float(np.linalg.norm(X, axis=1).max())
    config = {"components": k, "radius": radius, "sigma_min": SIGMA_MIN, "least_weight": w_min, "depth": 1}
    method = PrivateGMM(PrivateGMMConfig(**config, covariance=covariance))
    block = RowsBlock(0, 0, np.arange(len(X) + 1), X)
    state = run_without_noise(method, facts("record", rho=1e8, features=X.shape[1]), block)
    return state, method.mixture(state)


def reference(X: np.ndarray, k: int, w_min: float):
    return pgme(X, PublicInputs(len(X), k, w_min, SIGMA_MIN, SIGMA_MAX, float(np.linalg.norm(X, axis=1).max())))


@pytest.mark.slow
@given(mixtures(), st.sampled_from(["spherical", "diag", "full"]))
@settings(max_examples=20, deadline=None)
def test_the_product_finds_the_partition_and_the_parameters_of_the_paper(data, covariance):
    X, k = data
    cells, weights, means, covariances = reference(X, k, 0.1)
    state, mixture = learned(X, k, 0.1, covariance)
    assert len(cells) == k and mixture.found, mixture.reason
    at = node_of(state.tree, X)
    order = [[at[C[0]] for C in cells].index(leaf) for leaf in state.leaf]
    for leaf, number in zip(state.leaf, order, strict=True):
        assert np.array_equal(np.flatnonzero(at == leaf), np.sort(cells[number]))
    assert mixture.weights == pytest.approx(weights[order], abs=1e-12)
    step = float(state.tree_radius.max()) / 2**16
    assert np.abs(mixture.means - means[order]).max() < step
    d = X.shape[1]
    diagonals = np.diagonal(covariances[order], axis1=1, axis2=2)
    values, vectors = np.linalg.eigh(covariances[order])
    expected = {
        "full": (vectors * np.maximum(values, SIGMA_MIN**2)[:, None]) @ vectors.transpose(0, 2, 1),
        "diag": diagonals[:, :, None] * np.eye(d),
        "spherical": diagonals.mean(axis=1)[:, None, None] * np.eye(d),
    }[covariance]
    assert np.abs(mixture.matrices() - expected).max() < 10 * SIGMA_MAX * step


@pytest.mark.slow
@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(2, 4))
@settings(max_examples=5, deadline=None)
def test_neither_splits_one_gaussian(seed, d, k):
    X = np.random.default_rng(seed).normal(size=(500, d))
    cells, *_ = reference(X, k, 0.25)
    assert len(cells) == 1 and np.array_equal(cells[0], np.arange(500))
    state, mixture = learned(X, k, 0.25, "full")
    assert not mixture.found and len(state.tree.cells()) == 1


def test_quality_is_that_of_equation_4():
    """Worked by hand: 3 rows within 1, 1 row between 1 and 5, 2 rows beyond."""
    X = np.array([[0.0], [0.5], [1.0], [3.0], [6.0], [7.0]])
    assert [gq(X, X[0], 1.0, t, 5.0) for t in (1, 2, 3, 4)] == [0, 1, 2, 2]
    assert gq(X[[0, 1, 2, 4, 5]], X[0], 1.0, 2, 5.0) == 2
