"""Noise multipliers of the published histogram clustering under every way of adding up its releases.

FOR COMPARISON ONLY: nothing here charges a budget or gates a run; the currency is `fedcore.privacy.accounting`.

Setlur, Feldman, Talwar 2023, Algorithm 3 releases in each of T rounds a count with Laplace noise and two sums with
Gaussian noise, each at eps_0: 3 eps_0 a round. A multiplier sigma is the scale of a sum's noise divided by the sum's
L2 sensitivity. Under add/remove one client all clusters of a round cost as much as one, because a client is in one.

    rule            what is solved for eps_0                                                 and sigma from eps_0
    basic           3 T eps_0 = eps, 2 T deltas                                              classical
    theorem_3_1     the paper's Theorem 3.1 as it is printed                                 classical
    drv10           x sqrt(2 T ln 1/delta') + T x (e^x - 1) = eps, x = 3 eps_0               classical
    kov15           x sqrt(2 T ln 1/delta') + T x (e^x - 1) / (e^x + 1) = eps                classical
    kov15_analytic  as kov15                                                                 exact for one Gaussian

    zcdp_simple, zcdp_optimal, gdp, pld_with_counts   no eps_0: the Gaussians are added up as what they are

Except for `basic`, delta is split evenly over delta' and the 2 T Gaussians. Where there is one round nothing is
composed across rounds, and the first five rules are that of Algorithm 3 alone, (3 eps_0, 2 delta_0).

Sources: Dwork, Rothblum, Vadhan 2010; Kairouz, Oh, Viswanath 2015; Balle, Wang 2018 (exact Gaussian); Bun, Steinke 2016
and Canonne, Kamath, Steinke 2020 (zCDP); Dong, Roth, Su 2022 (GDP). The paper's theorem has lost a pair of parentheses,
(e^x - 1) / (e^x + 1), and its equation (4) has the linear term under the root; at 50 rounds of epsilon 15 in all, the
theorem as printed asks for more noise than basic composition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from scipy.special import log_ndtr

from fedcore.errors import ConfigError
from fedcore.privacy.accounting import epsilon_of

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


def analytic_sigma(epsilon: float, delta: float) -> float:
    """The smallest multiplier of one Gaussian within (epsilon, delta) (Balle, Wang 2018)."""
    return 1.0 / gdp_mu(epsilon, delta)


# --- the published rules --------------------------------------------------------------------------------------------


def basic(epsilon: float, delta: float, rounds: int) -> Multiplier:
    """Basic composition: 3 T releases of eps / (3 T), 2 T of them with delta / (2 T)."""
    _check(epsilon, delta, rounds)
    epsilon_0 = epsilon / (UNITS_PER_ROUND * rounds)
    return Multiplier(classical_sigma(epsilon_0, delta / (SUMS_PER_ROUND * rounds)), epsilon_0)


def theorem_3_1(epsilon: float, delta: float, rounds: int) -> Multiplier:
    """(sqrt(2 T ln 1/delta) + T e^{3 eps} - 1/e^{3 eps} + 1) 3 eps, lost parentheses and all."""
    return _advanced(epsilon, delta, rounds, lambda x, root: (root + rounds * math.exp(x) - math.exp(-x) + 1) * x)


def drv10(epsilon: float, delta: float, rounds: int) -> Multiplier:
    """Advanced composition as in Dwork, Rothblum, Vadhan 2010."""
    return _advanced(epsilon, delta, rounds, lambda x, root: root * x + rounds * x * math.expm1(x))


def kov15(epsilon: float, delta: float, rounds: int) -> Multiplier:
    """The paper's equation (4) with its linear term outside the root: Kairouz, Oh, Viswanath 2015."""
    return _advanced(epsilon, delta, rounds, _kov15_total(rounds))


def kov15_analytic(epsilon: float, delta: float, rounds: int) -> Multiplier:
    """As `kov15`, with the exact multiplier of each Gaussian."""
    return _advanced(epsilon, delta, rounds, _kov15_total(rounds), analytic_sigma)


