"""OpenDP beside our accounting and our noise: another implementation, by other people."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedcore.privacy import gdp
from fedcore.privacy.rounded_gaussian import SystemBits, add

dp = pytest.importorskip("opendp.prelude")
ALPHA = 1e-6  # chance that honest noise fails
CELLS = 20_000


@pytest.fixture(scope="module", autouse=True)
def features():
    dp.enable_features("contrib")


def gaussian(scale: float):
    return dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=int), scale=scale)


@pytest.mark.parametrize("rho", [0.01, 0.1, 0.5, 2.0, 20.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-10])
def test_rho_and_its_conversion(rho, delta):
    """OpenDP converts what holds for every mechanism of rho, so its epsilon is no smaller than that of the Gaussian
    alone. It is below the formula of Bun and Steinke 2016, Proposition 1.3, and ours is at least 0.85 of it."""
    release = gaussian(1 / math.sqrt(2 * rho))
    assert release.map(1) == pytest.approx(rho, rel=1e-12)
    theirs = dp.c.make_zCDP_to_approxDP(release).map(1).epsilon(delta)
    ours = gdp.epsilon_of(2 * Fraction(rho), delta)
    assert 0.85 * theirs < ours < theirs < rho + 2 * math.sqrt(rho * math.log(1 / delta))


def test_a_composition_adds_up():
    scales = [1.3, 2.0, 7.5, 40.0]
    composed = dp.c.make_composition([gaussian(scale) for scale in scales])
    assert composed.map(1) == pytest.approx(sum(1 / (2 * scale**2) for scale in scales), rel=1e-12)


@pytest.mark.parametrize("scale", [40.5, 2.0**20])
def test_noise_of_both_has_one_distribution(scale):
    """The discrete Gaussian and the rounded Gaussian have variances that differ by a twelfth, which is far below what
    so many cells show."""
    ours = add(np.zeros(CELLS, np.int64), scale, SystemBits())
    theirs = np.array(gaussian(scale)([0] * CELLS))
    assert stats.ks_2samp(ours, theirs).pvalue > ALPHA
    assert stats.ks_2samp(ours, 1.2 * theirs).pvalue < ALPHA, "and noise that is a fifth too wide is found"
