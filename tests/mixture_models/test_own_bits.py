"""A client's statistics are a function of its own rows, to the last bit, whoever else is in the leaf."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.mixture_models.client_sums import (
    LANES,
    Workspace,
    aligned_array,
    columns_of,
    padded_tiles,
    workspace,
)
from fedcore.methods.mixture_models.counts import BernoulliMixture, MultinomialMixture, PoissonMixture
from fedcore.methods.mixture_models.gaussian import COVARIANCES, GaussianMixture
from fedcore.methods.mixture_models.regression import RegressionMixture
from fedcore.methods.mixture_models.row_view import RowView
from fedcore.methods.mixture_models.student import with_tails

NONE = np.zeros(0)
WILD = np.array([0.0, -0.0, 1e-308, 1e8, -1e200, 1e308, np.inf, -np.inf, np.nan])


def gaussian(covariance, g, d, rng):
    matrix = rng.normal(size=(g, d, d)) / 3
    spd = matrix @ np.swapaxes(matrix, 1, 2) + np.eye(d)
    covariances = {
        "known": None,
        "spherical": rng.uniform(0.5, 2, g),
        "diag": rng.uniform(0.5, 2, (g, d)),
        "tied": spd[0],
        "full": spd,
    }[covariance]
    theta = {"weights": rng.dirichlet(np.ones(g)), "means": rng.normal(size=(g, d))}
    return GaussianMixture(g, d, covariance), theta if covariances is None else theta | {"covariances": covariances}


def other(name, g, d, rng):
    shares = rng.uniform(0.1, 0.9, (g, d))
    weights = rng.dirichlet(np.ones(g))
    if name == "student":
        model, theta = gaussian("full", g, d, rng)
        return with_tails(model, 4.0), theta
    if name == "regression":
        theta = {"weights": weights, "coefficients": rng.normal(size=(g, d)), "variances": rng.uniform(0.5, 2, g)}
        return RegressionMixture(g, d, intercept=True, a=0.1), theta
    if name == "poisson":
        return PoissonMixture(g, d, a=0.1, b=0.1), {"weights": weights, "rates": shares * 3}
    cls = BernoulliMixture if name == "bernoulli" else MultinomialMixture
    probabilities = shares if name == "bernoulli" else shares / shares.sum(axis=1, keepdims=True)
    return cls(g, d, a=0.1), {"weights": weights, "probabilities": probabilities}


NAMES = (*COVARIANCES, "student", "regression", "poisson", "multinomial", "bernoulli")


def made(name, g, d, rng):
    return gaussian(name, g, d, rng) if name in COVARIANCES else other(name, g, d, rng)


def leaf_of(rng, sizes, d, wild):
    y = rng.normal(size=(sum(sizes), d)) * rng.choice([1e-3, 1.0, 30.0], size=(sum(sizes), 1))
    strange = rng.random(y.shape) < wild
    y[strange] = rng.choice(WILD, strange.sum())
    return y, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


sizes_of_clients = st.lists(
    st.one_of(st.integers(0, 50), st.sampled_from([7, 8, 9, 20, 31, 32, 33, 64, 300])), min_size=1, max_size=40
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    sizes_of_clients,
    st.integers(1, 7),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.02]),
    st.sampled_from([None, 2.0, 1e6]),
    st.sampled_from([None, 24]),
    st.booleans(),
)
def test_no_bit_depends_on_the_neighbours(name, seed, sizes, g, d, wild, bound, tile, equal):
    """Alone, in the leaf, in another order, beside clients whose rows are absurd; the client in one tile or not."""
    rng = np.random.default_rng(seed)
    sizes = [sizes[0]] * len(sizes) if equal else sizes
    d = max(d, 2)
    model, theta = made(name, g, d, rng)
    y, ptr = leaf_of(rng, sizes, d, wild)
    y = y.astype(rng.choice([np.float32, np.float64])) if wild == 0 else y
    centre, scale = (rng.normal(size=d), rng.uniform(0.1, 3, d)) if rng.random() < 0.5 else (NONE, NONE)
    if tile:
        object.__setattr__(model, "_tile", lambda _: tile)

    def answer(y, ptr):
        with np.errstate(all="ignore"):
            return model.client_means(theta, RowView(y, centre, scale, bound), ptr)

    means, counts = answer(y, ptr)
    order = rng.permutation(len(sizes))
    parts = [y[ptr[i] : ptr[i + 1]] for i in range(len(sizes))]
    shuffled = answer(np.concatenate([parts[i] for i in order]), np.concatenate([[0], np.cumsum(np.diff(ptr)[order])]))
    for place, i in enumerate(order):
        assert np.array_equal(shuffled[0][place], means[i], equal_nan=True) and shuffled[1][place] == counts[i]
    for i in rng.choice(len(sizes), min(6, len(sizes)), replace=False):
        alone = answer(parts[i], np.array([0, len(parts[i])]))
        assert np.array_equal(alone[0][0], means[i], equal_nan=True) and alone[1][0] == counts[i]
        pair = answer(np.concatenate([np.full((3, d), 1e9), parts[i]]), np.array([0, 3, 3 + len(parts[i])]))
        assert np.array_equal(pair[0][1], means[i], equal_nan=True)


def test_rows_that_are_left_out_do_not_count():
    """Means are over the usable rows, cut to the bound; copies that fill a client's last columns are not counted."""
    rng = np.random.default_rng(0)
    model, theta = made("diag", 3, 4, rng)
    y, ptr = leaf_of(rng, [5, 0, 9, 1, 30], 4, 0.0)
    y[[3, 4, 7]] = [[np.nan] * 4, [np.inf, 0, 0, 0], [1e200] * 4]
    y[14] = np.nan  # the only row of client 3
    means, counts = model.client_means(theta, RowView(y, NONE, NONE, 5.0), ptr)
    assert counts.tolist() == [3, 0, 9, 0, 30]
    assert not means[[1, 3]].any()
    for client in (0, 2, 4):
        own = y[ptr[client] : ptr[client + 1]]
        own = own[np.isfinite(own).all(axis=1)]
        with np.errstate(over="ignore"):
            norms = np.linalg.norm(own, axis=1)
        own = own * np.minimum(1, 5.0 / np.maximum(norms, 5.0))[:, None]
        expected = model.e_total(theta, own) / len(own)
        np.testing.assert_allclose(means[client], expected, rtol=1e-10, atol=1e-12)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 60), st.booleans())
