"""A planned release: what a run will publish about people, and its price, known before any data are opened."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from fedcore.errors import ConfigError

Relation = Literal["add_or_remove_one", "replace_one"]
Unit = Literal["client", "record"]


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """One noised array of integers on a grid.

    name:        unique in the run
    round:       the round that makes it, counted from 1
    shape:       of the released array
    sensitivity: largest L2 norm, in grid units, by which one unit (a client, say) can change the *whole* array;
                 an integer, so that it can be checked without rounding
    noise_multiplier: scale of the discrete Gaussian divided by the sensitivity
    argument:    the page of docs/privacy that argues the sensitivity
    composition: one sentence for the statement, e.g. "one cell per client: all cells cost one release"
    delta:       what a thresholding step adds; 0 for the discrete Gaussian
    """

    name: str
    round: int
    shape: tuple[int, ...]
    sensitivity: int
    noise_multiplier: float
    argument: str
    composition: str
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise ConfigError(f"release {self.name!r}: the noise multiplier must be positive and finite.")
        if type(self.sensitivity) is not int or self.sensitivity <= 0:
            raise ConfigError(f"release {self.name!r}: the sensitivity must be a positive whole number.")

    @property
    def rho(self) -> float:
        """zCDP price of the discrete Gaussian, 1/(2 sigma**2), rounded up (Canonne, Kamath, Steinke 2020, Thm 4)."""
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
        return {**asdict(self), "shape": list(self.shape), "rho": self.rho}
