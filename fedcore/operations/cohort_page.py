"""The operator's page on a budget by cohort, or on sub-budgets: what each cohort or sub-budget has spent, which cohorts
had enough budget in the last runs, and until when the initial cohort has. Made from the ledger, declared sizes and the
records of runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any

from fedcore.errors import PopulationError
from fedcore.evaluation.written import iso_date
from fedcore.operations.forecast import began
from fedcore.population.cohorts import FOUNDERS
from fedcore.population.manifest import Manifest
from fedcore.population.store import Population
from fedcore.privacy.accounting import Budget, exact_sum
from fedcore.privacy.ledger.chain import Balance, Segment, ShareBalance
from fedcore.runs.store import Run
from fedcore.storage.ranges import Ranges, holds, in_words
from fedcore.training.cohorts import cohort_accounts

MOST_RUNS = 30  # of which the share that took part is shown
LIFETIME = "A client with data in several periods loses at most"
UNDIVIDED = "(undivided)"
OF_SHARES = (
    "The operator has divided the budget into shares; each run is charged to the share that it names. The privacy "
    "guarantee is that of the whole budget."
)


def segment_rows(balance: Balance, manifest: Manifest) -> list[dict[str, Any]]:
    """What each client of some cohorts has lost, and may lose still, for consecutive cohorts of equal account; deltas
    of thresholds where some are allowed. Empty where one account is kept for all. Later cohorts have spent nothing.

    manifest: of the population, for the dates of its calendar periods
    """
    return [
        {**who(manifest, ((segment.first, segment.last),)), **_spent(segment, balance.required_budget())}
        for segment in balance.segments
    ]


def share_rows(balance: Balance, manifest: Manifest) -> list[dict[str, Any]]:
    """What each share has spent, reserved and left, the undivided part last; by cohort where the account is kept so,
    for consecutive cohorts of equal account. Empty unless the budget is divided.

    manifest: of the population, for the dates of its calendar periods
    """
    rows = []
    for share in balance.shares:
        parts: tuple[ShareBalance | Segment, ...] = share.segments or (share,)
        for part in parts:
            cohorts = who(manifest, ((part.first, part.last),)) if isinstance(part, Segment) else {}
            row = {"share": share.name or UNDIVIDED, "part": str(share.part), **cohorts, "rho": share.rho_max}
            rows.append({**row, **_spent(part, balance.required_budget())})
    return rows


def lifetime_rows(balance: Balance) -> list[dict[str, Any]]:
    """What a client with data in several calendar periods loses at most, and by the runs so far. Empty unless a budget
    is per client and period.
    """
    if balance.periods is None:
        return []
    unit = balance.periods.unit
    return [
        {
            "data in": f"{one.periods} {unit}s" if one.periods else f"every {unit}, by the runs so far",
            "rho": one.rho,
            "epsilon": one.epsilon,
            "delta": one.delta,
        }
        for one in balance.lifetime
    ]


def promise_in_words(balance: Balance) -> str:
    """The privacy guarantee of a budget by cohort, as a sentence."""
    budget, terms = balance.required_budget(), balance.periods
    promised = (
        f"promised epsilon = {budget.epsilon:g}, delta = {budget.delta:g} (rho = {budget.rho_max:.5g}) for all runs."
    )
    if terms is None:
        return f"Each client is {promised}"
    return f"Each {terms.unit} of a client is {promised} A run reads at most {terms.window} of them."


def who(manifest: Manifest, ranges: Ranges) -> dict[str, str]:
    """Cohorts as a table says them; calendar periods by their dates too."""
    if manifest.period is None:
        return {"cohorts": in_words(ranges)}
    return {"cohorts": in_words(ranges), f"{manifest.period.unit}s": manifest.periods_in_words(ranges)}


def _spent(part: Segment | ShareBalance, budget: Budget) -> dict[str, float]:
    row = {
        "rho spent": part.rho_spent,
        "epsilon spent": budget.epsilon_of(part.rho_spent),
        "rho reserved": part.rho_reserved,
        "rho left": max(part.rho_left, 0.0),
    }
    deltas = {"delta spent": part.delta_spent, "delta left": max(part.delta_left, 0.0)}
    return {**row, **deltas} if budget.delta_extra else row


def able_rows(population: Population, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Of the newest private runs, newest first: who took part, and their share of the declared size of its version.

    runs: on this population, newest first
    """
    rows: list[dict[str, Any]] = []
    manifests: dict[Any, Manifest] = {population.version: population.manifest}
    for run in runs:
        ranges, version = cohorts_of(run), (run.info.get("population") or {}).get("version")
        if ranges is None or len(rows) == MOST_RUNS:
            continue
        try:
            manifest = manifests.get(version) or Population.open(population.path, version=version).manifest
        except PopulationError:  # a version that was forgotten
            continue
        manifests[version] = manifest
        took, all_of_them = _nominal(manifest, ranges), manifest.nominal_clients
        rows.append(
            {
                "run": run.id,
                "started": iso_date(run.info.get("started")),
                **who(manifest, ranges),
                "declared clients": took,
                "share that took part": None if took is None or not all_of_them else took / all_of_them,
            }
        )
    return rows


def founders_in_words(population: Population, balance: Balance, runs: Sequence[Run]) -> str:
    """When the budget of the initial cohort ends, if runs continue like the last ones. runs: newest first."""
    mine = [run for run in runs if cohorts_of(run) is not None]
    if not mine or balance.budget is None:
        return ""
    price = exact_sum(float(planned["rho"]) for planned in mine[0].info["plan"])
    left = Fraction(cohort_accounts(population.manifest, balance)[FOUNDERS - 1].rho)
    more = int(left // price) if price else 0
    if not more:
        return "The initial cohort (cohort 1) is exhausted: its budget does not allow a run like the last one."
    starts = [started for run in mine if (started := began(run)) is not None]
    steps = [(later - earlier).total_seconds() for later, earlier in zip(starts, starts[1:], strict=False)]
    said = f"The budget of the initial cohort (cohort 1) allows {more} more runs like the last one"
    if not steps:
        return f"{said}."
    last = starts[0] + timedelta(seconds=statistics.median(steps) * more)
    year, week, _ = last.isocalendar()
    return f"{said}: at the pace of the last runs it ends with the run of week {week} of {year} ({last:%Y-%m-%d})."


def cohorts_of(run: Run) -> Ranges | None:
    """Who took part in a run, as its record says; None if no cohorts are named."""
    try:
        return tuple((int(first), int(last)) for first, last in run.info["cohorts"]) or None
    except (KeyError, TypeError, ValueError):
        return None


def _nominal(manifest: Manifest, ranges: Ranges) -> int | None:
    sizes = [cohort.nominal for cohort in manifest.cohorts if holds(ranges, cohort.number)]
    return None if None in sizes else sum(size for size in sizes if size is not None)
