import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.counts import MultinomialMixture
from fedcore.methods.mixture_models.gaussian import COVARIANCES, GaussianMixture
from fedcore.methods.mixture_models.initialisation import (
    cluster_sums,
    draw_row,
    lloyd_step,
    parameters_from_clusters,
    random_parameters,
    squared_distances,
    sums_of_clients,
)
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables
from fedcore.rounds.statistics import FloatSum
from tests.mixture_models.cases import MAKERS, case

WITH_START = sorted(name for name in MAKERS if not name.startswith("tables"))


def blobs(seed=0, n=300):
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0], [10, 0], [0, 10]])
    return centres[rng.integers(0, 3, n)] + 0.5 * rng.standard_normal((n, 2)), centres


def moments(y):
    """Mean and variance (d,) of the columns, without what is missing."""
    y = y.toarray() if sp.issparse(y) else y
    return np.nanmean(y, axis=0), np.nanvar(y, axis=0)


@pytest.mark.parametrize("name", WITH_START)
def test_sums_of_clients_add_up_to_those_of_the_leaf():
    rng = np.random.default_rng(4)
    y, centres, weights = rng.normal(size=(60, 3)), rng.normal(size=(4, 3)), rng.random(60)
    ptr = np.array([0, 0, 25, 26, 60])
    for own in (None, weights):
        each = sums_of_clients(y, ptr, centres, own)
        assert each.shape == (4, 4, 7) and not each[0].any()
        np.testing.assert_allclose(each.sum(axis=0), cluster_sums(y, centres, weights=own), atol=1e-12)
        one = cluster_sums(y[:25], centres, weights=None if own is None else own[:25])
        np.testing.assert_allclose(each[1], one, atol=1e-12)


def test_a_random_start_is_a_start(name):
    c = case(name)
    mean, variance = moments(c.y)
    theta = c.model.check_theta(random_parameters(c.model, mean, variance, seed=3))
    assert np.isfinite(c.objective(theta))
    again, other = random_parameters(c.model, mean, variance, 3), random_parameters(c.model, mean, variance, 4)
    for key, value in theta.items():
        np.testing.assert_allclose(again[key], value, rtol=1e-14)
    if name not in ("imputer", "ppca"):
        location = set(theta) & {"means", "coefficients", "rates", "probabilities"}
        assert not any(np.allclose(theta[key], other[key]) for key in location)


def test_no_random_start_for_tables():
    with pytest.raises(ConfigError, match="LowRankTables"):
        random_parameters(LowRankTables(2, 2), np.zeros(2), np.ones(2), 0)


@pytest.mark.parametrize("sparse", [False, True])
def test_squares_to_the_nearest_centre(sparse):
    rng = np.random.default_rng(0)
    y, centres = rng.integers(0, 4, (20, 3)).astype(float), rng.random((2, 3))
    expected = ((y[:, None] - centres) ** 2).sum(axis=2).min(axis=1)
    got = squared_distances(sp.csr_matrix(y) if sparse else y, centres)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    if not sparse:
        assert squared_distances(y, y[3:4])[3] == 0.0


def test_a_row_is_drawn_by_its_weight_and_whatever_the_leaves():
    """Rows 0 .. 6 of four clients, one without rows; frequencies over 4000 draws within 5 standard errors."""
    y, ptr = np.arange(7.0)[:, None], np.array([0, 2, 2, 6, 7])
    weights = np.array([1.0, 2, 0, 3, 4, 0, 5])
    with np.errstate(divide="ignore"):
        logs = np.log(weights)
    hits = np.zeros(7)
    for step in range(4000):
        whole = draw_row(y, ptr, 10, logs, seed=1, step=step)
        left = draw_row(y[:2], ptr[:3], 10, logs[:2], 1, step)
        right = draw_row(y[2:], ptr[2:] - 2, 12, logs[2:], 1, step)
        merged = left.merge(right)
        assert merged.client == whole.client and merged.payload["row"] == whole.payload["row"]
        row = int(whole.payload["row"][0])
        assert whole.client - 10 == [0, 0, 2, 2, 2, 2, 3][row]
        hits[row] += 1
    p = weights / weights.sum()
    assert (hits[weights == 0] == 0).all()
    assert (np.abs(hits / 4000 - p) < 5 * np.sqrt(p * (1 - p) / 4000) + 1e-12).all()


