"""How the runs of each deployment have gone: seconds, public scores, epsilon. For tables and figures of a page.

Made of committed metrics, scores on data that their owner declared public, and privacy statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fedcore.errors import FedcoreError
from fedcore.evaluation.figures import PARTS, WHOLE
from fedcore.evaluation.run_summary import PublicScore, privacy_of, public_score
from fedcore.evaluation.trend_figures import budget_over_time_figure, trend_figure
from fedcore.evaluation.written import show
from fedcore.operations.forecast import Payer, began, charges_ahead
from fedcore.privacy.ledger.chain import Balance
from fedcore.runs.run_row import summary_row
from fedcore.runs.store import Run
from fedcore.storage.files import read_bytes
from fedcore.storage.parsing import parse_json

BY_HAND = "by hand"
MOST_FIGURES = 3  # of scores
MOST_AHEAD = 200  # runs that are drawn as foreseen
MOST_POINTS = 30  # newest runs of a series whose metrics and scores are read


@dataclass(frozen=True, slots=True)
class Point:
    """A run as a point of a trend. started: None if it is not known; seconds: of all rounds, None if there are none."""

    run: Run
    started: datetime | None
    status: str
    seconds: float | None
    score: PublicScore | None
    epsilon: str | float


@dataclass(frozen=True, slots=True)
class SeriesOfRuns:
    """The runs of a deployment, or those of a method that were started by hand. points: of the newest runs, newest
    first; older: how many more there are.
    """

    name: str
    deployment: str | None
    method: str
    points: tuple[Point, ...]
    older: int


def series_of(runs: Sequence[Run]) -> list[SeriesOfRuns]:
    """The runs by deployment, and by method those without, with the series of the newest run first.

    runs: on one population, newest first
    """
    found: dict[tuple[str | None, str], list[Run]] = {}
    for run in runs:
        deployment = run.info.get("deployment")
        method = str(run.info.get("method"))
        found.setdefault((str(deployment), "") if deployment else (None, method), []).append(run)
    return [
        SeriesOfRuns(
            deployment or f"{method}, {BY_HAND}",
            deployment,
            str(mine[0].info.get("method")),
            tuple(map(point_of, mine[:MOST_POINTS])),
            max(0, len(mine) - MOST_POINTS),
        )
        for (deployment, method), mine in found.items()
    ]


def point_of(run: Run) -> Point:
    return Point(run, began(run), run.status_now, _seconds(run), _score(run), epsilon_of(run))


def _seconds(run: Run) -> float | None:
    try:
        rows = run.metrics()
    except FedcoreError:  # damaged: `fedcore verify` says so
        return None
    taken = [row.get(WHOLE, sum(row.get(part, 0.0) for part in PARTS)) for row in rows]
    return sum(taken) if taken else None


def _score(run: Run) -> PublicScore | None:
    try:
        return public_score(run)
    except FedcoreError:
        return None


def rho_of(run: Run) -> float | None:
    """What the run has charged, by its statement; None if that promises nothing or is not there yet."""
    try:
        privacy = privacy_of(run)
    except FedcoreError:
        return None
    rho = privacy.get("rho") if privacy["private"] else None
    return float(rho) if isinstance(rho, (int, float)) else None


def epsilon_of(run: Run) -> str | float:
    """Of the run's statement; in words if it claims none or is not there yet."""
    if not run.info.get("private") or run.info.get("test_noise"):
        return "not private"
    try:
        statement = parse_json(read_bytes(run.path / "statement.json"))
    except FileNotFoundError:
        return "not stated yet"
    except (OSError, ValueError):
        return "unreadable"
    value = statement.get("epsilon") if isinstance(statement, dict) and statement.get("private") is True else None
    if not isinstance(value, (int, float)):
        return "not private"
    return f"{value:.5g}, assuming declarations" if statement.get("vouched") else value


# --- in figures -------------------------------------------------------------------------------------------------------


