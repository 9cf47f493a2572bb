"""A planned release: what a run will publish about people, and its price, known before any data are opened."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from fedcore.errors import ConfigError
from fedcore.storage.parsing import JsonObject
from fedcore.storage.plain import LATER, entries, made_of

Relation = Literal["add_or_remove_one", "replace_one"]
Unit = Literal["client", "record", "client_period"]
CLIENT_PERIOD: Unit = "client_period"  # a client's data of one calendar period (docs/privacy/client-periods.md)
# Of noise, as a reservation names it; a law keeps its name for ever.
Law = Literal["rounded gaussian 1"]
ROUNDED: Law = "rounded gaussian 1"
LAWS = (ROUNDED,)


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """One noised array of integers on a grid.

    name:        unique in the run
    round:       the round that makes it, counted from 1
    shape:       of the released array
    sensitivity: largest L2 norm, in grid units, by which one unit (a client, say) can change the *whole* array;
                 an integer, so that it can be checked without rounding
    noise_multiplier: scale of the Gaussian noise divided by the sensitivity
    argument:    the page of docs/privacy that argues the sensitivity
    composition: one sentence for the statement, e.g. "one cell per client: all cells cost one release"
    delta:       what a thresholding step adds; 0 for noise alone
    optional:    whether the run can end before the round of this release, and is of use then: the last ones may be
                 given up to pay for a value that was drawn and lost
    """

    name: str
    round: int
    shape: tuple[int, ...]
    sensitivity: int
    noise_multiplier: float
    argument: str
    composition: str
    delta: float = 0.0
    optional: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise ConfigError(f"release {self.name!r}: the noise multiplier must be positive and finite.")
        if type(self.sensitivity) is not int or self.sensitivity <= 0:
            raise ConfigError(f"release {self.name!r}: the sensitivity must be a positive whole number.")

    @property
    def rho(self) -> float:
        """Price 1/(2 sigma**2) of Gaussian noise, mu**2/2 of mu-GDP, rounded up (docs/privacy/rounded-gaussian.md)."""
        return math.nextafter(math.nextafter(0.5 / self.noise_multiplier**2, math.inf), math.inf)

    @property
    def scale(self) -> float:
        """Scale of the noise in grid units, rounded up: never less noise than the price is for."""
        product = self.noise_multiplier * self.sensitivity
        exact = Fraction(self.noise_multiplier) * self.sensitivity
        return product if Fraction(product) >= exact else math.nextafter(product, math.inf)

    @property
    def cells(self) -> int:
        return int(np.prod(self.shape))

    def to_json(self) -> dict[str, Any]:
        """With the price."""
        return {**entries(self), "rho": self.rho}

    @classmethod
    def from_json(cls, item: JsonObject) -> PlannedRelease:
        """Raises KeyError, TypeError, ValueError or ConfigError if `to_json` did not make it."""
        return made_of(cls, {name: value for name, value in item.items() if name != "rho"})
