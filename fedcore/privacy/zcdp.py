"""Zero-concentrated differential privacy (zCDP): its (epsilon, delta), by the best Renyi order.

Accounts that were opened before Gaussian differential privacy (`fedcore.privacy.gdp`) became the currency stay in it.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from functools import cache, lru_cache

import numpy as np

from fedcore.errors import ConfigError
from fedcore.privacy.gdp import check_promise

SAFETY = 1e-4  # calibrated to epsilon * (1 - SAFETY), so that a recomputation by other software stays within epsilon


def epsilon_of(rho: float, delta: float) -> float:
    """An upper bound on epsilon, such that rho-zCDP implies (epsilon, delta)-DP; 0 for rho = 0.

    zCDP is a line of Renyi bounds, one for each order; every order gives a valid epsilon (Canonne, Kamath, Steinke
    2020, Prop. 12, as in dp-accounting) and the smallest over a dense grid of orders is returned.
    """
    if not (rho >= 0 and math.isfinite(rho)):
        raise ConfigError(f"rho must be finite and not negative, not {rho!r}.")
    check_promise(1.0, delta)
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
