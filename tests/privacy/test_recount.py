"""From zCDP to Gaussian DP, against brute force: two inequalities, exact privacy of discrete noise, and the caps."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from flint import arb, ctx
from scipy.special import ndtr

from fedcore.errors import ConfigError, PrivacyError
from fedcore.methods.histograms import sensitivities as hist_bounds
from fedcore.methods.private_gmm import sensitivities as gmm_bounds
from fedcore.privacy import gdp, recount
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.grid import GRID_NORM
from fedcore.privacy.plan import PlannedRelease

TYPICAL = [(epsilon, 1e-6) for epsilon in (0.1, 1.0, 2.0, 4.0, 8.0, 10.0)]


def losses(cells, scale, tail):
    """(eta1, eta2) as floats."""
    with ctx.workprec(gdp.BITS):
        first, second = recount.losses(cells, Fraction(scale) ** 2, arb(tail))
        return float(first), float(second)


def discrete(scale):
    """(width + 1,) probabilities of 0, 1, 2, ..., in mpmath: by definition, until nothing is left."""
    steps = [mpmath.mpf(1)]
    ratio, factor = mpmath.exp(-1 / (2 * mpmath.mpf(scale) ** 2)), mpmath.exp(-1 / mpmath.mpf(scale) ** 2)
    while len(steps) <= 20 * scale:
        steps.append(steps[-1] * ratio)
        ratio *= factor
    total = 2 * mpmath.fsum(steps) - 1
    return [step / total for step in steps]


def rounded(scale, x):
    """The probability that round(scale Z) is x, in mpmath."""
    low, high = ((x + side) / (scale * mpmath.sqrt(2)) for side in (mpmath.mpf(-0.5), mpmath.mpf(0.5)))
    return (mpmath.erfc(low) - mpmath.erfc(high)) / 2


# --- the two inequalities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1, 5, 2**10])
def test_both_inequalities_in_every_cell_and_that_they_are_tight(scale):
    with mpmath.workprec(300):
        law = discrete(scale)
        first, _ = losses(1, scale, 1.0)
        step = mpmath.mpf(1) / (24 * scale**2)
        tops = []
        for x in range(0, len(law), max(1, len(law) // 60)):
            ratio = mpmath.log(law[x] / rounded(scale, x))
            assert ratio <= first
            bound = mpmath.mpf(x) ** 2 / scale**2 * step + 3 * mpmath.exp(-2 * mpmath.pi**2 * scale**2)
            assert -ratio <= bound
            if scale >= 5 and x <= 3 * scale:  # no smaller constant would do
                assert -ratio >= bound - 1.05 * step
            tops.append(ratio)
        assert max(tops) > 0.96 * first


@pytest.mark.parametrize(("cells", "scale"), [(1, 1), (1, 5), (2, 5), (3, 5), (1, 2**10)])
def test_noise_is_seldom_longer_than_the_second_inequality_allows(cells, scale):
    """The law of the squared norm of rounded noise, by convolution of squares."""
    width = 9 * scale
    half = np.diff(ndtr((np.arange(width + 2) - 0.5) / scale))
    whole = np.concatenate([half[:0:-1], half])
    squares = np.arange(-width, width + 1) ** 2
    norms, chances = np.zeros(1, np.int64), np.ones(1)
    for _ in range(cells):
        norms, which = np.unique(np.add.outer(norms, squares), return_inverse=True)
        chances = np.bincount(which.ravel(), np.multiply.outer(chances, whole).ravel())
    for tail in (0.5, 2.0, 5.0, 12.0):
        allowed = (math.sqrt(cells) * (1 + 1 / (2 * scale)) + math.sqrt(2 * tail)) ** 2 * scale**2
        assert chances[norms > allowed].sum() <= math.exp(-tail)
        _, second = losses(cells, scale, tail)
        assert second >= allowed / (24 * scale**4) * (1 - 1e-12)


# --- exact privacy ----------------------------------------------------------------------------------------------------


def two_sided(scale):
    with mpmath.workprec(200):
        half = np.array([float(p) for p in discrete(scale)])
    whole = np.concatenate([half[:0:-1], half])
    return np.arange(len(whole)) - len(half) + 1, whole


def loss(noise, shift, scale):
    """Of the outcome `noise`, if the other world's outcome lies `shift` away."""
    return (shift**2 + 2.0 * shift * noise) / (2 * scale**2)


def exact_delta(chances, total, epsilon):
    return float((chances * np.maximum(-np.expm1(epsilon - total), 0.0)).sum())


