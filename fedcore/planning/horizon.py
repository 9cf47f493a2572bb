"""Horizon of a budget by cohort: how many runs each cohort's budget should fund. For a horizon, this module computes
what a run may spend, how many clients have budget left in a steady state, and the loss due to noise after 1, 10 and all
runs.

Let new clients be a fraction q of the N clients at each run. If every cohort's budget funds H runs, a run sees
N (1 - (1 - q)^H) clients and has noise in proportion to sqrt(H). Signal to noise is largest at about H = 1.26 / q, and
72 % of the clients then have budget left. Everything here uses the budget, declared sizes and public facts only; no
data are opened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np

from fedcore.errors import ConfigError
from fedcore.planning.budget_plan import SETTLED, check_not_by_period, later_runs, rounded_down
from fedcore.population.manifest import Manifest
from fedcore.population.store import Population
from fedcore.privacy.accounting import Budget, exact_sum, rounded_up
from fedcore.privacy.ledger.ledger import Balance
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import Method, PublicFacts
from fedcore.rounds.private_settings import LONGEST
from fedcore.training.budget import check_kind, checked_unit, fit_plan, nominal_clients, public_facts, required_budget
from fedcore.training.cohorts import cohort_accounts, cost_of

BEST: Final = 1.2564312086261695  # x at which (1 - exp(-x)) / sqrt(x) is largest
RECENT = 26  # cohorts whose declared sizes say how many come


@dataclass(frozen=True, slots=True)
class Arrivals:
    """share: of newcomers in the population at each run; source: how it is known."""

    share: float
    source: str


def declared_arrivals(manifest: Manifest) -> Arrivals | None:
    """From the declared sizes of the newest cohorts, one for each run; None if too few are declared."""
    shares, total, known = [], 0, []
    for cohort in manifest.cohorts:
        if cohort.nominal is None:
            return None
        total += cohort.nominal
        if cohort.number > 1 and total:
            shares.append(cohort.nominal / total)
            known.append(cohort.number)
    shares, known = shares[-RECENT:], known[-RECENT:]
    if not sum(shares) > 0:
        return None
    return Arrivals(sum(shares) / len(shares), f"declared sizes of cohorts {known[0]} to {known[-1]}")


def best_horizon(arrivals: float) -> int:
    """The number of runs for which one run has the largest signal to noise, from the share of newcomers at each run."""
    return min(max(round(BEST / arrivals), 1), LONGEST)


def share_able(arrivals: float, horizon: int) -> float:
    """Of the clients, in a steady state."""
    return 1.0 - (1.0 - arrivals) ** horizon


def horizon_plan(
    method: Method[Any, Any],
    population: Population,
    balance: Balance,
    horizon: int | None,
    arrivals: float | None = None,
    beside: Sequence[tuple[str, float]] = (),
) -> dict[str, Any]:
    """Expected utility of a run under a horizon, as JSON values.

    horizon: runs that a cohort's budget funds; None: the best one for this fraction of new clients. arrivals: fraction
    of new clients at each run; None: from the declared sizes of the cohorts. `beside`: (name, rho of a run) of other
    schedules on the same population, each with one run for each of these. Raises BudgetMissing, ConfigError, WrongKind,
    PrivacyError.
    """
    budget = required_budget(population, balance)
    check_kind(method, population)
    checked_unit(method, balance.unit, population)
    check_not_by_period(population)
    come = _arrivals(population, arrivals)
    horizon = best_horizon(come.share) if horizon is None else horizon
    if not 1 <= horizon <= LONGEST:
        raise ConfigError(f"a horizon is 1 to {LONGEST} runs, not {horizon}.")
    nominal = nominal_clients(method, population)
    if nominal is None:
        raise ConfigError(
            f"population {population.path.name!r} has no declared size, from which the noise of a run is planned.",
            "Declare it: --set nominal_clients=N.",
        )
    steady = share_able(come.share, horizon)
    seen = max(1, round(nominal * steady))

    def planned(
        start: Mapping[str, np.ndarray] | None,
    ) -> tuple[tuple[PlannedRelease, ...], dict[str, Any], PublicFacts]:
        relation, unit = balance.relation or "add_or_remove_one", balance.unit or "client"

        def facts(rho: float) -> PublicFacts:
            made = public_facts(method, population, rho, 0, relation, start, unit)
            return replace(made, nominal_clients=seen)

        plan, public = fit_plan(method, facts, budget.rho_max, horizon)
        return plan, method.budget_sketch(public, plan), public

    plan, sketch, public = planned(None)
    price = exact_sum(release.rho for release in plan)
    last = min(horizon, SETTLED)
    numbers = sorted({min(10, last), last} - {1})
    later = later_runs(method, lambda start: planned(start)[1:], public, numbers) if numbers else {}
    others = exact_sum(rho for _, rho in beside)
    return {
        "relation": balance.relation,
        "delta": budget.delta,
        "arrivals": come.share,
        "arrivals_from": come.source,
        "horizon": horizon,
        "nominal_clients": nominal,
        "able_share": steady,
        "able_clients": seen,
        "rho_per_run": rounded_up(cost_of(plan, method.private_settings.spare_releases).rho),
        "epsilon_per_run": rounded_down(budget.epsilon_of(float(price))),
        "spare_releases": method.private_settings.spare_releases,
        "other_schedules": {name: rho for name, rho in beside},
        "runs_until_a_cohort_retires": int(Fraction(budget.rho_max) // (price + others)),
        "runs_of_the_founders": _runs_left(population, balance, budget, price + others),
        "without_arrivals": f"refused after {int(Fraction(budget.rho_max) // (price + others))} runs",
        "runs": {"1": sketch, **{str(number): found for number, found in later.items()}},
    }


def _arrivals(population: Population, given: float | None) -> Arrivals:
    """Raises ConfigError if the number of new clients is unknown."""
    if given is not None:
        if not 0 < given < 1:
            raise ConfigError(f"arrivals must be a fraction of the population between 0 and 1, not {given:g}.")
        return Arrivals(given, "as given")
    found = declared_arrivals(population.manifest)
    if found is None:
        raise ConfigError(
            f"the declared sizes of population {population.path.name!r} do not show how many clients come.",
            "Pass it: --arrivals 0.03 if 3 % of the clients at a run are new.",
        )
    return found


def _runs_left(population: Population, balance: Balance, budget: Budget, price: Fraction) -> int:
    """How many more runs the budget of the initial cohort allows."""
    accounts = cohort_accounts(population.manifest, balance)
    return max(0, math.floor(Fraction(accounts[0].rho if accounts else balance.rho_left) / price))
