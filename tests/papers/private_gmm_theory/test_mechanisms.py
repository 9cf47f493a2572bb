"""Calibration, AboveThreshold, stability histograms and composition, against definitions."""

import math

import numpy as np
import pytest
from fedcore.papers.private_gmm.theory import mechanisms as mech
from scipy.stats import binomtest, norm

from fedcore.errors import ConfigError


@pytest.mark.parametrize("epsilon, delta", [(0.1, 1e-6), (1.0, 5e-7), (4.0, 1e-6), (200.0, 1e-6)])
def test_gaussian_calibration_is_exact(epsilon, delta):
    sigma = mech.gaussian_scale(1.0, epsilon, delta)
    # the hockey-stick divergence of N(0, s^2) and N(1, s^2) by integration
    edge = sigma**2 * epsilon + 0.5  # where the likelihood ratio is e^epsilon
    upper, lower = norm.logsf(edge, loc=1, scale=sigma), norm.logsf(edge, scale=sigma)
    assert math.exp(upper) - math.exp(epsilon + lower) == pytest.approx(delta, rel=1e-3)


def test_gdp_value_of_the_specification():
    assert mech.gaussian_mu(1.0, 5e-7) == pytest.approx(0.229, abs=5e-4)
    assert mech.zcdp_rho(1.0, 5e-7) == pytest.approx(0.0262, abs=1e-4)


def test_a_budget_must_be_one():
    for epsilon, delta in ((0.0, 1e-6), (math.inf, 1e-6), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(ConfigError):
            mech.gaussian_mu(epsilon, delta)


def test_clipping_bounds_every_row_and_keeps_those_inside():
    rows = np.array([[3.0, 4.0], [1e300, 0.0], [np.nan, 0.0], [2.0, 1.0], [np.inf, 1.0], [0.0, 0.0]])
    ball = mech.Ball(np.array([2.0, 0.0]), 2.0)
    z = mech.clipped(rows, ball)
    assert len(z) == 4 and (np.linalg.norm(z, axis=1) <= 2 * (1 + 1e-12)).all()
    assert z[0] == pytest.approx(np.array([1, 4]) * 2 / 17**0.5)
    assert z[2].tolist() == [0.0, 1.0] and z[3].tolist() == [-2.0, 0.0]
    assert mech.within(rows, ball).tolist() == [False, False, False, True, False, True]
    assert np.isnan(mech.clipped_to(rows, 1.0)[[2, 4]]).all()


def test_above_threshold_keeps_its_guarantee():
    values, threshold, epsilon, beta = np.linspace(0, 100, 51), 60.0, 2.0, 0.2
    error = mech.above_threshold_error(len(values), epsilon, beta, 2.0)
    assert error == pytest.approx(8 * 2 * (math.log(51) + math.log(10)) / 2)
    bad, hits = 0, []
    for seed in range(300):
        hit = mech.above_threshold(values, threshold, epsilon, np.random.default_rng(seed), sensitivity=2.0)
        hits.append(hit)
        bad += hit is None and values.max() > threshold + error
        bad += hit is not None and (values[hit] < threshold - error or (values[:hit] > threshold + error).any())
    assert binomtest(bad, 300, beta, alternative="greater").pvalue > 1e-4
    assert np.mean([hit is not None for hit in hits]) > 0.9
    early = [values[hit] for hit in hits if hit is not None]
    assert np.std(early) > 1  # it is noised at all
    assert mech.above_threshold([0.0], 1e9, 1.0, np.random.default_rng(0)) is None


def test_above_threshold_asks_for_no_value_after_the_hit():
    def values():
        yield 1e9
        raise RuntimeError("asked for a value after the hit")

    assert mech.above_threshold(values(), 0.0, 1.0, np.random.default_rng(0)) == 0


def test_a_record_of_its_own_rarely_shows_in_a_stability_histogram():
    rng, delta = np.random.default_rng(1), 0.05
    alone = sum(len(mech.stability_histogram(np.array([7]), 1.0, delta, rng)[0]) for _ in range(4000))
    gaussian = sum(len(mech.gaussian_histogram(np.array([7]), 3.0, delta, rng)[0]) for _ in range(4000))
    assert binomtest(alone, 4000, delta).pvalue > 1e-4
    assert binomtest(gaussian, 4000, delta).pvalue > 1e-4
    bins, counts = mech.stability_histogram(np.repeat([3, 5], [200, 900]), 1.0, 1e-6, rng)
    assert bins.tolist() == [5, 3] and counts == pytest.approx([900, 200], abs=15)


def test_symmetric_noise_has_one_scale_everywhere():
    rng = np.random.default_rng(2)
    draws = np.array([mech.symmetric_noise(4, 2.0, rng) for _ in range(4000)])
    assert np.array_equal(draws, draws.transpose(0, 2, 1))
    assert draws.std(axis=0) == pytest.approx(np.full((4, 4), 2.0), rel=0.06)


def test_composition_by_call():
    epsilon, delta = mech.per_call_budget(1.0, 1e-6, 3)
    assert (epsilon, delta) == (pytest.approx(1 / 3), pytest.approx(1e-6 / 3))  # basic is better for few calls
    epsilon, delta = mech.per_call_budget(1.0, 1e-6, 400)
    total = epsilon * math.sqrt(2 * 400 * math.log(2e6)) + 400 * epsilon * (math.exp(epsilon) - 1)
    assert total == pytest.approx(1.0, rel=1e-6) and epsilon > 1 / 400 and 400 * delta == pytest.approx(5e-7)
