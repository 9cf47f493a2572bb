"""Prefect is told what an operator may want to act on: after a run, what it has charged and left, why it was refused,
which block is damaged. None of it decides how the run ends.
"""

from collections.abc import Callable
from typing import Any

from fedcore.flows.states import REFUSED
from fedcore.tasks.events import emit
from prefect import get_run_logger
from prefect.client.schemas import State

from fedcore.errors import ChunkError, FedcoreError, PopulationError
from fedcore.operations.budget_left import budget_left
from fedcore.operations.events import Event, block_damaged, budget_events, run_refused
from fedcore.operations.monitoring import RunMonitoring
from fedcore.population.store import Population
from fedcore.storage.files import place
from fedcore.training.session import Session


def tell_end(
    result: Any,
    session: Session | None,
    *,
    method: str,
    population: str,
    deployment: Callable[[], str | None],
    monitoring: RunMonitoring,
) -> None:
    """How a training flow has ended. result: as it is returned by the flow; session: None if no run was begun;
    deployment: its name, for which the server may have to be asked.
    """
    if session is not None:
        tell(lambda: _budget(session, monitoring))
    error = result.data if isinstance(result, State) else None
    if isinstance(result, State) and result.name == REFUSED and isinstance(error, FedcoreError):
        tell(lambda: [run_refused(error, method, place(population), opened(population), deployment())])
    if isinstance(error, ChunkError):
        tell(lambda: _damaged(error, population, deployment()))


def tell(events: Callable[[], list[Event]]) -> None:
    """Send events; if they cannot be made, a line of log says so."""
    try:
        emit(events())
    except Exception as error:
        get_run_logger().warning("Prefect was not told of an event: %s: %s", type(error).__name__, error)


def _budget(session: Session, monitoring: RunMonitoring) -> list[Event]:
    left = budget_left(session)
    return [] if left is None else budget_events(session.run, session.population, left, monitoring.runs_left)


def _damaged(error: ChunkError, population: str, deployment: str | None) -> list[Event]:
    store = opened(population)
    return [] if store is None else [block_damaged(store, error.message, error.remedy, deployment)]


def opened(population: str) -> Population | None:
    """None if there is no such population."""
    try:
        return Population.open(population)
    except PopulationError:
        return None