def score_figures(series: Sequence[SeriesOfRuns]) -> list[tuple[str, bytes]]:
    """(title, PNG) for each kind of score and each version of public data on which at least two runs of a series were
    scored."""
    by_kind: dict[tuple[str, str], dict[str, list[tuple[datetime, float, float | None]]]] = {}
    for one in series:
        for point in one.points:
            if point.score is not None and point.started is not None:
                lines = by_kind.setdefault((point.score.loss, point.score.on), {})
                value = (point.started, point.score.score, point.score.standard_error)
                lines.setdefault(one.name, []).append(value)
    drawn = []
    for (loss, on), lines in by_kind.items():
        if max(map(len, lines.values())) > 1:
            title = f"Score on {on} (lower is better, 95 % intervals)"
            drawn.append((title, trend_figure(lines, title, f"{loss} (nats)")))
    return drawn[:MOST_FIGURES]


def seconds_drawn(series: Sequence[SeriesOfRuns]) -> bytes | None:
    """The seconds of finished runs over time; None before there are two of a series."""
    lines = {
        one.name: [
            (point.started, point.seconds, None)
            for point in one.points
            if point.started is not None and point.seconds is not None and point.status == "finished"
        ]
        for one in series
    }
    lines = {name: points for name, points in lines.items() if points}
    if not any(len(points) > 1 for points in lines.values()):
        return None
    return trend_figure(lines, "Seconds of all rounds of a run", "wall time (s)", from_zero=True)


def budget_drawn(balance: Balance, payers: Sequence[Payer], runs: Sequence[Run], now: datetime) -> bytes | None:
    """What is spent of one account after each run, and what is foreseen; None before anything is spent."""
    budget = balance.required_budget()
    spent = sorted(
        (when, rho)
        for run in runs[:MOST_POINTS]
        if (when := began(run)) is not None and (rho := rho_of(run)) is not None
    )
    if not spent:
        return None
    before = max(0.0, balance.rho_spent - sum(rho for _, rho in spent))
    ahead = charges_ahead(balance, payers)
    return budget_over_time_figure(spent, ahead[:MOST_AHEAD], before, budget.rho_max, now)


# --- in tables --------------------------------------------------------------------------------------------------------


def deployment_row(series: SeriesOfRuns) -> dict[str, Any]:
    """A deployment in one line: its newest run, and how it compares with the one before it."""
    newest = series.points[0]
    before = next((one for one in series.points[1:] if one.status == "finished"), None)
    return {
        "deployment": series.name,
        "method": series.method,
        "runs": len(series.points) + series.older,
        "newest": _minute(newest),
        "status": newest.status,
        "seconds": None if newest.seconds is None else round(newest.seconds, 1),
        "score": score_in_words(newest.score, before.score if before else None),
        "epsilon": newest.epsilon,
    }


def _minute(point: Point) -> str:
    """When it began, UTC, without the seconds; what is no such time stays as it is."""
    return str(point.run.info.get("started")) if point.started is None else f"{point.started:%Y-%m-%d %H:%M}"


def score_in_words(now: PublicScore | None, before: PublicScore | None) -> str | None:
    """With the difference to the one before, where both are scores on the same data."""
    if now is None:
        return None
    said = f"{now.loss} {show(now.score)}"
    if before is None or (before.loss, before.on) != (now.loss, now.on):
        return said
    return f"{said} ({now.score - before.score:+.2g})"


def run_rows(series: SeriesOfRuns, most: int) -> list[dict[str, Any]]:
    """The newest runs of a series, newest first; without scores where none has one."""
    scored = any(point.score is not None for point in series.points[:most])
    return [_run_row(point, scored) for point in series.points[:most]]


def _run_row(point: Point, scored: bool) -> dict[str, Any]:
    row = summary_row(point.run)
    return {
        "run": row["run"],
        "status": point.status,
        "epsilon": point.epsilon,
        "started": _minute(point),
        **({"score": score_in_words(point.score, None)} if scored else {}),
        "rounds": row["rounds"],
        "seconds": None if point.seconds is None else round(point.seconds, 1),
        "version": row["version"],
        "model": row["model"],
    }
