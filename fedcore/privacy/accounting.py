"""Budgets, and sums of privacy costs without rounding.

A budget (epsilon, delta) is turned once into (rho_max, delta_conv, delta_extra), in Gaussian differential privacy
(`fedcore.privacy.gdp`, docs/privacy/gdp.md). A release costs (rho, delta'), rho = mu^2 / 2. What is spent keeps
sum rho <= rho_max and sum delta' <= delta_extra, also when later releases are chosen after seeing earlier ones. Epsilon
is for display.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction

from fedcore.errors import ConfigError
from fedcore.privacy import gdp

CURRENCY = "gdp"  # as records, tables and statements name it


@dataclass(frozen=True, slots=True)
class Budget:
    """What a population may lose in total.

    epsilon, delta: as promised. rho_max: what gives epsilon at delta_conv. delta_extra: sum of the deltas of
    thresholding steps. delta_conv + delta_extra <= delta exactly.
    """

    epsilon: float
    delta: float
    rho_max: float
    delta_conv: float
    delta_extra: float

    def epsilon_of(self, rho: float) -> float:
        """An upper bound on the epsilon that this rho costs, at delta_conv; 0 for 0.

        Raises ConfigError unless rho is finite and not negative.
        """
        if not (rho >= 0 and math.isfinite(rho)):
            raise ConfigError(f"rho must be finite and not negative, not {rho!r}.")
        return gdp.epsilon_of(2 * Fraction(rho), self.delta_conv)

    def rho_of(self, epsilon: float) -> float:
        """The largest rho that costs at most this epsilon, at delta_conv. Raises ConfigError for a bad epsilon."""
        return gdp.rho_max(epsilon, self.delta_conv)

    def numbers(self) -> dict[str, float]:
        """Without the currency, as records of a ledger hold them."""
        return asdict(self)

    def to_json(self) -> dict[str, float | str]:
        return {"currency": CURRENCY, **self.numbers()}


def make_budget(epsilon: float, delta: float, delta_extra: float | None = None) -> Budget:
    """Raises ConfigError unless 0 < epsilon < inf, 0 < delta < 1 and 0 <= delta_extra < delta.

    delta_extra: the part of delta kept for thresholding steps; none by default.
    """
    gdp.check_promise(epsilon, delta)
    if delta_extra is None:
        delta_extra = 0.0
    if not 0 <= delta_extra < delta:
        raise ConfigError(
            f"delta_extra must be at least 0 and below delta = {delta:g}, not {delta_extra!r}.",
            "It is the part of delta that thresholding steps may use.",
        )
    delta_conv = delta - delta_extra
    while Fraction(delta_conv) + Fraction(delta_extra) > Fraction(delta):
        delta_conv = math.nextafter(delta_conv, 0)
    return Budget(float(epsilon), float(delta), gdp.rho_max(epsilon, delta_conv), delta_conv, float(delta_extra))


# --- exact sums -----------------------------------------------------------------------------------------------------


def exact_sum(values: Iterable[float]) -> Fraction:
    """The sum of the floats without rounding."""
    return sum(map(Fraction, values), Fraction(0))


def rounded_up(value: Fraction) -> float:
    """The smallest float >= value."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def rounded_down(value: Fraction) -> float:
    """The largest float <= value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)
