"""Budgets and the currencies they are in, and sums of prices without rounding.

A budget (epsilon, delta) is turned once into (rho_max, delta_conv, delta_extra). A release costs (rho, delta'); what is
spent may not exceed sum rho <= rho_max and sum delta' <= delta_extra, also when later releases are chosen after
seeing earlier ones. Epsilon is for display.

    gdp    rho = mu^2 / 2 of Gaussian differential privacy: `fedcore.privacy.gdp`, docs/privacy/gdp.md
    zcdp   rho of approximate zero-concentrated differential privacy (filter: Whitehouse, Ramdas, Rogers, Wu 2023):
           accounts opened by earlier versions, docs/privacy/discrete-gaussian.md
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Literal

from fedcore.errors import ConfigError
from fedcore.privacy import gdp, recount, zcdp

Currency = Literal["gdp", "zcdp"]
EXTRA_SHARE = 0.1  # of delta, kept for thresholding steps in zcdp unless the owner says otherwise


@dataclass(frozen=True, slots=True)
class Budget:
    """What a population may lose in total.

    epsilon, delta: as promised. rho_max: what gives epsilon at delta_conv. delta_extra: sum of the deltas of
    thresholding steps. delta_conv + delta_extra <= delta exactly. discrete: of an account that was opened in zcdp and
    recounted in gdp, the rho that releases with discrete noise may have cost until then (`fedcore.privacy.recount`).
    """

    currency: Currency
    epsilon: float
    delta: float
    rho_max: float
    delta_conv: float
    delta_extra: float
    discrete: float = 0.0

    def epsilon_of(self, rho: float) -> float:
        """An upper bound on the epsilon that this rho costs, at delta_conv; 0 for 0.

        Raises ConfigError unless rho is finite and not negative.
        """
        if not (rho >= 0 and math.isfinite(rho)):
            raise ConfigError(f"rho must be finite and not negative, not {rho!r}.")
        if self.currency == "zcdp":
            return zcdp.epsilon_of(rho, self.delta_conv)
        if self.discrete:
            return recount.epsilon_of(rho, self.delta_conv, self.discrete)
        return gdp.epsilon_of(2 * Fraction(rho), self.delta_conv)

    def rho_of(self, epsilon: float) -> float:
        """The largest rho that costs at most this epsilon, at delta_conv. Raises ConfigError for a bad epsilon."""
        return _rho_of(self.currency, epsilon, self.delta_conv, self.discrete)

    def numbers(self) -> dict[str, float]:
        """Without the currency, as records of a ledger hold them; without `discrete` where there is none."""
        values = {name: value for name, value in asdict(self).items() if name != "currency"}
        return values if self.discrete else {name: values[name] for name in values if name != "discrete"}

    def to_json(self) -> dict[str, float | str]:
        return {"currency": self.currency, **self.numbers()}


def make_budget(
    epsilon: float, delta: float, delta_extra: float | None = None, *, currency: Currency = "gdp", discrete: float = 0.0
) -> Budget:
    """Raises ConfigError unless 0 < epsilon < inf, 0 < delta < 1 and 0 <= delta_extra < delta.

    delta_extra: the part of delta kept for thresholding steps; by default none in gdp, 10 % in zcdp. discrete: see
    `Budget`.
    """
    gdp.check_promise(epsilon, delta)
    if delta_extra is None:
        delta_extra = EXTRA_SHARE * delta if currency == "zcdp" else 0.0
    if not 0 <= delta_extra < delta:
        raise ConfigError(
            f"delta_extra must be at least 0 and below delta = {delta:g}, not {delta_extra!r}.",
            "It is the part of delta that thresholding steps may use.",
        )
    delta_conv = delta - delta_extra
    while Fraction(delta_conv) + Fraction(delta_extra) > Fraction(delta):
        delta_conv = math.nextafter(delta_conv, 0)
    rho_max = _rho_of(currency, epsilon, delta_conv, discrete)
    return Budget(currency, float(epsilon), float(delta), rho_max, delta_conv, float(delta_extra), discrete)


def recounted(old: Budget) -> Budget:
    """A zcdp budget in gdp: epsilon, delta and its parts stay. Raises ConfigError if rho_max is too large for it."""
    rho_max = _rho_of("gdp", old.epsilon, old.delta_conv, old.rho_max)
    return replace(old, currency="gdp", rho_max=rho_max, discrete=old.rho_max)


def _rho_of(currency: Currency, epsilon: float, delta: float, discrete: float) -> float:
    if currency == "zcdp":
        return zcdp.rho_of(epsilon, delta)
    return recount.rho_max(epsilon, delta, discrete) if discrete else gdp.rho_max(epsilon, delta)


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
