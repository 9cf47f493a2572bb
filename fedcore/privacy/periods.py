"""Guarantees for one client and one calendar period, and the privacy loss of a client over all periods
(docs/privacy/client-periods.md).

Each period is a cohort of entries, one for each client that has data in it, with a separate account. A run reads at
most `window` periods. A client with entries in T periods moves a sum of a run by at most as many sensitivities as the
run reads of them, k <= window, so the run costs this client k^2 times its rho. Over all runs that is at most
window T rho_max, whatever the runs are.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fedcore.errors import ConfigError
from fedcore.population.periods import UNITS, PeriodUnit
from fedcore.privacy.accounting import Budget, rounded_up
from fedcore.privacy.gdp import mu_of
from fedcore.storage.ranges import Ranges

SHOWN: Final = (12, 24)  # numbers of periods for which the bound is shown


@dataclass(frozen=True, slots=True)
class PeriodTerms:
    """What a budget for client and period is set with. unit: of the calendar; window: periods that a run may read."""

    unit: PeriodUnit
    window: int

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ConfigError(f"there is no calendar period {self.unit!r}.", f"Use one of {', '.join(UNITS)}.")
        if type(self.window) is not int or self.window < 1:
            raise ConfigError(f"a window is a number of {self.unit}s from 1, not {self.window!r}.")


def periods_in(ranges: Ranges) -> int:
    """How many a run reads."""
    return sum(last - first + 1 for first, last in ranges)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Largest privacy loss of a client with data in `periods` periods; None: in every period, by what was spent so
    far."""

    periods: int | None
    rho: float
    epsilon: float
    delta: float

    @property
    def mu(self) -> float:
        return mu_of(self.rho)


def bound(budget: Budget, terms: PeriodTerms, periods: int) -> Lifetime:
    """Over all runs that the accounts of the periods allow: rho = window periods rho_max."""
    rho = rounded_up(terms.window * periods * Fraction(budget.rho_max))
    return Lifetime(periods, rho, budget.epsilon_of(rho), budget.delta)


def bounds(budget: Budget, terms: PeriodTerms) -> tuple[Lifetime, ...]:
    """The bounds that are shown with every such budget."""
    return tuple(bound(budget, terms, periods) for periods in SHOWN)


def so_far(budget: Budget, rho: float) -> Lifetime:
    """Of what the ledger has charged. rho: the sum of k^2 times what each run has spent, k the periods it read."""
    return Lifetime(None, rho, budget.epsilon_of(rho), budget.delta)
