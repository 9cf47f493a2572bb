"""How a flow run ends when something is wrong with its input, its budget or its cluster: in a state whose message says
what happened and what to do, without a traceback, and without being tried again.

    Refused   nothing was trained, charged or released, nothing was made
    Failed    the work had begun; what is committed is kept

Both are of Prefect's type FAILED. The caller of a flow still gets the error itself.
"""

import logging
from collections.abc import Callable
from typing import Any

from prefect import get_run_logger
from prefect.client.schemas import State
from prefect.states import Failed

from fedcore.errors import FedcoreError, WorkerFailed

LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
REFUSED = "Refused"


class NoTraceback(logging.Filter):
    """Named errors say what happened and what to do; where in the code they were raised is no help to an operator."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], FedcoreError):
            error = record.exc_info[1]
            record.msg, record.args, record.exc_info = "%s: %s", (type(error).__name__, error), None
        return True


_no_traceback = NoTraceback()


def without_tracebacks() -> None:
    """Tasks and flows log named errors in one line from now on; Prefect logs the end of a flow after its return."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_no_traceback)


def ended(error: FedcoreError, refused: bool) -> State:
    """The state of a flow run that a named error ended; raises that error for whoever called the flow."""
    return Failed(name=REFUSED if refused else "Failed", message=str(error), data=error)


def carried_out(work: Callable[[list], Any], said: Callable[[list], str]) -> Any:
    """What `work` returns; or, after a named error, the state of the flow run that says what was wrong.

    work: appends to its argument once it has begun what is kept. said: of that list, what a line of log begins with.
    """
    begun: list = []
    without_tracebacks()
    try:
        return work(begun)
    except FedcoreError as error:
        get_run_logger().error("%s: %s: %s", said(begun), type(error).__name__, error)
        return ended(error, refused=not begun and not isinstance(error, WorkerFailed))