def test_nothing_to_draw():
    none = draw_row(np.zeros((0, 2)), np.zeros(4, np.int64), 0, np.zeros(0), 1, 0)
    impossible = draw_row(np.ones((2, 2)), np.array([0, 2]), 3, np.full(2, -np.inf), 1, 0)
    some = draw_row(np.ones((2, 2)), np.array([0, 2]), 5, np.zeros(2), 1, 0)
    assert none.score == impossible.score == -np.inf
    assert none.merge(impossible).merge(some).client == 5
    # weights far below the smallest float64 still count
    assert np.isfinite(draw_row(np.ones((2, 2)), np.array([0, 2]), 5, np.full(2, -2000.0), 1, 0).score)


@pytest.mark.parametrize("sparse", [False, True])
def test_seeding_and_lloyd_find_the_blobs(sparse):
    y, truth = blobs()
    y = y - y.min(axis=0)
    truth = truth - blobs()[0].min(axis=0)
    rows = sp.csr_matrix(y) if sparse else y
    ptr = np.arange(0, 301, 10)
    centres = draw_row(rows, ptr, 0, np.zeros(300), 2, 0).payload["row"][None]
    for step in (1, 2):
        squares = squared_distances(rows, centres)
        with np.errstate(divide="ignore"):
            row = draw_row(rows, ptr, 0, np.log(squares), 2, step).payload["row"]
        centres = np.vstack([centres, row])
    for _ in range(3):
        leaves = [FloatSum.at(i, cluster_sums(part, centres)) for i, part in enumerate((rows[:100], rows[100:]))]
        centres = lloyd_step(centres, leaves[0].merge(leaves[1]).value())
    found = truth[np.argmin(((centres[:, None] - truth) ** 2).sum(axis=2), axis=1)]
    np.testing.assert_allclose(centres, found, atol=5 * 0.5 / np.sqrt(80))
    assert len({tuple(row) for row in found}) == 3


def test_an_empty_cluster_keeps_its_centre():
    y, _ = blobs()
    centres = np.array([[0.0, 0], [1e3, 1e3]])
    assert np.array_equal(lloyd_step(centres, cluster_sums(y, centres))[1], [1e3, 1e3])
    assert np.array_equal(cluster_sums(y[:0], centres), np.zeros((2, 5)))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_start_from_clusters(covariance):
    y, truth = blobs()
    mean, variance = moments(y)
    model = GaussianMixture(3, 2, covariance)
    theta = model.check_theta(parameters_from_clusters(model, truth, cluster_sums(y, truth), mean, variance))
    # the sampling error of a mean, and the shrinkage of weights: 5 standard errors
    np.testing.assert_allclose(theta["means"], truth, atol=5 * 0.5 / np.sqrt(80))
    np.testing.assert_allclose(theta["weights"], 1 / 3, atol=5 * np.sqrt(2 / 9 / 300))
    alone = cluster_sums(y[:1], truth)
    assert np.isfinite(model.log_likelihood(parameters_from_clusters(model, truth, alone, mean, variance), y)).all()


def test_a_start_of_counts_from_clusters():
    y = sp.csr_matrix(np.repeat([[4.0, 0, 0], [0, 3, 3]], 10, axis=0))
    centres = np.array([[4.0, 0, 0], [0, 3, 3]])
    model = MultinomialMixture(2, 3)
    mean, variance = moments(y)
    theta = model.check_theta(parameters_from_clusters(model, centres, cluster_sums(y, centres), mean, variance))
    np.testing.assert_allclose(theta["probabilities"][0], np.array([42, 1.5, 1.5]) / 45)
    imputer = case("imputer").model
    with pytest.raises(ConfigError, match="GaussianImputer"):
        parameters_from_clusters(imputer, centres, cluster_sums(y, centres), mean, variance)
