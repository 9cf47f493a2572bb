"""Zero-concentrated differential privacy (zCDP): its (epsilon, delta), by the best Renyi order.

Accounts that were opened before Gaussian differential privacy (`fedcore.privacy.gdp`) became the currency stay in it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedcore.errors import ConfigError
from fedcore.privacy.gdp import check_promise

SMALLEST_ORDER = 1.01  # below it the formula is not stable, and never the best
SAFETY = 1e-4  # calibrated to epsilon * (1 - SAFETY), so that a recomputation by other software stays within epsilon


def epsilon_of(rho: float, delta: float) -> float:
    """An upper bound on epsilon, such that rho-zCDP implies (epsilon, delta)-DP; 0 for rho = 0.

    zCDP is a line of Renyi bounds, one for each order; every order gives a valid epsilon (Canonne, Kamath, Steinke
    2020, Prop. 12) and the smallest over a dense grid of orders is returned, to the last bit that of dp-accounting 0.6,
    with which accounts were opened.
    """
    if not (rho >= 0 and math.isfinite(rho)):
        raise ConfigError(f"rho must be finite and not negative, not {rho!r}.")
    check_promise(1.0, delta)
    return _epsilon_of(float(rho), float(delta)) if rho > 0 else 0.0


@lru_cache(maxsize=4096)
def _epsilon_of(rho: float, delta: float) -> float:
    # The best order lies near 1 + sqrt(ln(1/delta) / rho); a wide geometric grid around it.
    distance = math.sqrt(math.log(1 / delta) / rho)
    orders = 1 + distance * np.geomspace(1 / 16, 16, 801)
    return max(0.0, min(_of_order(rho, delta, float(order)) for order in orders))


def _of_order(rho: float, delta: float, order: float) -> float:
    """The epsilon that the Renyi bound rho * order gives."""
    divergence = rho * order
    if delta**2 + math.expm1(-divergence) > 0:  # total variation is at most sqrt(1 - exp(-divergence)), below delta
        return 0.0
    if order <= SMALLEST_ORDER:
        return math.inf
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


@lru_cache(maxsize=1024)
def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho with epsilon_of(rho, delta) <= epsilon * (1 - 1e-4), to a relative 1e-9, from below."""
    check_promise(epsilon, delta)
    target = epsilon * (1 - SAFETY)
    low = high = epsilon**2 / (4 * math.log(1 / delta) + 4 * epsilon)  # the simple conversion is near
    while epsilon_of(low, delta) > target:
        low /= 2
    while epsilon_of(high, delta) <= target:
        high *= 2
    while high - low > 1e-9 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle, delta) <= target else (low, middle)
    return low
