"""Algorithms 1, 3 and 4 at sizes where the published constants can work; budgets of a step."""

import math

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation as sim
from fedcore.papers.private_gmm.theory import learners
from fedcore.papers.private_gmm.theory.mechanisms import Ball, advanced_epsilon

from fedcore.errors import ConfigError


def test_published_dimension_keeps_everything():
    assert learners.projected_dimension(100_000, 5, 0.05) == math.ceil(512 * math.log(1e7))
    assert learners.projected_dimension(10, 50, 0.05, constant=0.1) == 50


def test_halves_are_of_whole_pairs_of_records():
    rows = np.arange(10.0)[:, None]
    first, second = (np.flatnonzero(np.isfinite(x[:, 0])).tolist() for x in learners.record_halves(rows))
    assert first == [0, 1, 4, 5, 8, 9] and second == [2, 3, 6, 7]
    rows[0] = np.nan  # nobody else moves
    assert np.flatnonzero(np.isfinite(learners.record_halves(rows)[1][:, 0])).tolist() == second


@pytest.mark.parametrize(
    "separation, settings",
    [
        (400.0, {}),  # the published constants
        (30.0, {"dimension": 3, "inflation": 2.0, "lift_noise": 1.0, "lift_spread": 1.0}),
    ],
)
def test_algorithm_1_learns_spheres(separation, settings):
    truth = sim.mixture(10, 3, separation, 1)
    rows, _ = sim.sample(truth, 4000, 1)
    for seed in range(2):
        found = learners.learn_spherical(
            rows,
            3,
            1000.0,
            1e-6,
            np.random.default_rng(seed),
            radius=sim.prior(truth).radius,
            sigma_min=1.0,
            sigma_max=1.0,
            nominal=4000,
            paired=False,
            **settings,
        )
        scored = sim.scores(
            truth, np.array([one.mean for one in found]), covariances=np.array([one.covariance for one in found])
        )
        # a mean of n/6 rows in ten dimensions has an error of about sqrt(60/4000) = 0.12
        assert scored.mean_errors.max() < 0.5 and scored.trace_error < 0.1


def test_algorithm_1_says_no_at_a_usual_budget():
    truth = sim.mixture(10, 3, 30.0, 1)
    rows, _ = sim.sample(truth, 2000, 1)
    assert (
        learners.learn_spherical(
            rows,
            3,
            1.0,
            1e-6,
            np.random.default_rng(0),
            radius=40.0,
            sigma_min=1.0,
            sigma_max=1.0,
            nominal=2000,
            dimension=3,
        )
        is None
    )
    with pytest.raises(ConfigError):
        learners.learn_spherical(
            rows, 3, 0.0, 1e-6, np.random.default_rng(0), radius=40.0, sigma_min=1.0, sigma_max=1.0, nominal=2000
        )


def test_budget_of_a_step():
    unit = learners.unit_budget(1.0, 1e-6, 5)
    assert unit.epsilon == pytest.approx(1 / 22) and 21 * unit.delta == pytest.approx(1e-6)
    many = learners.unit_budget(1.0, 1e-6, 200)  # advanced composition is better for k > 2 ln(1/delta')
    assert many.epsilon > 1 / 802
    assert advanced_epsilon(4 * many.epsilon, 200, 5e-7) + 2 * many.epsilon == pytest.approx(1.0)


def test_a_split_drops_the_annulus_and_keeps_places():
    rows = np.array([[0.0], [3.0], [4.9], [5.1], [np.nan], [90.0]])
    inside, beyond = learners.split(rows, rows, Ball(np.zeros(1), 1.0))
    assert np.flatnonzero(np.isfinite(inside[:, 0])).tolist() == [0]
    assert np.flatnonzero(np.isfinite(beyond[:, 0])).tolist() == [3, 5]


@pytest.fixture(scope="module")
def unlike():
    truth = sim.mixture(4, 3, 150.0, 2, scales=(1, 1, 2), weights=(0.3, 0.4, 0.3))
    rows, labels = sim.sample(truth, 1500, 1)
    radius = float(np.linalg.norm(truth.means, axis=1).max())
    return truth, rows, labels, learners.PublicInputs(1500, radius, 0.25, 0.8, 2.5)


def test_algorithm_3_parts_components_whole(unlike):
    _, rows, labels, public = unlike
    cells = learners.recursive_partition(rows, 3, learners.UnitBudget(60.0, 1e-7), public, np.random.default_rng(0))
    kept = [np.isfinite(cell).all(axis=1) for cell in cells]
    assert len(cells) == 3 and np.sum(kept, axis=0).max() == 1
    for cell in kept:
        assert len(set(labels[cell])) == 1
    assert np.sum(kept) > 0.97 * len(rows)
    one = learners.recursive_partition(rows, 1, learners.UnitBudget(60.0, 1e-7), public, np.random.default_rng(0))
    assert len(one) == 1 and one[0] is rows


def test_algorithm_3_leaves_one_gaussian_whole(unlike):
    public = learners.PublicInputs(1500, 10.0, 0.25, 0.8, 2.5)
    rows, _ = sim.sample(sim.mixture(4, 1, 1.0, 2), 1500, 1)
    cells = learners.recursive_partition(rows, 3, learners.UnitBudget(60.0, 1e-7), public, np.random.default_rng(0))
    assert len(cells) == 1


def test_algorithm_4_learns_a_mixture(unlike):
    truth, rows, _, public = unlike
    for seed in range(2):
        found, weights = learners.learn_mixture(rows, 3, 1e4, 1e-6, public, np.random.default_rng(seed))
        scored = sim.scores(
            truth,
            np.array([one.mean for one in found]),
            weights=weights,
            covariances=np.array([one.covariance for one in found]),
        )
        # means of 450 rows: sqrt(4/450) = 0.09; weights within sampling; few pairs of records are whole in a cell
        assert scored.mean_errors.max() < 0.4 and scored.weight_error < 0.05 and scored.trace_error < 0.4


def test_algorithm_4_at_a_usual_budget_finds_no_structure(unlike):
    _, rows, _, public = unlike
    found = learners.learn_mixture(rows, 3, 1.0, 1e-6, public, np.random.default_rng(0))
    assert found is None or len(found[0]) < 3
