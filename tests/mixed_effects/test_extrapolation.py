"""Extrapolated steps: rounds until the likelihood's end where D is nearly singular, and points that are taken back."""

import numpy as np
from numpy.testing import assert_allclose

from fedcore.methods.mixed_effects import regression
from fedcore.methods.mixed_effects.regression import (
    Common,
    next_common,
    next_point,
    no_trail,
    posteriors,
    round_sums,
    systems,
)
from tests.mixed_effects.test_regression import fitted, rows_of, started


def nearly_singular(seed: int = 0):
    """Fifteen clients of eight rows whose five coefficients and intercept scatter in one direction only."""
    random = np.random.default_rng(seed)
    direction, mean = random.normal(size=6), random.normal(size=6)
    inputs = [np.column_stack([random.normal(size=(8, 5)), np.ones(8)]) for _ in range(15)]
    responses = [x @ (mean + random.normal() * direction) + 0.7 * random.normal(size=8) for x in inputs]
    return systems(rows_of(inputs, responses))


def extrapolated(own, rounds: int) -> tuple[Common, list[float]]:
    common, trail, fits = started(own), no_trail(6), []
    for _ in range(rounds):
        found = posteriors(own, common, robust=False)
        sums = round_sums(own, found)
        fits.append(float(sums[-2]))
        common, trail = next_point(trail, common, next_common(common, sums), fits[-1], likelihood=True)
    return common, fits


def likelihood(own, common: Common) -> float:
    return float(posteriors(own, common, robust=False).log_likelihoods.sum())


def test_a_nearly_singular_covariance_takes_a_seventh_of_the_rounds():
    """What EM alone has after 600 rounds, extrapolation has after 80; EM after 80 is behind by .15 nats and more."""
    for seed in range(2):
        own = nearly_singular(seed)
        late, early = (likelihood(own, fitted(own, robust=False, rounds=rounds)) for rounds in (600, 80))
        assert max(extrapolated(own, 80)[1]) > late > early + 0.15


def test_points_are_packed_and_unpacked():
    random = np.random.default_rng(3)
    half = random.normal(size=(4, 4))
    common = Common(random.normal(size=4), half @ half.T, 0.3, 1e-9)
    units = np.array([1e-3, 1.0, 10.0, 1e4])
    back = regression._of_coordinates(regression._coordinates(common, units), units, 1e-9)
    for one, other in zip(common, back, strict=True):
        assert_allclose(other, one, rtol=1e-7)
    assert_allclose(Common.of_row(common.row(), 4, 1e-9).between, common.between)


def test_a_linear_recursion_ends_at_once_and_a_bad_point_is_taken_back():
    """m halves its distance from 1 in each step: extrapolation finds 1. Where that point turns out to have a long step,
    the server goes on from the last point that EM found."""

    def at(value: float) -> Common:
        return Common(np.array([value]), np.eye(1), 1.0, 1e-12)

    trail, points = no_trail(1), [at(0.0), at(0.5), at(0.75)]
    for before, after in zip(points[:-1], points[1:], strict=True):
        reached, trail = next_point(trail, before, after, 0.0, likelihood=False)
    assert_allclose(reached.mean, 1.0)
    assert_allclose(reached.between, 1.0)
    kept, after = next_point(trail, reached, at(1.1), 0.0, likelihood=False)
    assert kept.mean == 1.1
    assert after.longest == 2 * regression.FIRST_LONGEST
    for poor in (
        {"after": at(9.0), "fit": 0.0, "likelihood": False},
        {"after": at(1.1), "fit": -1.0, "likelihood": True},
    ):
        back, after = next_point(trail._replace(fit=0.0), reached, **poor)
        assert back.mean == 0.75
        assert not len(after.safe)
        assert after.longest == regression.LEAST_LONGEST
