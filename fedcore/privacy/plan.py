"""A planned release: what a run will publish about people, and its privacy cost, known before any data are opened."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedcore.errors import ConfigError
from fedcore.storage.parsing import JsonObject
from fedcore.storage.plain import LATER, entries, made_of

Relation = Literal["add_or_remove_one", "replace_one"]
Unit = Literal["client", "record", "client_period"]
CLIENT_PERIOD: Unit = "client_period"  # a client's data of one calendar period (docs/privacy/client-periods.md)
# Distributions of noise, as reservations and charges name them. A name keeps its meaning permanently.
Law = Literal["rounded gaussian 1", "rounded gaussian share 1"]
ROUNDED: Law = "rounded gaussian 1"
SHARED: Law = "rounded gaussian share 1"  # each of several sites adds a share of it (docs/privacy/sites.md)
LAWS = (ROUNDED, SHARED)
MOST_SITES = 1000  # of a study, for which the bound in docs/privacy/sites.md is proved


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which several sites make the noise of their total together (docs/privacy/sites.md).

    sites:     number m of sites in the study, from 2 to MOST_SITES
    collusion: number t of other sites that may collude with the attacker, from 1 to m - 1
    study:     SHA-256 of the study, hexadecimal

    Raises ConfigError for other values.
    """

    sites: int
    collusion: int
    study: str

    def __post_init__(self) -> None:
        if type(self.sites) is not int or not 2 <= self.sites <= MOST_SITES:
            raise ConfigError(f"A study has 2 to {MOST_SITES} sites, not {self.sites!r}.")
        if type(self.collusion) is not int or not 1 <= self.collusion < self.sites:
            raise ConfigError(
                f"Of {self.sites} sites, 1 to {self.sites - 1} may collude, not {self.collusion!r}.",
                "Each site knows its own share of the noise, so at least one must be allowed for.",
            )
        if not (isinstance(self.study, str) and len(self.study) == 64 and set(self.study) <= set("0123456789abcdef")):
            raise ConfigError("A study is named by its SHA-256, 64 hexadecimal digits.")

    @property
    def honest(self) -> int:
        """m - t: the number of shares that the attacker does not know."""
        return self.sites - self.collusion


@dataclass(frozen=True, slots=True)
class NoiseShare(Terms):
    """The share of a release's noise that one site adds.

    scale: of the share, in grid units. total: of the noise of all sites, which the method planned, in grid units.
    """

    scale: float
    total: float


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """One noisy array of integers on a grid.

    name:        unique in the run
    round:       the round that makes it, counted from 1
    shape:       of the released array
    sensitivity: largest L2 norm, in grid units, by which one unit (a client, say) can change the *whole* array;
                 an integer, so that it can be checked without rounding
    noise_multiplier: scale of the Gaussian noise divided by the sensitivity
    argument:    the page of docs/privacy that proves the sensitivity
    composition: one sentence for the statement, e.g. "one cell per client: all cells cost one release"
    delta:       what a thresholding step adds; 0 for noise alone
    optional:    whether the run can end before the round of this release, and is of use then: the last ones may be
                 skipped to make up for a lost release
    noise_share: of a release that is the sum of several sites; None: one place adds all of the noise. With a share,
                 `noise_multiplier`, `scale` and `rho` are those of the shares that the attacker does not know
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
    noise_share: NoiseShare | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise ConfigError(f"release {self.name!r}: the noise multiplier must be positive and finite.")
        if type(self.sensitivity) is not int or self.sensitivity <= 0:
            raise ConfigError(f"release {self.name!r}: the sensitivity must be a positive whole number.")

    @property
    def rho(self) -> float:
        """Cost 1/(2 sigma**2) of Gaussian noise, mu**2/2 of mu-GDP, rounded up (docs/privacy/rounded-gaussian.md)."""
        return math.nextafter(math.nextafter(0.5 / self.noise_multiplier**2, math.inf), math.inf)

    @property
    def scale(self) -> float:
        """Scale of the noise in grid units, rounded up: never less noise than the cost assumes."""
        product = self.noise_multiplier * self.sensitivity
        (rounded, parts), (exact, of) = product.as_integer_ratio(), self.noise_multiplier.as_integer_ratio()
        enough = rounded * of >= exact * self.sensitivity * parts  # in whole numbers, without rounding
        return product if enough else math.nextafter(product, math.inf)

    @property
    def law(self) -> Law:
        """The distribution of its noise."""
        return ROUNDED if self.noise_share is None else SHARED

    @property
    def cells(self) -> int:
        return int(np.prod(self.shape))

    def to_json(self) -> dict[str, Any]:
        """The release as JSON values, with its cost rho."""
        return {**entries(self), "rho": self.rho}

    @classmethod
    def from_json(cls, item: JsonObject) -> PlannedRelease:
        """Raises KeyError, TypeError, ValueError or ConfigError if `to_json` did not make it."""
        return made_of(cls, {name: value for name, value in item.items() if name != "rho"})
