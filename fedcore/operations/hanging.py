"""Runs that have committed no round for much longer than their rounds take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedcore.errors import RunError
from fedcore.operations.monitoring import Monitoring
from fedcore.runs.store import Run


@dataclass(frozen=True, slots=True)
class Hanging:
    """seconds: since it has committed something; usual: seconds of its rounds, or of those of the last run of its
    deployment, None if unknown; held: whether a process holds it, as far as is known.
    """

    run: Run
    seconds: float
    usual: float | None
    held: bool

    @property
    def in_words(self) -> str:
        usual = "" if self.usual is None else f"A round usually takes {self.usual:.3g} s. "
        if self.held:
            return f"{usual}If its process is stalled, end it, then run `fedcore resume {self.run.path}`."
        return f"{usual}To continue, run `fedcore resume {self.run.path}`."


def hanging_runs(
    runs: Iterable[Run], deployment: str, monitoring: Monitoring, now: float | None = None
) -> Iterator[Hanging]:
    """Those runs of the deployment that have rounds to make, and have committed nothing for `hanging` times as long as
    a round usually takes, and not for `patience` seconds.

    now: seconds since 1970. Raises Unreachable.
    """
    moment = time.time() if now is None else now
    mine = [run for run in runs if run.info.get("deployment") == deployment]
    for run in mine:
        if run.status != "running" or (committed := committed_at(run)) is None:
            continue
        seconds, usual = moment - committed, usual_seconds(run, mine)
        if seconds > max(monitoring.patience, monitoring.hanging * (monitoring.patience if usual is None else usual)):
            yield Hanging(run, seconds, usual, run.status_now == "running")


def usual_seconds(run: Run, beside: list[Run]) -> float | None:
    """Median seconds of the run's rounds; before the first, those of the newest finished run that has metrics. None if
    unknown.
    """
    ended = [other for other in beside if other.status == "finished"]
    newest = sorted(ended, key=lambda other: (str(other.info.get("started")), other.id), reverse=True)
    for known in (run, *newest):
        try:
            rows = known.metrics()
        except RunError:
            continue
        seconds = [float(row["seconds_round"]) for row in rows if isinstance(row.get("seconds_round"), int | float)]
        if seconds:
            return statistics.median(seconds)
    return None


def committed_at(run: Run) -> float | None:
    """When its head was written, in seconds since 1970, by the clock of what keeps it; None if that does not say."""
    try:
        return float((run.path / "head.json").stat().st_mtime) or None
    except (OSError, AttributeError, TypeError, ValueError):
        return None
