"""Gaussian differential privacy (GDP): the exact trade-off of the Gaussian mechanism, and its (epsilon, delta).

A release is mu-GDP if distinguishing two neighbouring populations by it is no easier than N(0, 1) from N(mu, 1). Such
releases compose exactly, sum mu^2, also when each is chosen after seeing the ones before (Koskela, Tobaben, Honkela,
arXiv 2209.15596; Smith, Thakurta, arXiv 2210.17520), and mu-GDP is (epsilon, delta(epsilon; mu))-DP for every epsilon
(Dong, Roth, Su 2022). A release costs rho = mu^2 / 2. Numbers are balls of Arb (python-flint), rounded to
the side that promises less. Argument: docs/privacy/gdp.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from fedcore.errors import ConfigError

if TYPE_CHECKING:
    from flint import arb

BITS = 400  # of the balls; what cancels between the two terms of delta is far less


def delta_bounds(mu: float | Fraction, epsilon: float, bits: int = BITS) -> tuple[float, float]:
    """(low, high), floats around the smallest delta with which mu-GDP is (epsilon, delta)-DP:

    Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu); 0 for mu = 0.
    """
    return _delta_bounds(Fraction(mu) ** 2, epsilon, bits)


def _delta_bounds(mu_squared: Fraction, epsilon: float, bits: int) -> tuple[float, float]:
    from flint import ctx

    if mu_squared == 0:
        return 0.0, 0.0
    with ctx.workprec(bits):
        ball = delta_ball(mu_squared, epsilon)
        return max(rounded(ball.lower(), up=False), 0.0), min(rounded(ball.upper(), up=True), 1.0)


def delta_ball(mu_squared: Fraction, epsilon: float | arb) -> arb:
    """The same as a ball, at the precision of the caller's context; mu^2 > 0."""
    from flint import arb

    mu = (arb(mu_squared.numerator) / mu_squared.denominator).sqrt()
    e = arb(epsilon)
    return _phi(mu / 2 - e / mu) - e.exp() * _phi(-mu / 2 - e / mu)


def _phi(x: arb) -> arb:
    from flint import arb

    return (-x / arb(2).sqrt()).erfc() / 2


def rounded(exact: arb, *, up: bool) -> float:
    """The float nearest to an exact ball, or the next one if that is on the wrong side."""
    from flint import arb

    value = float(exact)
    wrong = bool(arb(value) < exact) if up else bool(arb(value) > exact)
    return math.nextafter(value, math.inf if up else -math.inf) if wrong else value


def rho_max(epsilon: float, delta: float) -> float:
    """The largest float <= mu^2 / 2 for mu = `mu_max(epsilon, delta)`."""
    return rho_of_mu(mu_max(epsilon, delta))


def rho_of_mu(mu: float) -> float:
    """The largest float <= mu^2 / 2."""
    rho = Fraction(mu) ** 2 / 2
    nearest = float(rho)
    return nearest if Fraction(nearest) <= rho else math.nextafter(nearest, 0.0)


@lru_cache(maxsize=1024)
def mu_max(epsilon: float, delta: float) -> float:
    """The largest float mu such that mu-GDP is certainly (epsilon, delta)-DP.

    Raises ConfigError unless 0 < epsilon < inf and 0 < delta < 1.
    """
    check_promise(epsilon, delta)
    return last_float(lambda mu: delta_bounds(mu, epsilon)[1] <= delta)


def mu_of(rho: float) -> float:
    """The smallest float mu with mu^2 / 2 >= rho."""
    mu = math.sqrt(2 * rho)
    while Fraction(mu) ** 2 < 2 * Fraction(rho):
        mu = math.nextafter(mu, math.inf)
    return mu


@lru_cache(maxsize=4096)
def epsilon_of(mu_squared: Fraction, delta: float) -> float:
    """The smallest float epsilon such that mu-GDP is certainly (epsilon, delta)-DP; 0 for mu = 0.

    mu_squared: exact, 2 rho. Raises ConfigError for a negative one, or unless 0 < delta < 1.
    """
    check_promise(1.0, delta)
    if mu_squared < 0:
        raise ConfigError(f"mu^2 is not negative, and {float(mu_squared):.3g} is.")

    def too_small(epsilon: float) -> bool:
        return _delta_bounds(mu_squared, epsilon, BITS)[1] > delta

    return math.nextafter(last_float(too_small), math.inf) if too_small(0.0) else 0.0


def check_promise(epsilon: float, delta: float) -> None:
    """Raises ConfigError unless 0 < epsilon < inf and 0 < delta < 1."""
    if not (isinstance(epsilon, (int, float)) and math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon must be positive and finite, not {epsilon!r}.", "Usual values are 0.5 to 15.")
    if not (isinstance(delta, (int, float)) and 0 < delta < 1):
        raise ConfigError(f"delta must be between 0 and 1, not {delta!r}.", "Choose it far below 1/clients.")


def last_float(holds: Callable[[float], bool]) -> float:
    """The largest float from 0 on for which `holds`, which holds at 0 and never again once it has failed.

    Positive floats are in the order of their bits, which are halved: no tolerance is needed.
    """
    low, high = 0, _bits(1.0)
    while holds(_float(high)):
        low, high = high, high + (1 << 52)  # twice as large
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(_float(middle)) else (low, middle)
    return _float(low)


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
