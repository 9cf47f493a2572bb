"""GoodRadius, GoodCenter, PTerrificBall, PGLoc: they find the ball, and their parts are what they claim."""

import math

import numpy as np
import pytest
from fedcore.papers.private_gmm import simulation as sim
from fedcore.papers.private_gmm.theory import one_cluster as loc
from fedcore.papers.private_gmm.theory.mechanisms import Ball, advanced_epsilon, only, within


@pytest.fixture(scope="module")
def separated():
    truth = sim.mixture(3, 3, 60.0, 1)
    rows, labels = sim.sample(truth, 1200, 1)
    return truth, rows, labels


def test_collision_probability_of_the_hash():
    rng = np.random.default_rng(0)
    plan = loc.HashPlan(1, 4.0, 5.0, 0.1)
    for distance in (0.5, 2.0, 8.0):
        pair = np.array([[0.0, 0.0], [distance, 0.0]])
        hits = np.mean([np.diff(loc.bucket_keys(pair, plan, 1.0, rng).astype(object))[0] == 0 for _ in range(3000)])
        assert hits == pytest.approx(float(loc.collision(4.0 / distance)), abs=4 * 0.5 / 3000**0.5)


@pytest.mark.parametrize("nominal", [200, 2000, 20_000])
def test_hash_plan_keeps_near_rows_and_parts_far_ones(nominal):
    for exponent in (0.1, 0.5):
        plan = loc.hash_plan(nominal, exponent)
        near = float(loc.collision(plan.width)) ** plan.functions
        far = float(loc.collision(plan.width / plan.reach)) ** plan.functions
        assert near >= nominal**-exponent * (1 - 1e-9)
        assert far <= nominal ** -(2 + exponent) * 1.01
    assert loc.narrow_hash(nominal, 5.0).reach <= 5.0


def test_radius_of_t_rows(separated):
    _, rows, _ = separated
    for seed in range(5):
        radius = loc.good_radius(rows, 200, 30.0, np.random.default_rng(seed), low=0.1, high=1000.0)
        # half of a component of three unit variances: within about 1.5; rows of two need 30
        assert 0.8 <= radius <= 8
    assert loc.good_radius(rows, 200, 30.0, np.random.default_rng(0), low=1e-3, high=1e-2) is None


def test_good_centre_finds_the_ball(separated):
    truth, rows, _ = separated
    found = 0
    for seed in range(5):
        centres = loc.good_centres(rows, 200, 4.0, 100.0, 1e-6, np.random.default_rng(seed), nominal=1200)
        found += bool(centres) and np.linalg.norm(truth.means - centres[0], axis=1).min() < 4.0
    assert found >= 4
    assert loc.good_centres(np.full((5, 3), np.nan), 2, 1.0, 1.0, 1e-6, np.random.default_rng(0), nominal=5) == []


def test_good_centre_in_many_dimensions_finds_nothing_at_a_small_budget(separated):
    _, rows, _ = separated
    assert loc.good_centres(rows, 200, 4.0, 0.1, 1e-6, np.random.default_rng(1), nominal=1200) == []


def test_terrific_ball_is_one_component(separated):
    _, rows, labels = separated
    for seed in range(4):
        ball = loc.terrific_ball(rows, 150, 40.0, 1e-6, np.random.default_rng(seed), low=0.3, high=400.0, nominal=1200)
        shares = [within(rows[labels == i], ball).mean() for i in range(3)]
        assert sorted(shares)[1] == 0 and max(shares) > 0.95


def test_one_gaussian_has_no_terrific_ball():
    rows, _ = sim.sample(sim.mixture(3, 1, 1.0, 1), 600, 1)
    for seed in range(4):
        assert (
            loc.terrific_ball(rows, 100, 40.0, 1e-6, np.random.default_rng(seed), low=0.3, high=100.0, nominal=600)
            is None
        )


@pytest.mark.parametrize("refine", [True, False])
def test_locate_finds_half_of_t_rows_in_a_small_ball(separated, refine):
    _, rows, labels = separated
    for seed in range(4):
        ball = loc.locate(
            rows, 300, 60.0, 1e-6, np.random.default_rng(seed), bound=200.0, sigma_min=1.0, nominal=1200, refine=refine
        )
        assert within(rows, ball).sum() >= 150
        if refine:
            assert ball.radius < 20 and sorted(within(rows[labels == i], ball).sum() for i in range(3))[1] == 0


def test_locate_ignores_what_is_beyond_the_bound():
    rows = np.concatenate([np.zeros((100, 2)), np.full((400, 2), 1e12)])
    ball = loc.locate(rows, 80, 1e4, 1e-6, np.random.default_rng(0), bound=10.0, sigma_min=0.5, nominal=500)
    assert np.linalg.norm(ball.centre) <= 20 and ball.radius < 40


def test_epsilon_of_an_axis_composes():
    for epsilon in (0.1, 1.0, 1000.0):
        share, delta, d = epsilon / 4, 1e-6, 30
        each = loc.axis_epsilon(epsilon, delta, d, share)
        assert each >= share / d
        assert min(d * each, advanced_epsilon(each, d, delta / 8)) <= share * (1 + 1e-9)
    assert loc.axis_epsilon(1.0, 1e-6, 9000, 0.25) == pytest.approx(1 / (10 * math.sqrt(9000 * math.log(8e6))))


def test_outside_of_leaves_absent_rows_absent():
    rows = np.array([[0.0], [3.0], [np.nan], [6.0]])
    ball = Ball(np.zeros(1), 1.0)
    left = loc.outside_of(rows, ball, 5.0)
    assert np.isfinite(left[:, 0]).tolist() == [False, False, False, True]
    assert np.array_equal(only(rows, np.array([True, False, True, True]))[:, 0], [0, np.nan, np.nan, 6], equal_nan=True)
