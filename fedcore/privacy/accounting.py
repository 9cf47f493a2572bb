"""The currency of budgets: approximate zero-concentrated differential privacy (zCDP).

A budget (epsilon, delta) is turned once into (rho_max, delta_conv, delta_extra). A release costs (rho, delta'); what is
spent may not exceed sum rho <= rho_max and sum delta' <= delta_extra, also when later releases are chosen after
seeing earlier ones (approximate zCDP filter: Whitehouse, Ramdas, Rogers, Wu 2023). Epsilon is for display.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np

from fedcore.errors import ConfigError

SAFETY = 1e-4  # calibrated to epsilon * (1 - SAFETY), so that a recomputation by other software stays within epsilon
EXTRA_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ZcdpBudget:
    """What a population may lose in total.

    epsilon, delta: as promised. rho_max: zCDP that gives epsilon at delta_conv. delta_extra: sum of the deltas of
    thresholding steps. delta_conv + delta_extra <= delta exactly.
    """

    epsilon: float
    delta: float
    rho_max: float
    delta_conv: float
    delta_extra: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def zcdp_budget(epsilon: float, delta: float, delta_extra: float | None = None) -> ZcdpBudget:
    """Raises ConfigError unless 0 < epsilon < inf, 0 < delta < 1 and 0 <= delta_extra < delta.

    delta_extra: the part of delta kept for thresholding steps; 10 % by default.
    """
    _check(epsilon, delta)
    if delta_extra is None:
        delta_extra = EXTRA_SHARE * delta
    if not 0 <= delta_extra < delta:
        raise ConfigError(
            f"delta_extra must be at least 0 and below delta = {delta:g}, not {delta_extra!r}.",
            "It is the part of delta that thresholding steps may use.",
        )
    delta_conv = delta - delta_extra
    while Fraction(delta_conv) + Fraction(delta_extra) > Fraction(delta):
        delta_conv = math.nextafter(delta_conv, 0)
    return ZcdpBudget(float(epsilon), float(delta), rho_of(epsilon, delta_conv), delta_conv, float(delta_extra))


def _check(epsilon: float, delta: float) -> None:
    if not (isinstance(epsilon, (int, float)) and math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon must be positive and finite, not {epsilon!r}.", "Usual values are 0.5 to 15.")
    if not (isinstance(delta, (int, float)) and 0 < delta < 1):
        raise ConfigError(f"delta must lie between 0 and 1, not {delta!r}.", "Choose it far below 1/clients.")


def epsilon_of(rho: float, delta: float) -> float:
    """An upper bound on epsilon, such that rho-zCDP implies (epsilon, delta)-DP; 0 for rho = 0.

    zCDP is a line of Renyi bounds, one for each order; every order gives a valid epsilon (Canonne, Kamath, Steinke
    2020, Prop. 12, as in dp-accounting) and the smallest over a dense grid of orders is returned.
    """
    if not (rho >= 0 and math.isfinite(rho)):
        raise ConfigError(f"rho must be finite and not negative, not {rho!r}.")
    _check(1.0, delta)
    return _epsilon_of(float(rho), float(delta)) if rho > 0 else 0.0


@lru_cache(maxsize=4096)
def _epsilon_of(rho: float, delta: float) -> float:
    RdpAccountant, ZCDpEvent = _renyi()
    # The best order lies near 1 + sqrt(ln(1/delta) / rho); a wide geometric grid around it.
    distance = math.sqrt(math.log(1 / delta) / rho)
    orders = 1 + distance * np.geomspace(1 / 16, 16, 801)
    return float(RdpAccountant(orders[orders > 1 + 1e-12]).compose(ZCDpEvent(rho)).get_epsilon(delta))


@cache
def _renyi() -> tuple[type, type]:
    """dp-accounting's `RdpAccountant` and `ZCDpEvent`, from the two modules that define them.

    The package itself imports all of its accountants, and with them scipy.stats and scipy.signal, which takes three
    times as long. While the two modules are imported, the package is there without its contents; whoever imports it
    later gets all of it, with the same classes.
    """
    name = "dp_accounting"
    if name not in sys.modules:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        bare = importlib.util.module_from_spec(spec)
        sys.modules[name] = bare
    else:
        bare = None
    try:
        from dp_accounting.dp_event import ZCDpEvent
        from dp_accounting.rdp import RdpAccountant
    finally:
        if bare is not None and sys.modules.get(name) is bare:
            del sys.modules[name]
    return RdpAccountant, ZCDpEvent


@lru_cache(maxsize=1024)
def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho with epsilon_of(rho, delta) <= epsilon * (1 - 1e-4), to a relative 1e-9, from below."""
    _check(epsilon, delta)
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


# --- exact sums -----------------------------------------------------------------------------------------------------


def exact_sum(values: Iterable[float]) -> Fraction:
    """The sum of the floats without rounding."""
    return sum(map(Fraction, values), Fraction(0))


def fits(spent: Iterable[float], new: Iterable[float], limit: float) -> bool:
    """Whether sum(spent) + sum(new) <= limit, without rounding: exact at the edge."""
    return exact_sum(spent) + exact_sum(new) <= Fraction(limit)


def rounded_up(value: Fraction) -> float:
    """The smallest float >= value."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def rounded_down(value: Fraction) -> float:
    """The largest float <= value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)
