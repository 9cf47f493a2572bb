"""What is left of a budget, cut into equal runs: what each may ask for, what it buys, what noise costs it.

Everything here is made from the budget and from public facts; no data are opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from fedcore.errors import BudgetExceeded, ConfigError
from fedcore.methods.names import METHODS
from fedcore.methods.registry import make_method, suited_to
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import Balance
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import Method, PublicFacts
from fedcore.training.budget import check_kind, checked_unit, fit_plan, nominal_clients, public_facts, required_budget

SETTLED = 200  # runs of a series that are planned one after the other; what a series buys has settled by then
DIGITS = 4  # of an epsilon that is shown, rounded down so that what is shown fits


def equal_runs(
    method: Method[Any, Any], population: Population, balance: Balance, runs: int, epsilon: float | None = None
) -> dict[str, Any]:
    """What each of `runs` equal runs may spend; epsilon: what each would ask for instead. JSON-ready.

    Spare releases are set aside in each run's share and come back at its end if no draw was lost; `epsilon_if_no_spare`
    is what a run then costs. Raises BudgetMissing, BudgetExceeded if nothing is left, ConfigError, and
    WrongKind or PrivacyError if such runs would be refused for what the population holds or promises.
    """
    budget = required_budget(population, balance)
    check_kind(method, population)
    checked_unit(method, balance.unit, population)
    if runs < 1:
        raise ConfigError(f"a number of runs is at least 1, not {runs}.")
    check_not_by_period(population)
    if population.manifest.cohorts:
        raise ConfigError(
            f"population {population.path.name!r} has per-cohort budgets: the number of runs depends on new clients.",
            "Use --horizon auto instead of --runs.",
        )
    if not balance.rho_left > 0:
        raise BudgetExceeded(
            f"the budget of population {population.path.name!r} is used up.",
            "Nothing can be planned without `fedcore budget raise`.",
        )
    if epsilon is None:
        epsilon = rounded_down(budget.epsilon_of(balance.rho_left / runs))
    share = budget.rho_of(epsilon)
    fitting = int(min(balance.rho_left / share, 10**9))
    plan, cold, public = sketch_of(method, population, balance, share)
    last = max(2, min(runs, SETTLED))
    warm = later_runs(method, lambda start: sketch_of(method, population, balance, share, start)[1:], public, (2, last))
    spent = sum(planned.rho for planned in plan)
    return {
        "relation": balance.relation,
        "rho_left": balance.rho_left,
        "epsilon_left": budget.epsilon_of(balance.rho_left),
        "delta": budget.delta,
        "runs": runs,
        "nominal_clients": nominal_clients(method, population),
        "epsilon_per_run": epsilon,
        "rho_per_run": share,
        "spare_releases": method.private_settings.spare_releases,
        "rho_if_no_spare": spent,
        "epsilon_if_no_spare": budget.epsilon_of(spent),
        "fits": runs <= fitting,
        "runs_that_fit": fitting,
        "cold": cold,
        **{("warm" if number == 2 else "last"): sketch for number, sketch in warm.items()},
    }


def check_not_by_period(population: Population) -> None:
    """Raises ConfigError if each calendar period has a separate budget: then there is no budget to divide."""
    if population.manifest.period is not None:
        raise ConfigError(
            f"each calendar period of population {population.path.name!r} is read by as many runs as its schedule has. "
            "New clients do not change that.",
            "Set the horizon to that number: runs a period, times the window. `fedcore train` shows the cost of a run.",
        )


def later_runs(
    method: Method[Any, Any],
    sketch_from: Callable[[Mapping[str, np.ndarray]], tuple[dict[str, Any], PublicFacts]],
    first: PublicFacts,
    numbers: Collection[int],
) -> dict[int, dict[str, Any]]:
    """The sketches of the runs of these numbers, from 2 on, each from what the one before it left; first: facts of the
    first one. Empty if runs do not start warm.

    sketch_from: the sketch of a run from these public arrays, and the facts that it was made from
    """
    sketches: dict[int, dict[str, Any]] = {}
    start, number = method.likely_warm_start(first), 2
    while start is not None and number <= max(numbers):
        sketch, public = sketch_from(start)
        if number in numbers:
            sketches[number] = sketch
        start, number = method.likely_warm_start(public), number + 1
    return sketches


def sketch_of(
    method: Method[Any, Any],
    population: Population,
    balance: Balance,
    share: float,
    start: Mapping[str, np.ndarray] | None = None,
) -> tuple[tuple[PlannedRelease, ...], dict[str, Any], PublicFacts]:
    """A run of this share of rho, from nothing or from public arrays: its plan, its sketch, what both rest on."""

    def public(rho: float) -> PublicFacts:
        relation = balance.relation or "add_or_remove_one"
        return public_facts(method, population, rho, 0, relation, start, balance.unit or "client")

    plan, facts = fit_plan(method, public, share)
    return plan, method.budget_sketch(facts, plan), facts


def rounded_down(value: float) -> float:
    """To four digits, downwards."""
    unit = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    return float(f"{math.floor(value / unit) * unit:.{DIGITS}g}")


def planned_method(name: str | None, settings: Mapping[str, Any], population: Population) -> Method[Any, Any]:
    """The method with these settings; without a name, the first one that is private by default and reads this kind of
    population. Raises ConfigError if it is not private.
    """
    method = suited_to(make_method(name or _private_for(population), settings), population)
    if not method.private:
        raise ConfigError(
            f"with these settings method {method.name!r} is not private and has no budget to plan.",
            "Name the settings of a private run, or another --method.",
        )
    return method


def _private_for(population: Population) -> str:
    for name in METHODS:
        method = make_method(name, {})
        if method.private and method.kind == population.kind:
            return name
    raise ConfigError(f"no method is private by default for a population of {population.kind}.", "Name a --method.")
