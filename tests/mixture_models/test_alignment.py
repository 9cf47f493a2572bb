"""Alignment of components between clients."""

from itertools import permutations

import numpy as np
import pytest
from fedcore.papers.fedgrem.simulation import simulated_clients

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models import alignment
from fedcore.methods.mixture_models.alignment import reordered


def score(centres, orders):
    """Summed over ordered pairs of clients."""
    together = reordered(centres, orders)
    return sum(np.linalg.norm(together - own, axis=2).sum() for own in together)


def permuted(seed, clients, components, noise, p=4, outliers=0, far=4.0):
    """Centres in random orders, and the orders that undo them."""
    generator = np.random.default_rng(seed)
    base = far * generator.normal(size=(components, p))
    own = base + noise * generator.normal(size=(clients, components, p))
    if outliers:
        own[-outliers:] = far * generator.normal(size=(outliers, components, p))
    shuffled = np.array([generator.permutation(components) for _ in range(clients)])
    return reordered(own, shuffled), np.argsort(shuffled, axis=1)


def same_pattern(orders, truth):
    """Equal up to one renaming of the components."""
    names = {tuple(np.argsort(right)[order]) for order, right in zip(orders, truth, strict=True)}
    return len(names) == 1


@pytest.mark.parametrize("components", [2, 3, 4, 5])
def test_an_assignment_step_equals_trying_all_orders(components):
    choices = list(permutations(range(components)))
    for seed in range(50):
        centres, _ = permuted(seed, 4, components, 2.0)
        orders = alignment.stepwise(centres)
        best = min(choices, key=lambda last: score(centres, np.vstack([orders[:3], [last]])))
        assert score(centres, orders) == pytest.approx(score(centres, np.vstack([orders[:3], [best]])), rel=1e-9)


def test_exhaustive_is_never_worse():
    for seed in range(10):
        centres, _ = permuted(seed, 4, 3, 3.0)
        best = score(centres, alignment.exhaustive(centres))
        generator = np.random.default_rng(seed)
        others = [
            alignment.stepwise(centres),
            alignment.shuffled(centres, 5, generator),
            alignment.shuffled(centres, 5, generator, "majority"),
            alignment.by_centres(centres, generator),
        ]
        assert all(best <= score(centres, orders) + 1e-9 for orders in others)
    with pytest.raises(ConfigError, match="too many alignments"):
        alignment.exhaustive(np.zeros((10, 5, 2)))


@pytest.mark.parametrize("rule", ["stepwise", "score", "majority", "centres", "exhaustive"])
def test_separated_centres_are_aligned(rule):
    centres, truth = permuted(0, 4 if rule == "exhaustive" else 30, 3, 0.3)
    generator = np.random.default_rng(0)
    orders = {
        "stepwise": lambda: alignment.stepwise(centres),
        "exhaustive": lambda: alignment.exhaustive(centres),
        "centres": lambda: alignment.by_centres(centres, generator),
    }.get(rule, lambda: alignment.shuffled(centres, 20, generator, rule))()
    assert same_pattern(orders, truth)


@pytest.mark.parametrize("rule", ["score", "majority", "centres"])
def test_inliers_are_aligned_beside_outliers(rule):
    for seed in range(5):
        tasks = simulated_clients(seed, clients=20, outliers=6, h=2.0)
        generator = np.random.default_rng(seed)
        own = np.where(np.isnan(tasks.theta), 2.0 + generator.normal(size=tasks.theta.shape), tasks.theta)
        shuffled = np.array([generator.permutation(5) for _ in own])
        centres, truth = reordered(own, shuffled), np.argsort(shuffled, axis=1)
        orders = (
            alignment.by_centres(centres, generator)
            if rule == "centres"
            else alignment.shuffled(centres, 20, generator, rule)
        )
        assert same_pattern(orders[tasks.inlier], truth[tasks.inlier])


def test_clients_align_themselves_as_if_alone():
    centres, _ = permuted(4, 60, 5, 2.0)
    common = centres[0]
    together = alignment.to_centres(centres, common)
    assert all(np.array_equal(together[k], alignment.to_centres(centres[k : k + 1], common)[0]) for k in range(60))
    for own, order in zip(centres, together, strict=True):
        best = min(np.linalg.norm(own[list(o)] - common, axis=1).sum() for o in permutations(range(5)))
        assert np.linalg.norm(own[order] - common, axis=1).sum() == pytest.approx(best)


def test_the_score_by_hand():
    centres = np.array([[[0.0], [10.0]], [[11.0], [1.0]]])
    assert score(centres, np.array([[0, 1], [1, 0]])) == pytest.approx(2 * (1 + 1))
    assert score(centres, np.array([[0, 1], [0, 1]])) == pytest.approx(2 * (11 + 9))
