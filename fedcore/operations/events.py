"""Events for an operator, as values: a budget that was charged or is low, a run that was promoted or refused, a
population that has grown, a damaged block, a missed start, a stalled run.

Nothing is sent from here: `fedcore.tasks.events` passes the events to Prefect. Everything in them comes from the ledger
or from records of runs, or is a count or time for operators (docs/privacy/limitations.md). Nothing is computed from
unpublished values of clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fedcore.errors import FedcoreError
from fedcore.operations.budget_left import BudgetLeft
from fedcore.operations.hanging import Hanging
from fedcore.population.store import Population
from fedcore.runs.store import Run
from fedcore.storage.files import Place, place

BUDGET_CHARGED, BUDGET_LOW = "fedcore.budget.charged", "fedcore.budget.low"
PROMOTED, REFUSED = "fedcore.run.promoted", "fedcore.run.refused"
APPENDED, DAMAGED = "fedcore.population.appended", "fedcore.block.damaged"
MISSED, HANGING = "fedcore.schedule.missed", "fedcore.run.hanging"
EVENTS = (BUDGET_CHARGED, BUDGET_LOW, PROMOTED, REFUSED, APPENDED, DAMAGED, MISSED, HANGING)


@dataclass(frozen=True, slots=True)
class Subject:
    """What an event is about. kind: population, run or deployment; id: never changes; name: for display."""

    kind: str
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """name: one of EVENTS; payload: JSON values, among them `message`, a sentence for people; related: what else it
    has to do with.
    """

    name: str
    subject: Subject
    payload: Mapping[str, Any] = field(default_factory=dict)
    related: tuple[Subject, ...] = ()


def of_population(population: Population) -> Subject:
    return Subject("population", population.id, population.path.name)


def of_run(run: Run) -> Subject:
    return Subject("run", run.id, run.id)


def of_deployment(name: str | None) -> tuple[Subject, ...]:
    """Of a run that no deployment made, nothing."""
    return () if name is None else (Subject("deployment", name, name),)


def _deployment_of(run: Run) -> str | None:
    name = run.info.get("deployment")
    return name if isinstance(name, str) else None


def budget_events(run: Run, population: Population, found: BudgetLeft, runs_left: int) -> list[Event]:
    """Events that a private run has charged the budget, and that the budget is low, if it became so with this run.

    runs_left: with this number of runs left, or fewer, the budget is low
    """
    name = _deployment_of(run)
    facts = {"population": population.path.name, "run": run.id, "deployment": name, **found.to_json()}
    about, related = of_population(population), (of_run(run), *of_deployment(name))
    charged = f"Run {run.id} has charged rho = {found.rho_charged:.6g} to the budget of {population.path.name}."
    events = []
    if found.rho_charged > 0:
        events.append(Event(BUDGET_CHARGED, about, {**facts, "message": f"{charged} {found.in_words}"}, related))
    if found.falls_to(runs_left):
        low = f"The budget of population {population.path.name} is low. {found.in_words}"
        events.append(Event(BUDGET_LOW, about, {**facts, "threshold": runs_left, "message": low}, related))
    return events


def run_promoted(run: Run, deployment: str, because: str, before: str | None = None) -> Event:
    """before: the run that was the latest one until then, if it is known."""
    where = run.info.get("population") or {}
    id, name = str(where.get("id")), str(where.get("name") or place(str(where.get("path"))).name)
    payload = {
        "run": run.id,
        "deployment": deployment,
        "population": name,
        "before": before,
        "because": because,
        "message": f"Run {run.id} is now the latest run of deployment {deployment}, because {because}.",
    }
    return Event(PROMOTED, of_run(run), payload, (Subject("population", id, name), *of_deployment(deployment)))


def run_refused(
    error: FedcoreError, method: str, where: Place, population: Population | None, name: str | None
) -> Event:
    """A run that was not begun. where: its population, which may not be there; name: of its deployment."""
    payload = {
        "method": method,
        "population": where.name,
        "deployment": name,
        "error": type(error).__name__,
        "reason": error.message,
        "remedy": error.remedy,
        "message": f"A run of {method} on population {where.name} was refused: {error}",
    }
    about = () if population is None else (of_population(population),)
    subjects = (*of_deployment(name), *about) or (Subject("place", where.name, where.name),)
    return Event(REFUSED, subjects[0], payload, subjects[1:])


def population_appended(made: Population, before: Population) -> Event:
    """A version that was made of another one. Its counts are for operators."""
    more = made.n_clients - before.n_clients
    payload = {
        "population": made.path.name,
        "place": made.location,
        "version": made.version,
        "before": before.version,
        "clients": made.n_clients,
        "clients_more": more,
        "rows_more": made.n_rows - before.n_rows,
        "blocks": len(made.blocks),
        "message": f"Population {made.path.name} has version {made.version}, with {more} more clients.",
    }
    return Event(APPENDED, of_population(made), payload)


def block_damaged(population: Population, reason: str, remedy: str = "", name: str | None = None) -> Event:
    """reason: which names the block; name: of the deployment whose run has found it."""
    payload = {
        "population": population.path.name,
        "place": population.location,
        "version": population.version,
        "deployment": name,
        "reason": reason,
        "remedy": remedy,
        "message": f"{reason} {remedy}".strip(),
    }
    return Event(DAMAGED, of_population(population), payload, of_deployment(name))


def schedule_missed(name: str, due: datetime, last: datetime | None, why: str) -> Event:
    """due: when the deployment should have started; last: when it has started before, None: never; why: in words"""
    at, before = f"{due:%Y-%m-%d %H:%M:%S %Z}", "It has never started"
    if last is not None:
        before = f"It has started before at {last:%Y-%m-%d %H:%M:%S %Z}"
    payload = {
        "deployment": name,
        "due": due.isoformat(),
        "last": None if last is None else last.isoformat(),
        "why": why,
        "message": f"Deployment {name} should have started at {at}, and has not: {why}. {before}.",
    }
    return Event(MISSED, of_deployment(name)[0], payload)


def run_hanging(found: Hanging) -> Event:
    run, name = found.run, _deployment_of(found.run)
    holder = "a process holds it" if found.held else "no process holds it"
    payload = {
        "run": run.id,
        "deployment": name,
        "round": run.round,
        "seconds": round(found.seconds, 1),
        "usual_seconds": found.usual,
        "held": found.held,
        "message": f"Run {run.id} has committed nothing for {found.seconds:.0f} s after round {run.round}; {holder}. "
        f"{found.in_words}",
    }
    return Event(HANGING, of_run(run), payload, of_deployment(name))