def adaptive(scale, first, others):
    """(chances, losses) of a history of two releases of one cell; the second's shift depends on the first's value."""
    noise, law = two_sided(scale)
    kept = law > 1e-40
    noise, law = noise[kept], law[kept]
    second = np.where(noise % 2 == 0, others[0], others[1])
    total = loss(noise, first, scale)[:, None] + loss(noise[None, :], second[:, None], scale)
    return (law[:, None] * law[None, :]).ravel(), total.ravel()


def array(scale, shifts):
    """(chances, losses) of one release of several cells."""
    noise, law = two_sided(scale)
    kept = law > 1e-40
    chances, total = np.ones(1), np.zeros(1)
    for shift in shifts:
        total = np.add.outer(total, loss(noise[kept], shift, scale)).ravel()
        chances = np.multiply.outer(chances, law[kept]).ravel()
    return chances, total


HISTORIES = [  # (cells, releases, sum of squared shifts, chances and losses) at s = 5
    (1, 1, 1, array(5, (1,))),
    (1, 1, 25, array(5, (5,))),
    (2, 1, 25, array(5, (3, 4))),
    (2, 1, 2, array(5, (1, 1))),
    (1, 2, 25, adaptive(5, 4, (3, 0))),
    (1, 2, 25, adaptive(5, 3, (4, 1))),
]


@pytest.mark.parametrize("tail", [2.0, 8.0, 40.0])
def test_discrete_noise_keeps_the_bound_by_brute_force(tail):
    for cells, releases, squares, (chances, total) in HISTORIES:
        assert chances.sum() == pytest.approx(1.0, abs=1e-12)
        first, second = (releases * eta for eta in losses(cells, 5, tail))
        for epsilon in (0.25, 0.5, 1.0, 2.0, 3.0, 4.0):
            left = epsilon - first - second
            bound = gdp.delta_bounds(math.sqrt(squares) / 5, left)[1] if left > 0 else 1.0
            bound = math.exp(first) * (bound + releases * math.exp(epsilon - tail))
            assert exact_delta(chances, total, epsilon) <= bound


def test_without_the_losses_the_same_promise_is_broken():
    broken = 0
    for _, _, squares, (chances, total) in HISTORIES:
        for epsilon in (0.5, 1.0, 2.0):
            broken += exact_delta(chances, total, epsilon) > gdp.delta_bounds(math.sqrt(squares) / 5, epsilon)[1]
    assert broken >= 6


# --- the caps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [1e-4, 0.3, 5.0, recount.LARGEST_RHO])
def test_no_history_within_the_limits_loses_more_than_the_caps(rho):
    """Random divisions of rho over releases, sizes and grids; the first is the one that attains the caps."""
    rng = np.random.default_rng(7)
    first_cap, second_cap = recount.caps(1.0, 1e-6, rho)
    tail = 1.0 + math.log(recount.MOST_RELEASES / 1e-6) + recount.MARGIN
    for trial in range(40):
        parts = 1 if trial == 0 else int(rng.integers(1, 12))
        shares = rng.dirichlet(np.full(parts, 0.3)) * rho * (1 - 1e-12)
        cells = [recount.LARGEST_ARRAY] if trial == 0 else [int(2**power) for power in rng.uniform(0, 28, parts)]
        norms = np.full(parts, 2**16) if trial == 0 else (2 ** rng.uniform(16, 33, parts)).astype(int) + 1
        first = second = 0.0
        for share, width, norm in zip(shares, cells, norms, strict=True):
            if share > 0:
                mine = losses(width, float(norm) / math.sqrt(2 * share), tail)
                first, second = first + mine[0], second + mine[1]
        assert first <= first_cap and second <= second_cap
        if trial == 0:
            assert first > 0.999 * first_cap and second > 0.999 * second_cap


def needed_delta(mu, epsilon, delta, rho):
    """The promise with the caps, in mpmath and written down anew."""
    with mpmath.workprec(600):
        mpf, s2 = mpmath.mpf, mpmath.mpf(2) ** 32 / (2 * mpmath.mpf(rho))
        tail = mpf(epsilon) + mpmath.log(mpf(2) ** 40 / mpf(delta)) + 40
        cells, step, s = mpf(2) ** 28, 1 / (24 * s2), mpmath.sqrt(s2)
        first = -cells * mpmath.log(1 - step)
        second = (mpmath.sqrt(cells) * (1 + 1 / (2 * s)) + mpmath.sqrt(2 * tail)) ** 2 * step
        second += 3 * cells * mpmath.exp(-2 * mpmath.pi**2 * s2)
        mu, left = mpf(mu), mpf(epsilon) - first - second
        curve = mpmath.ncdf(mu / 2 - left / mu) - mpmath.exp(left) * mpmath.ncdf(-mu / 2 - left / mu)
        return mpmath.exp(first) * (curve + mpf(2) ** 40 * mpmath.exp(mpf(epsilon) - tail))


