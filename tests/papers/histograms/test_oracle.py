"""Estimates that know the truth: worked by hand, against dense matrices, and as good as none other can be."""

import numpy as np
import pytest
from fedcore.papers.histograms.table1 import known_clusters, oracle_values, posterior_clusters
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln

from fedcore.methods.histograms.clients import inverse_totals
from fedcore.population.synthetic import SyntheticSettings, cluster_weights, true_clusters
from tests.histograms.example_clients import block_of, counts_arrays, dense_histograms, synthetic

CENTRES = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])


def oracle_rows(block, responsibilities, centres, alpha):
    """(C, d): every client's estimate, from the dense formula."""
    share = (alpha / (alpha + block.totals))[:, None]
    return share * (responsibilities @ centres) + (1 - share) * dense_histograms(block)


def test_a_known_centre_worked_by_hand():
    """alpha 6, two tokens (1, 1, 0): 6/8 (.5, .5, 0) + 2/8 (.5, .5, 0); with the other centre (.125, .5, .375)."""
    block = block_of([[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    rows = oracle_rows(block, known_clusters(np.array([0, 1, 1]), 2), CENTRES, 6.0)
    np.testing.assert_allclose(rows, [[0.5, 0.5, 0], [0.125, 0.5, 0.375], [0, 0.5, 0.5]], rtol=1e-15)


def test_a_posterior_worked_by_hand():
    """alpha P = (2, 1, 1) and (1, 1, 2), counts (2, 0, 1): Gamma(4)/Gamma(2) = 6 against Gamma(3)/Gamma(1) = 2 times
    Gamma(3)/Gamma(2) = 2; with weights 1/4 and 3/4 it is 6 : 12.
    """
    block = block_of([[2, 0, 1], [0, 0, 0]])
    centres = np.array([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    got = posterior_clusters(block, centres, np.array([0.25, 0.75]), 4.0)
    np.testing.assert_allclose(got, [[1 / 3, 2 / 3], [0.25, 0.75]], rtol=1e-8)
    # (1/3 (2, 1, 1) + 2/3 (1, 1, 2) + (2, 0, 1)) / 7
    np.testing.assert_allclose(oracle_rows(block, got, centres, 4.0)[0], np.array([10, 3, 8]) / 21, rtol=1e-8)


@given(counts_arrays(), st.integers(0, 99), st.sampled_from([0.5, 30.0, 700.0]))
def test_the_posterior_is_that_of_the_dense_densities(counts, seed, alpha):
    block, generator = block_of(counts), np.random.default_rng(seed)
    centres, weights = generator.dirichlet(np.ones(block.features), 3), generator.dirichlet(np.ones(3))
    got = posterior_clusters(block, centres, weights, alpha)
    shape = alpha * centres
    logs = np.log(weights) + np.sum(gammaln(shape + counts[:, None]) - gammaln(shape), axis=2)
    logs -= logs.max(axis=1, keepdims=True)
    expected = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(got.sum(axis=1), 1.0)
    moderate = counts.max(axis=1) < 1e4  # beyond that lnGamma itself has no digits left for the difference
    np.testing.assert_allclose(got[moderate], expected[moderate], atol=1e-6)


@given(counts_arrays(), st.integers(0, 99))
def test_values_are_entries_of_the_rows(counts, seed):
    block, generator = block_of(counts), np.random.default_rng(seed)
    centres, r = generator.dirichlet(np.ones(block.features), 3), generator.dirichlet(np.ones(3), block.clients)
    rows = oracle_rows(block, r, centres, 40.0)
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)
    client, tokens = generator.integers(0, block.clients, 50), generator.integers(0, block.features, 50)
    got = oracle_values(block, client, tokens, r, centres, 40.0)
    np.testing.assert_allclose(got, rows[client, tokens], rtol=1e-12)
    assert len(oracle_values(block, client[:0], tokens[:0], r, centres, 40.0)) == 0


def test_a_centre_with_zeros_is_floored():
    block = block_of([[1, 0, 9], [9, 1, 0]])
    got = posterior_clusters(block, CENTRES, np.array([0.5, 0.5]), 100.0)
    assert np.all(np.isfinite(got)) and got[0, 1] > 0.999 and got[1, 0] > 0.999


@pytest.fixture(scope="module")
def population():
    settings = SyntheticSettings(
        clients=2000,
        features=60,
        clusters=4,
        tokens=25,
        test_tokens=4000,
        gamma=300.0,
        alpha=60.0,
        beta=None,
        heldout_clients=2000,
    )
    block, centres = synthetic(settings, 5)
    return settings, block, centres, true_clusters(settings, 5)


def loss(block, estimate) -> np.ndarray:
    t = dense_histograms(block.heldout)
    return np.sum(t * (np.log(np.where(t > 0, t, 1)) - np.log(estimate + 1e-12)), axis=1)


def test_posterior_clusters_are_calibrated(population):
    """Of the clients to whom a cluster is given with probability p, a share p is in it: within five standard errors."""
    settings, block, centres, clusters = population
    r = posterior_clusters(block, centres, cluster_weights(settings), settings.alpha)
    truth = known_clusters(clusters, 4)
    unsure = (r > 0.2) & (r < 0.8)
    assert unsure.sum() > 300
    error = np.sqrt(np.sum((r * (1 - r))[unsure]))
    assert abs(np.sum((truth - r)[unsure])) < 5 * error
    assert abs(np.sum((truth - r)[(r > 0.2) & (r < 0.5)])) < 5 * error


def test_the_oracles_beat_whoever_knows_less(population):
    """Known cluster < mixture < the most likely cluster alone, or a wrong alpha; differences beyond 4 errors."""
    settings, block, centres, clusters = population
    r = posterior_clusters(block, centres, cluster_weights(settings), settings.alpha)
    known = loss(block, oracle_rows(block, known_clusters(clusters, 4), centres, settings.alpha))
    mixture = loss(block, oracle_rows(block, r, centres, settings.alpha))
    likeliest = loss(block, oracle_rows(block, known_clusters(r.argmax(axis=1), 4), centres, settings.alpha))
    wrong = [loss(block, oracle_rows(block, r, centres, factor * settings.alpha)) for factor in (0.2, 5.0)]
    own = loss(block, np.maximum(dense_histograms(block), 1e-4))
    for better, worse in [(known, mixture), (mixture, likeliest), *((mixture, w) for w in wrong), (mixture, own)]:
        difference = worse - better
        assert difference.mean() > 4 * difference.std() / np.sqrt(block.clients)
    assert np.all(inverse_totals(block) == 1 / 25)
