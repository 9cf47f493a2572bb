"""How a flow run ends when something is wrong with its input, its budget or its cluster: in a state whose message says
what happened and what to do, without a traceback, and without being tried again.

    Waiting   nothing was trained, charged or released: the run comes again, when newcomers can pay for it; or a run of
              several sites goes on when the others have answered
    Refused   the same, and nothing will change by itself
    Failed    the work was under way; what is committed is kept

The last two are of Prefect's type FAILED, and the caller of a flow gets the error itself. Waiting is part of the life
of a schedule and of the type COMPLETED; the flow then returns the error.
"""

import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from fedcore.flows.dead import note
from fedcore.tasks.training import WAITING
from prefect import get_client, get_run_logger
from prefect.client.schemas import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from fedcore.errors import FedcoreError, Waiting, WorkerFailed

LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
REFUSED = "Refused"
PAUSES = (1.0, 5.0, 0.0)  # seconds after each try to note the process


class NoTraceback(logging.Filter):
    """Named errors say what happened and what to do; where in the code they were raised is no help to an operator."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], FedcoreError):
            error = record.exc_info[1]
            record.msg, record.args, record.exc_info = "%s: %s", (type(error).__name__, error), None
        return True


_no_traceback = NoTraceback()
_noted: set[tuple[str, int]] = set()


def without_tracebacks() -> None:
    """From now on tasks and flows log named errors in one line.

    The filters stay, because Prefect logs the end of a flow after the flow's function has returned.
    """
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_no_traceback)


def waiting(error: Waiting) -> State:
    """The state of a flow run of a schedule that waits for newcomers."""
    return Completed(name=WAITING, message=str(error), data=error)


def failed(error: FedcoreError, refused: bool) -> State:
    """The state of a flow run that a named error ended; it raises that error for whoever called the flow."""
    return Failed(name=REFUSED if refused else "Failed", message=str(error), data=error)


def note_process() -> None:
    """Note on this flow run, once in each attempt, which process makes it, by which one that died is known. A flow that
    reads anything before `run_to_state` calls it first.
    """
    attempt = (str(flow_run.id), flow_run.run_count or 0)
    if flow_run.id is None or attempt in _noted:
        return
    for pause in PAUSES:
        try:
            with get_client(sync_client=True) as client:
                client.update_flow_run_labels(UUID(attempt[0]), note(attempt[1]))
            _noted.add(attempt)
            return
        except Exception as error:  # the run goes on without a note; the server may count it as dead
            words = "the process of this flow run is not noted: %s: %s"
            get_run_logger().warning(words, type(error).__name__, error)
            time.sleep(pause)


def run_to_state(
    work: Callable[[list], Any],
    describe: Callable[[list], str],
    about: Callable[[list, str], dict | None] = lambda kept, event: None,
) -> Any:
    """What `work` returns; or, if it waits or after a named error, the state of the flow run that says what was wrong.

    Args:
        work: is given an empty list, and appends to it as soon as there is something that stays although it fails
        describe: what the line of log about an error begins with, made from that list
        about: `extra` of that line, made from the list and a word for what happened
    """
    kept: list = []
    without_tracebacks()
    note_process()
    try:
        return work(kept)
    except Waiting as error:
        get_run_logger().info("%s: %s", describe(kept), error, extra=about(kept, "waiting"))
        return waiting(error)
    except FedcoreError as error:
        words, kind = "%s: %s: %s", type(error).__name__
        get_run_logger().error(words, describe(kept), kind, error, extra=about(kept, "failed"))
        return failed(error, refused=not kept and not isinstance(error, WorkerFailed))
