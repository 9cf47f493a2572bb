"""From zCDP to Gaussian DP: what discrete Gaussian noise of the past takes from an account that is recounted.

A discrete Gaussian of scale s and the same Gaussian rounded have almost one law. For an array of d cells, with noise x,

    ln(discrete / rounded) <= eta1 = -d ln(1 - 1 / (24 s^2))                always
    ln(rounded / discrete) <= eta2 = W / (24 s^2) + 3 d exp(-2 pi^2 s^2)    but for probability exp(-L) of the rounded
    W = (sqrt(d) (1 + 1 / (2 s)) + sqrt(2 L))^2

Both add up along an adaptive history. So n releases of discrete noise are (epsilon, delta)-DP, together with any others
that are mu-GDP in all, if exp(eta1) (delta(epsilon - eta1 - eta2; mu) + n exp(epsilon - L)) <= delta. What a filter
compares must not depend on the history: eta1, eta2 and n are bounds for every history within the limits below.
Numbers are balls of Arb, rounded to the side that promises less. Argument: docs/privacy/recount.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from fedcore.errors import ConfigError, PrivacyError
from fedcore.privacy import gdp
from fedcore.privacy.plan import PlannedRelease

if TYPE_CHECKING:
    from flint import arb

# Every release of version 0.1 keeps within them: a database stores no array of 2 GiB, nor 2^40 charges, and a clip is
# 2^16 steps of the grid or more.
LARGEST_ARRAY = 2**28  # cells
SMALLEST_SENSITIVITY = 2**16
SMALLEST_SCALE = 2**10
MOST_RELEASES = 2**40
LARGEST_RHO = SMALLEST_SENSITIVITY**2 / (2 * SMALLEST_SCALE**2)  # above it, scales below the smallest are affordable
MARGIN = 40  # exp(-40) of delta pays for what the second inequality leaves out


def losses(cells: int, scale_squared: Fraction, tail: arb) -> tuple[arb, arb]:
    """(eta1, eta2) of an array with discrete noise, as balls at the precision of the caller's context.

    scale_squared: s^2. tail: L; the second inequality fails with probability exp(-L) at most.
    """
    from flint import arb

    squared = arb(scale_squared.numerator) / scale_squared.denominator
    step = 1 / (24 * squared)
    norm = arb(cells).sqrt() * (1 + 1 / (2 * squared.sqrt())) + (2 * tail).sqrt()
    return -cells * (-step).log1p(), norm**2 * step + 3 * cells * (-2 * arb.pi() ** 2 * squared).exp()


def _caps(epsilon: float, delta: float, discrete: float) -> tuple[arb, arb, arb]:
    """(eta1, eta2, what exp(-L) costs of delta) for every history whose discrete noise costs rho = `discrete` or less.

    The losses of releases that share a rho are largest if one release takes all of it, with the largest array on the
    coarsest grid.
    """
    from flint import arb

    tail = arb(epsilon) + (arb(MOST_RELEASES) / arb(delta)).log() + MARGIN
    first, second = losses(LARGEST_ARRAY, Fraction(SMALLEST_SENSITIVITY) ** 2 / (2 * Fraction(discrete)), tail)
    return first, second, MOST_RELEASES * (arb(epsilon) - tail).exp()


def caps(epsilon: float, delta: float, discrete: float) -> tuple[float, float]:
    """(eta1, eta2), rounded up, for every history whose discrete noise costs rho = `discrete` or less.

    epsilon, delta: what the account promises, without the delta of thresholding steps. Raises ConfigError for a bad
    value.
    """
    from flint import ctx

    _check(epsilon, delta, discrete)
    with ctx.workprec(gdp.BITS):
        first, second, _ = _caps(epsilon, delta, discrete)
        return gdp.rounded(first.upper(), up=True), gdp.rounded(second.upper(), up=True)


def _within(mu_squared: Fraction, epsilon: float, delta: float, discrete: float) -> bool:
    """Whether what is mu-GDP with rounded noise is certainly (epsilon, delta)-DP, with the discrete noise in it."""
    from flint import arb, ctx

    if mu_squared == 0:
        return True
    with ctx.workprec(gdp.BITS):
        first, second, lost = _caps(epsilon, delta, discrete)
        needed = first.exp() * (gdp.delta_ball(mu_squared, arb(epsilon) - first - second) + lost)
        return bool(needed.upper() <= arb(delta))


@lru_cache(maxsize=1024)
def rho_max(epsilon: float, delta: float, discrete: float) -> float:
    """The largest float <= mu^2 / 2 for the largest float mu that certainly keeps the promise.

    discrete: rho that may have been paid for discrete noise, a part of what the result limits. Raises ConfigError for a
    bad value.
    """
    _check(epsilon, delta, discrete)
    return gdp.rho_of_mu(gdp.last_float(lambda mu: _within(Fraction(mu) ** 2, epsilon, delta, discrete)))


@lru_cache(maxsize=4096)
def epsilon_of(rho: float, delta: float, discrete: float) -> float:
    """The smallest float epsilon that this rho certainly keeps, at delta; 0 for rho = 0.

    discrete: rho that may have been paid for discrete noise, part of rho or more. Raises ConfigError for a bad value.
    """
    _check(1.0, delta, discrete)
    if not (rho >= 0 and math.isfinite(rho)):
        raise ConfigError(f"rho must be finite and not negative, not {rho!r}.")

    def too_small(epsilon: float) -> bool:
        return not _within(2 * Fraction(rho), epsilon, delta, discrete)

    return math.nextafter(gdp.last_float(too_small), math.inf) if too_small(0.0) else 0.0


def check_release(planned: PlannedRelease) -> None:
    """Raises PrivacyError unless the discrete noise of a release is within what the caps are made for."""
    what = f"release {planned.name!r} of round {planned.round}"
    if planned.delta:
        raise PrivacyError(
            f"{what} has a thresholding step (delta = {planned.delta:g}), which was argued for discrete noise only.",
            KEEPS,
        )
    if planned.sensitivity < SMALLEST_SENSITIVITY or planned.cells > LARGEST_ARRAY or planned.scale < SMALLEST_SCALE:
        raise PrivacyError(
            f"{what} has {planned.cells} cells, sensitivity {planned.sensitivity} and noise of scale "
            f"{planned.scale:.4g} grid units; an account is recounted if all had at most {LARGEST_ARRAY} cells, "
            f"sensitivity {SMALLEST_SENSITIVITY} and scale {SMALLEST_SCALE} or more.",
            KEEPS,
        )


KEEPS = "The account stays in zCDP, which is as good as it was."


def _check(epsilon: float, delta: float, discrete: float) -> None:
    gdp.check_promise(epsilon, delta)
    if not 0 < discrete <= LARGEST_RHO:
        raise ConfigError(
            f"an account is recounted if its rho_max lies between 0 and {LARGEST_RHO:g}; {discrete:g} does not.", KEEPS
        )