@settings(max_examples=100, deadline=None)
def test_padded_tiles_cover_every_row_once(sizes, size, equal):
    sizes = [sizes[0]] * len(sizes) if equal and sizes else sizes
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    seen, clients_seen = np.zeros(ptr[-1], int), np.zeros(len(sizes), int)
    limit = -(-size // LANES) * LANES
    for tile in padded_tiles(ptr, size):
        assert tile.each % LANES == 0
        clients = np.arange(len(sizes))[tile.clients]
        clients_seen[clients] += tile.whole
        if tile.own is None:
            columns = np.setdiff1d(np.arange(len(tile.rows)), tile.padding)
            assert len(tile.rows) == len(clients) * tile.each <= limit
            owners = np.searchsorted(ptr, tile.rows, "right") - 1
            assert np.array_equal(owners, np.repeat(clients, tile.each)), "columns hold rows of their own client only"
            rows = tile.rows[columns]
        else:
            rows = np.arange(tile.rows.start, tile.rows.stop)
            assert len(rows) == len(clients) * tile.own and len(clients) * tile.each <= limit
        seen[rows] += 1
        assert tile.whole or sizes[clients[0]] > limit
    assert (seen == 1).all()
    assert np.array_equal(clients_seen, (np.array(sizes, int) > 0) & (np.array(sizes, int) <= limit))


def test_products_by_client_are_products():
    rng = np.random.default_rng(0)
    for each in (8, 24, 32, 40):
        work = Workspace(5 * each)
        a, b = work.array("a", 3)[:, : 4 * each], work.array("b", 7)[:, : 4 * each]
        a[...], b[...] = rng.normal(size=a.shape), rng.normal(size=b.shape)
        left = rng.normal(size=(2, 7))
        np.testing.assert_allclose(
            work.client_products("s", a, b, each),
            columns_of(a, each) @ columns_of(b, each).transpose(0, 2, 1),
            atol=1e-12,
        )
        np.testing.assert_allclose(work.product("p", left, b, each), left @ b, atol=1e-12)


def test_memory_is_aligned_and_not_shared_by_nested_answers():
    assert all(aligned_array(n, 16).ctypes.data % 64 == 0 for n in range(1, 20))
    with workspace(16) as outer, workspace(16) as inner:
        assert outer is not inner
        assert not np.shares_memory(outer.array("x", 2), inner.array("x", 2))
    with workspace(16) as again:
        assert again is outer