@pytest.mark.parametrize(("epsilon", "delta"), [*TYPICAL, (1.0, 1e-10), (50.0, 1e-8)])
def test_the_largest_rho_and_back(epsilon, delta):
    old = make_budget(epsilon, delta, currency="zcdp")
    rho = recount.rho_max(epsilon, old.delta_conv, old.rho_max)
    mu = math.sqrt(2 * rho)
    assert needed_delta(mu * (1 - 1e-15), epsilon, old.delta_conv, old.rho_max) <= old.delta_conv
    assert needed_delta(mu * (1 + 1e-15), epsilon, old.delta_conv, old.rho_max) > old.delta_conv
    back = recount.epsilon_of(rho, old.delta_conv, old.rho_max)
    assert epsilon * (1 - 1e-14) <= back <= epsilon
    assert old.rho_max < rho < gdp.rho_max(epsilon, old.delta_conv)


def test_almost_without_discrete_noise_almost_nothing_is_lost():
    for epsilon, delta in TYPICAL:
        plain = gdp.rho_max(epsilon, delta)
        assert plain * (1 - 1e-9) < recount.rho_max(epsilon, delta, 1e-12) < plain
    assert recount.epsilon_of(0.0, 1e-6, 1.0) == 0.0


def test_a_larger_promise_or_less_discrete_noise_never_buys_less():
    base = recount.rho_max(2.0, 9e-7, 0.5)
    assert base < recount.rho_max(2.1, 9e-7, 0.5)
    assert base < recount.rho_max(2.0, 1e-6, 0.5)
    assert base < recount.rho_max(2.0, 9e-7, 0.4)


@pytest.mark.parametrize("discrete", [-1.0, 0.0, math.nextafter(recount.LARGEST_RHO, math.inf), math.inf, math.nan])
def test_rho_of_discrete_noise_has_limits(discrete):
    for call in (recount.rho_max, recount.caps):
        with pytest.raises(ConfigError, match="recounted if its rho_max"):
            call(1.0, 1e-6, discrete)
    with pytest.raises(ConfigError):
        recount.epsilon_of(0.1, 1e-6, discrete)
    with pytest.raises(ConfigError):
        recount.rho_max(0.0, 1e-6, 0.1)
    with pytest.raises(ConfigError):
        recount.epsilon_of(-0.1, 1e-6, 0.1)


# --- the limits -------------------------------------------------------------------------------------------------------

EDGE = PlannedRelease("edge", 1, (2**14, 2**14), 2**16, 2.0**-6, "docs/privacy/recount.md", "one cell")


def test_a_release_is_within_the_limits_or_is_named():
    recount.check_release(EDGE)
    below = math.nextafter(2.0**-6, 0.0)
    for change in (
        {"shape": (2**14, 2**14 + 1)},
        {"sensitivity": 2**16 - 1, "noise_multiplier": 1.0},
        {"noise_multiplier": below},
        {"delta": 1e-12},
    ):
        with pytest.raises(PrivacyError, match="release 'edge' of round 1"):
            recount.check_release(replace(EDGE, **change))


def test_the_largest_rho_is_that_of_the_smallest_scale():
    assert EDGE.scale == recount.SMALLEST_SCALE
    assert recount.LARGEST_RHO == 0.5 / EDGE.noise_multiplier**2


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_own_methods_stay_on_grids_within_the_limits(relation):
    """What they plan with; federated EM has the clip of the grid itself."""
    bounds = [GRID_NORM]
    bounds += [bound(relation) for bound in (hist_bounds.clipped_sum, hist_bounds.second_moment)]
    bounds += [
        bound(relation) for bound in (gmm_bounds.counts, gmm_bounds.sums, gmm_bounds.moments, gmm_bounds.squares)
    ]
    assert min(bounds) >= recount.SMALLEST_SENSITIVITY


def test_the_table_of_the_page():
    lines = (Path(__file__).parents[2] / "docs/privacy/recount.md").read_text().splitlines()
    found = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ") and line[2].isdigit()]
    assert len(found) == 7
    for epsilon, *shown in found:
        old = make_budget(float(epsilon), 1e-6, currency="zcdp")
        new = recount.rho_max(float(epsilon), old.delta_conv, old.rho_max)
        plain = gdp.rho_max(float(epsilon), old.delta_conv)
        caps = recount.caps(float(epsilon), old.delta_conv, old.rho_max)
        numbers = f"{old.rho_max:.5g}", f"{new:.5g}", f"{new / old.rho_max - 1:.1%}", f"{1 - new / plain:.2%}"
        assert tuple(shown) == (*numbers, *(f"{cap:.1e}" for cap in caps))
