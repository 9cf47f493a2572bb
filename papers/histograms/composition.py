"""Noise multipliers of the published histogram clustering: composition as in the paper, and exactly for its Gaussians.

FOR COMPARISON ONLY: nothing here charges a budget or gates a run; the currency is `fedcore.privacy.accounting`.

Setlur, Feldman, Talwar 2023, Algorithm 3 releases in each of T rounds a count with Laplace noise and two sums with
Gaussian noise, each at eps_0: 3 eps_0 a round. A multiplier sigma is the scale of a sum's noise divided by the sum's
L2 sensitivity. Under add/remove one client all clusters of a round cost as much as one, because a client is in one.

    kov15          x sqrt(2 T ln 1/delta') + T x (e^x - 1) / (e^x + 1) = eps for x = 3 eps_0; classical sigma of eps_0
    kov15_single   the same for one Gaussian and no count in a round: x = eps_0
    gdp            no eps_0: the Gaussians are added up as what they are

delta is split evenly over delta' and the 2 T Gaussians. Where there is one round nothing is composed across rounds, and
kov15 is Algorithm 3 alone, (3 eps_0, 2 delta_0).

Sources: Dwork, Roth 2014 (classical sigma); Kairouz, Oh, Viswanath 2015; Dong, Roth, Su 2022 (GDP). The paper's Theorem
3.1 has lost the parentheses around (e^x - 1) / (e^x + 1), and its equation (4) has the linear term under the root.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from scipy.special import log_ndtr

from fedcore.errors import ConfigError

SUMS_PER_ROUND = 2
UNITS_PER_ROUND = 3  # with the count


@dataclass(frozen=True, slots=True)
class Multiplier:
    """sigma: noise multiplier of every sum. epsilon_0: of each release, None where Gaussians are added up directly."""

    sigma: float
    epsilon_0: float | None = None


# --- one Gaussian ---------------------------------------------------------------------------------------------------


def classical_sigma(epsilon: float, delta: float) -> float:
    """sqrt(2 ln(1.25/delta)) / epsilon, which is proved for epsilon < 1 only (Dwork, Roth 2014, Theorem A.1)."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def gdp_delta(mu: float, epsilon: float) -> float:
    """The delta of mu-GDP at epsilon: Phi(mu/2 - eps/mu) - e**eps Phi(-mu/2 - eps/mu) (Dong, Roth, Su 2022)."""
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


@lru_cache(maxsize=256)
def gdp_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose GDP is within (epsilon, delta)."""
    _check(epsilon, delta)
    return _solve(lambda mu: gdp_delta(mu, epsilon), delta)


# --- the published rules --------------------------------------------------------------------------------------------


def kov15(epsilon: float, delta: float, rounds: int) -> Multiplier:
    """The paper's equation (4) with its linear term outside the root: Kairouz, Oh, Viswanath 2015."""
    return _kov15(epsilon, delta, rounds, units=UNITS_PER_ROUND, sums=SUMS_PER_ROUND)


def kov15_single(epsilon: float, delta: float, rounds: int) -> Multiplier:
    """As `kov15` for a mechanism that makes one Gaussian release a round and no count: T releases, T + 1 deltas."""
    return _kov15(epsilon, delta, rounds, units=1, sums=1)


def _kov15(epsilon: float, delta: float, rounds: int, units: int, sums: int) -> Multiplier:
    """units: releases of eps_0 in a round; sums: those of them that are Gaussian."""
    _check(epsilon, delta, rounds)
    if rounds == 1:
        epsilon_0 = epsilon / units
        return Multiplier(classical_sigma(epsilon_0, delta / sums), epsilon_0)
    share = delta / (sums * rounds + 1)
    root = math.sqrt(2 * rounds * math.log(1 / share))
    # tanh(x/2) = (e^x - 1) / (e^x + 1)
    epsilon_0 = _solve(lambda x: root * x + rounds * x * math.tanh(x / 2), epsilon, high=epsilon) / units
    return Multiplier(classical_sigma(epsilon_0, share), epsilon_0)


# --- Gaussians added up as what they are ----------------------------------------------------------------------------


def gdp(epsilon: float, delta: float, releases: int) -> Multiplier:
    """Exact for Gaussians: sigma = sqrt(releases) / mu (Dong, Roth, Su 2022)."""
    _check(epsilon, delta, releases)
    return Multiplier(math.sqrt(releases) / gdp_mu(epsilon, delta))


# --- solving --------------------------------------------------------------------------------------------------------


def _solve(increasing: Callable[[float], float], target: float, high: float = 1.0) -> float:
    """The largest x >= 0 with increasing(x) <= target, to rounding."""
    low = 0.0
    while increasing(high) <= target:
        low, high = high, 2 * high
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return low
        low, high = (middle, high) if increasing(middle) <= target else (low, middle)


def _check(epsilon: float, delta: float, releases: int = 1) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 < delta < 1 and releases >= 1):
        raise ConfigError(
            f"epsilon must be positive, delta between 0 and 1 and the number of releases at least 1, not "
            f"{epsilon!r}, {delta!r}, {releases!r}."
        )
