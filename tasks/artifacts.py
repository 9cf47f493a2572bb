"""What the Prefect UI shows of a run: progress, a table of metrics, the budget and figures while it runs, the report
at the end; how it compares with the latest run of its deployment; and the page of its population. Everything comes from
committed metrics, published values, scores on public data and what is for operators.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast
from uuid import UUID

from fedcore.tasks.schedules import scheduled_starts
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from fedcore.evaluation.report import markdown_report, report_if_possible, run_figures
from fedcore.evaluation.result_file import keep_result_if_possible
from fedcore.evaluation.run_summary import shown_metrics
from fedcore.operations.population_page import budget_rows, population_page
from fedcore.population.store import Population
from fedcore.runs.store import Run
from fedcore.storage import objects as object_storage
from fedcore.training.session import Session

SECONDS_BETWEEN = 5.0
SECONDS_BETWEEN_FIGURES = 30.0
SHARE = 0.01  # of the run's seconds that the tables may take, and the figures; both grow with the run


def key(kind: str, name: str) -> str:
    """An artifact key: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{name}".lower()).strip("-")


def key_of(population: Population) -> str:
    """The key of a population's artifacts: the same for all its versions and runs, and for no other population."""
    return key("population", f"{population.path.name}-{population.id[:8]}")


def name_of(run: Run) -> str:
    """What the artifacts of a run are called: by its deployment, whose runs are then versions of the same artifacts; of
    a run by hand by method and population.
    """
    deployment, population = run.info.get("deployment"), run.info.get("population") or {}
    id = str(population.get("id"))[:8]
    return str(deployment) if deployment else f"{run.info.get('method')}-{population.get('name')}-{id}"


def show_population(population: Population, runs: str, named: str) -> None:
    """The page of a population: a new version of one artifact. named: the population, as deployments name it."""
    create_markdown_artifact(
        markdown=population_page(population.location, runs, starts=scheduled_starts(named)),
        key=key_of(population),
        description=f"Population {population.path.name}: deployments, budget and forecast, trends, runs",
    )


def show_comparison(outcome: dict) -> None:
    """How a run compared with the latest one of its deployment: a new version of one artifact."""
    if outcome["rows"]:
        decision = "promoted" if outcome["promoted"] else "not promoted"
        rows = [
            {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in row.items()}
            for row in outcome["rows"]
        ]
        create_table_artifact(
            table=rows,
            key=key("comparison", outcome["deployment"]),
            description=f"Run {outcome['run']} of {outcome['deployment']} on {outcome['population']}: "
            f"{decision}, because {outcome['because']}",
        )


def time_left(seconds: float) -> str:
    """In words, rounded: a guess from the rounds so far."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    return f"about {round(seconds / 60)} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"


class Pace:
    """When something is shown again: after `least` seconds, and later if showing it took more than SHARE of them."""

    def __init__(self, least: float, first: float = 0.0):
        self.least = least
        self.next = time.monotonic() + first

    def due(self) -> bool:
        return time.monotonic() >= self.next

    @contextmanager
    def showing(self) -> Iterator[None]:
        started = time.monotonic()
        yield
        ended = time.monotonic()
        self.next = ended + max(self.least, (ended - started) / SHARE)


class Showcase:
    """The artifacts of one run; kept up to date at most every few seconds."""

    def __init__(self, session: Session):
        self.session = session
        self.begun, self.first = time.monotonic(), session.run.round
        self.shown, self.tables = time.monotonic() - SECONDS_BETWEEN, Pace(SECONDS_BETWEEN)
        self.figures = Pace(SECONDS_BETWEEN_FIGURES, first=SECONDS_BETWEEN_FIGURES)
        self.drawn: dict[str, bytes] | None = None  # the figures, as they were drawn last
        self.progress_id = cast(  # Prefect types the function as one that may also return a coroutine
            UUID,
            create_progress_artifact(
                progress=0.0, key=key("progress", name_of(session.run)), description=f"Rounds of run {session.run.id}"
            ),
        )

    def progress(self) -> list[str]:
        """After some rounds: progress, metrics, budget and figures, unless they were shown a moment ago. Returns what
        could not be shown.
        """
        if time.monotonic() - self.shown < SECONDS_BETWEEN:
            return []
        done, total = self.session.run.round, max(1, self._total())
        each = (time.monotonic() - self.begun) / max(1, done - self.first)
        words = f"{done} of at most {total} rounds, {time_left(each * (total - done))}"
        failed = [self._tried(self._progress, 100.0 * done / total, words)]
        if self.tables.due():
            with self.tables.showing():
                failed.append(self._tried(self._tables))
        if self.figures.due():
            with self.figures.showing():
                failed.append(self._tried(self._figures, self.session.run))
        self.shown = time.monotonic()
        return [words for words in failed if words]

    @object_storage.reading_once()
    def report(self, run: Run) -> list[str]:
        """At the end: the last tables, the figures, and report.html in the run's folder. Returns what could not be
        shown: none of it decides how the run ends.

        run: as it will be (`fedcore.training.session.concluding`)
        """
        self.drawn = None
        failed = [
            self._tried(self._progress, 100.0, f"{run.status} after {run.round} rounds"),
            self._tried(self._tables),
            self._tried(self._figures, run),
        ]
        vocabulary = self.session.population.vocabulary()
        failed.append(keep_result_if_possible(run, vocabulary))
        failed.append(report_if_possible(run, vocabulary, self.drawn))
        return [words for words in failed if words]

    def _tried(self, show: Callable[..., object], *arguments: object) -> str:
        """What is to be told if it fails, for whatever reason."""
        try:
            show(*arguments)
        except Exception as error:
            return (
                f"an artifact of run {self.session.run.id} is not in the Prefect UI ({type(error).__name__}: {error}). "
                "The run lacks nothing else."
            )
        return ""

    def _figures(self, run: Run) -> None:
        self.drawn = drawn = run_figures(run, self.session.population.vocabulary())
        create_markdown_artifact(
            markdown=markdown_report(run, drawn), key=key("report", name_of(run)), description=f"Report of run {run.id}"
        )

    def _total(self) -> int:
        return self.session.method.total_rounds(self.session.training.state)

    def _progress(self, percent: float, words: str) -> None:
        update_progress_artifact(
            self.progress_id, progress=min(100.0, percent), description=f"Run {self.session.run.id}: {words}"
        )

    def _tables(self) -> None:
        run = self.session.run
        shown = shown_metrics(run)
        every = dict.fromkeys(name for row in shown for name in row)  # Prefect shows the columns of the first row
        names = sorted(every, key=lambda name: name.startswith("seconds_"))
        rows = [{name: _rounded(row.get(name)) for name in names} for row in shown]
        if rows:
            create_table_artifact(table=rows, key=key("metrics", name_of(run)), description=f"Metrics of run {run.id}")
        balance = self.session.balance()
        if balance is not None:
            population = self.session.population
            name = f"{population.path.name}-{population.id[:8]}"
            create_table_artifact(
                table=budget_rows(balance, population.manifest),
                key=key("budget", name),
                description=f"Privacy budget of population {population.path.name}",
            )


def _rounded(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value
