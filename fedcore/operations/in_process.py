"""Runs without Prefect: the rounds of a session one after the other, and what follows the last of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime

from fedcore.evaluation.report import report_if_possible
from fedcore.evaluation.result_file import keep_result_if_possible
from fedcore.operations.metrics import Meter
from fedcore.operations.series import conclude, conclusion_of
from fedcore.rounds import clients
from fedcore.rounds.engine import Backend
from fedcore.rounds.method import RoundInfo
from fedcore.runs.store import Run
from fedcore.storage import objects as object_storage
from fedcore.storage.files import Place
from fedcore.training.session import Session, concluding


def stamp() -> str:
    """The time, in the form of names of runs."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S")


def to_the_end(
    session: Session,
    backend: Backend,
    after_round: Callable[[RoundInfo], None] = lambda info: None,
    warn: Callable[[str], None] = lambda text: None,
    report: bool = True,
) -> Place:
    """Run all remaining rounds, write the report if one is wanted, and return the folder of the run.

    after_round: called with the RoundInfo of each round; warn: called with failures that do not harm the run. Raises
    the errors of the engine, the stores and the ledger; an interrupted run can be resumed.
    """

    def conclude_it(run: Run) -> None:
        how = conclusion_of(run, session.method, session.population)  # of a resumed run of a deployment
        if how is not None:
            conclude(run, how.deployment, how.series, how.store, stamp(), backend, how.why_not)

    @object_storage.reading_once()
    def report_it(run: Run) -> None:
        if failed := keep_result_if_possible(run, session.population.vocabulary()):
            warn(failed)
        if report and (failed := report_if_possible(run, session.population.vocabulary())):
            warn(failed)

    meter = Meter(session, warn=warn)
    with closing(meter), concluding(session, conclude_it, report_it):
        while (info := session.training.step()) is not None:
            meter.rounds()
            after_round(info)
        session.run.add(peak_memory_of_workers=backend.memory_of_workers(), peak_memory_of_flow=clients.peak_memory())
    return session.run.path
