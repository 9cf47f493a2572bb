"""The tasks of a training run. A session holds the run; tasks return references (round numbers, paths), never data.

Nothing here is cached or persisted as a Prefect result: what a task makes is in the run store, and what is sensitive
is stored nowhere.
"""

import time
from typing import Any, cast

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.context import TaskRunContext
from prefect.states import Completed

from fedcore.errors import PatienceOver, WorkerFailed
from fedcore.training.session import Session

WAITING = "Waiting"  # the name of the state of what ended because something has to come first
CHEAP_SECONDS = 2.0  # rounds quicker than this share a task run; each costs tens of ms, most of it in the server
BATCH_SECONDS = 4.0


def _lost_workers(task: Task, task_run: TaskRun, state: State) -> bool:
    """Retry only what a fresh set of workers can mend. The ledger makes a second release impossible."""
    return isinstance(state.result(raise_on_failure=False), WorkerFailed)


@task(
    task_run_name="clients-r{number}",
    retries=2,
    retry_delay_seconds=2,
    retry_condition_fn=_lost_workers,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def answer_clients(session: Session, number: int) -> Any:
    """All clients of round `number`: map, reduce; if private also charge, draw and publish. False: finished. A state if
    other sites have to answer first.
    """
    try:
        return session.training.answer()
    except PatienceOver as error:
        return _waiting(error)


def _waiting(error: PatienceOver) -> State:
    """How a task run is shown that waits for other sites: it has not failed. `_made` raises the error again."""
    return Completed(name=WAITING, message=str(error), data=error)


def _made(result: Any) -> bool:
    """What a task has returned. Raises PatienceOver if it waits for other sites."""
    found = result.result(raise_on_failure=False) if isinstance(result, State) else result
    if isinstance(found, PatienceOver):
        raise found
    return bool(found)


@task(task_run_name="server-r{number}", cache_policy=NO_CACHE, persist_result=False)
def move_server(session: Session, number: int) -> str:
    """The server's step of round `number` and its commit. Returns the file of the new state."""
    session.training.move()
    session.training.commit()
    return str(session.run.state_file(session.run.round))


def rounds_in_words(first: int, last: int) -> str:
    """The name of a task run that makes these rounds; of one that found none to make, if `last` is before `first`."""
    if last < first:
        return f"no-round-r{first}"
    return f"rounds-r{first}" if first == last else f"rounds-r{first}-r{last}"


def _name_of_batch(parameters: dict[str, Any]) -> str:
    return rounds_in_words(parameters["number"], parameters["last"])


def _rename(name: str) -> None:
    """Name the task run that this is, if it is one, after what it did: its last event tells the server."""
    context = TaskRunContext.get()
    if context is not None:
        context.task_run.name = name


@task(
    task_run_name=cast(Any, _name_of_batch),  # Prefect types such functions as a class of its own
    retries=2,
    retry_delay_seconds=2,
    retry_condition_fn=_lost_workers,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def several_rounds(session: Session, number: int, last: int) -> Any:
    """Cheap rounds `number` .. `last` in one task run, committed at its end. A retry goes on after the last round that
    was made. False: finished; the task run is then named after the rounds that there were. A state if other sites have
    to answer first.
    """
    try:
        while session.training.round <= last:
            if session.training.step() is None:
                _rename(rounds_in_words(number, session.training.round - 1))
                return False
    except PatienceOver as error:
        return _waiting(error)
    session.training.commit()
    return True


def next_rounds(session: Session, seconds: float | None) -> tuple[bool, float]:
    """Make the next round, or several of them if the last one took less than CHEAP_SECONDS.

    seconds: what a round took the last time; None before the first. Returns whether the run goes on, and the seconds
    that each round took. There is no task run if no round is left.
    """
    started, number = time.perf_counter(), session.training.round
    if session.training.finished:
        session.training.commit()
        return False, seconds or 0.0
    if seconds is not None and seconds < CHEAP_SECONDS:
        last = number + max(1, int(BATCH_SECONDS / max(seconds, 0.01))) - 1
        total = session.method.total_rounds(session.training.state)
        goes_on = _made(several_rounds(session, number, max(number, min(last, total))))
    else:
        goes_on = _made(answer_clients(session, number))
        if goes_on:
            move_server(session, number)
    rounds = max(1, session.training.round - number)
    return goes_on, (time.perf_counter() - started) / rounds