def kov15_single(epsilon: float, delta: float, rounds: int) -> Multiplier:
    """As `kov15` for a mechanism that makes one Gaussian release a round and no count: T releases, T + 1 deltas."""
    return _advanced(epsilon, delta, rounds, _kov15_total(rounds), units=1, sums=1)


def _kov15_total(rounds: int) -> Callable[[float, float], float]:
    return lambda x, root: root * x + rounds * x * math.tanh(x / 2)  # tanh(x/2) = (e^x - 1) / (e^x + 1)


def _advanced(
    epsilon: float,
    delta: float,
    rounds: int,
    total: Callable[[float, float], float],
    sigma: Callable[[float, float], float] = classical_sigma,
    units: int = UNITS_PER_ROUND,
    sums: int = SUMS_PER_ROUND,
) -> Multiplier:
    """The solution of total(x, sqrt(2 T ln 1/delta')) = epsilon for x = units * eps_0.

    sigma: (eps_0, delta_0) -> the multiplier of one Gaussian
    """
    _check(epsilon, delta, rounds)
    if rounds == 1:
        epsilon_0 = epsilon / units
        return Multiplier(sigma(epsilon_0, delta / sums), epsilon_0)
    share = delta / (sums * rounds + 1)
    root = math.sqrt(2 * rounds * math.log(1 / share))
    epsilon_0 = _solve(lambda x: total(x, root), epsilon, high=epsilon) / units
    return Multiplier(sigma(epsilon_0, share), epsilon_0)


# --- Gaussians added up as what they are ----------------------------------------------------------------------------


def zcdp_simple(epsilon: float, delta: float, releases: int) -> Multiplier:
    """eps = rho + 2 sqrt(rho ln 1/delta), rho = releases / (2 sigma**2) (Bun, Steinke 2016)."""
    _check(epsilon, delta, releases)
    log = math.log(1 / delta)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    return Multiplier(math.sqrt(releases / (2 * rho)))


def zcdp_optimal(epsilon: float, delta: float, releases: int) -> Multiplier:
    """As `zcdp_simple` with the conversion of the best order, which budgets use (they keep 1e-4 of epsilon back)."""
    _check(epsilon, delta, releases)
    return Multiplier(math.sqrt(releases / (2 * _solve(lambda rho: epsilon_of(rho, delta), epsilon))))


def gdp(epsilon: float, delta: float, releases: int) -> Multiplier:
    """Exact for Gaussians: sigma = sqrt(releases) / mu (Dong, Roth, Su 2022)."""
    _check(epsilon, delta, releases)
    return Multiplier(math.sqrt(releases) / gdp_mu(epsilon, delta))


def pld_with_counts(
    epsilon: float, delta: float, rounds: int, count_epsilon: float, tolerance: float = 1e-3
) -> Multiplier:
    """Two Gaussian sums and one Laplace count of `count_epsilon` a round, by numerical privacy loss distributions.

    Takes seconds: dp-accounting composes numerically at every step of the search. tolerance: of sigma.
    """
    from dp_accounting import (
        ComposedDpEvent,
        ExplicitBracketInterval,
        GaussianDpEvent,
        LaplaceDpEvent,
        SelfComposedDpEvent,
        calibrate_dp_mechanism,
        pld,
    )

    _check(epsilon, delta, rounds)
    if not 0 < rounds * count_epsilon < epsilon:
        raise ConfigError(f"counts of epsilon {count_epsilon:g} in {rounds} rounds leave nothing of {epsilon:g}.")
    counts = SelfComposedDpEvent(LaplaceDpEvent(1 / count_epsilon), rounds)

    def events(sigma: float) -> ComposedDpEvent:
        return ComposedDpEvent([SelfComposedDpEvent(GaussianDpEvent(sigma), SUMS_PER_ROUND * rounds), counts])

    low = gdp(epsilon, delta, SUMS_PER_ROUND * rounds).sigma
    high = gdp(epsilon - rounds * count_epsilon, delta, SUMS_PER_ROUND * rounds).sigma
    interval = ExplicitBracketInterval(0.99 * low, 1.01 * high)
    sigma = calibrate_dp_mechanism(pld.PLDAccountant, events, epsilon, delta, interval, tol=tolerance)
    return Multiplier(float(sigma), count_epsilon)


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
