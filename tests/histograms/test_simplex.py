"""Smoothing, the metric, shrinkage and merging."""

import itertools

import numpy as np
import pytest

from fedcore.methods.histograms.simplex import metric, perturbed, project, shrink, smooth, ward_merge


def test_smoothing_keeps_the_sum_and_projecting_floors():
    p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(smooth(p, 0.1)[0], np.array([0.6, 0.6, 0.1]) / 1.3)
    np.testing.assert_allclose(smooth(p, 1e-3).sum(axis=1), 1.0)
    np.testing.assert_allclose(project(np.array([-1.0, 1.0, 2.0]), 1.0), [0.25, 0.25, 0.5])


def test_the_metric_minimises_noise_times_norm():
    """(sum w / P) (sum E q^2 / w), E q^2 = P (1/m + P), is least at w: Cauchy-Schwarz gives (sum sqrt(E q^2 / P))^2."""
    p = np.random.default_rng(0).dirichlet(np.ones(50))
    moment = p * (1 / 150 + p)

    def cost(w):
        return np.sum(w / p) * np.sum(moment / w)

    best = np.sum(np.sqrt(moment / p)) ** 2
    assert cost(metric(p, 1e-12, 150.0)) == pytest.approx(best, rel=1e-9)
    assert cost(p) > best and cost(np.full(50, 1 / 50)) > best
    assert metric(p, 1e-3, 150.0).sum() == pytest.approx(1.0)


def test_shrinkage_is_none_without_noise_and_complete_when_noise_explains_all():
    mean, w = np.array([0.5, 0.5]), np.array([0.5, 0.5])
    centre = np.array([[0.9, 0.1]])  # ||D||^2 = 2 * 0.16 / 0.5 = 0.64
    np.testing.assert_allclose(shrink(centre, mean, w, np.array([0.0])), centre)
    np.testing.assert_allclose(shrink(centre, mean, w, np.array([0.32])), [[0.7, 0.3]])
    np.testing.assert_allclose(shrink(centre, mean, w, np.array([0.65])), [mean])
    np.testing.assert_allclose(shrink(mean[None], mean, w, np.array([1.0])), [mean])


def test_perturbed_copies_are_histograms_around_the_mean():
    rows = perturbed(np.array([0.2, 0.3, 0.5]), 4, 0.3, np.random.default_rng(0))
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)
    assert len(np.unique(rows[:, 0])) == 4


def brute_force_merge(centres, counts, w, clusters):
    """Greedy Ward on group means computed afresh from their members at every step."""
    groups = [[i] for i in range(len(centres))]
    while len(groups) > clusters:

        def cost(pair):
            (a, b) = (groups[pair[0]], groups[pair[1]])
            na, nb = counts[a].sum(), counts[b].sum()
            pa, pb = (np.average(centres[g], axis=0, weights=counts[g]) for g in (a, b))
            return na * nb / (na + nb) * np.sum((pa - pb) ** 2 / w)

        i, j = min(itertools.combinations(range(len(groups)), 2), key=cost)
        groups[i] = sorted(groups[i] + groups[j])
        del groups[j]
    return groups


def test_ward_merging_is_that_of_brute_force():
    generator = np.random.default_rng(6)
    centres, counts = generator.dirichlet(np.ones(8), 9), generator.uniform(1, 100, 9)
    w = generator.dirichlet(np.ones(8) * 5)
    for clusters in (1, 3, 8):
        assert ward_merge(centres, counts, w, clusters) == brute_force_merge(centres, counts, w, clusters)


def test_fewer_rows_than_clusters_are_left_alone():
    assert ward_merge(np.eye(2), np.ones(2), np.full(2, 0.5), 5) == [[0], [1]]
