"""What the Prefect UI shows of a run: progress, a table of metrics, the budget and figures while it runs, the report
at the end. Everything comes from committed metrics and published values.
"""

import re
import time

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from fedcore.evaluation.report import markdown_report, run_figures, write_report
from fedcore.session import Session

SECONDS_BETWEEN = 5.0
SECONDS_BETWEEN_FIGURES = 30.0  # drawing takes a second or two


def key(kind: str, name: str) -> str:
    """An artifact key: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{name}".lower()).strip("-")


class Showcase:
    """The artifacts of one run; kept up to date at most every few seconds."""

    def __init__(self, session: Session):
        self.session = session
        self.shown = 0.0
        self.drawn = time.monotonic()
        self.progress_id = create_progress_artifact(progress=0.0, key=key("progress", session.run.id),
                                                    description=f"Rounds of run {session.run.id}")  # fmt: skip

    def progress(self) -> None:
        """After some rounds: progress, metrics and budget, unless they were shown a moment ago."""
        if time.monotonic() - self.shown < SECONDS_BETWEEN:
            return
        self._progress(100.0 * self.session.run.round / max(1, self._total()))
        self._tables()
        if time.monotonic() - self.drawn > SECONDS_BETWEEN_FIGURES:
            self._figures()
        self.shown = time.monotonic()

    def report(self) -> str:
        """At the end: the last tables, the figures, and report.html in the run's folder. Returns its path."""
        self._progress(100.0)
        self._tables()
        self._figures()
        return str(write_report(self.session.run, self.session.population.vocabulary()))

    def _figures(self) -> None:
        run = self.session.run
        figures = run_figures(run, self.session.population.vocabulary())
        create_markdown_artifact(markdown=markdown_report(run, figures), key=key("report", run.id),
                                 description=f"Report of run {run.id}")  # fmt: skip
        self.drawn = time.monotonic()

    def _total(self) -> int:
        return self.session.method.total_rounds(self.session.training.state)

    def _progress(self, percent: float) -> None:
        update_progress_artifact(self.progress_id, progress=min(100.0, percent))

    def _tables(self) -> None:
        run = self.session.run
        rows = [{name: round(v, 6) if isinstance(v, float) else v for name, v in row.items()} for row in run.metrics()]
        if rows:
            create_table_artifact(table=rows, key=key("metrics", run.id), description=f"Metrics of run {run.id}")
        balance = self.session.balance()
        if balance is not None:
            population = self.session.population
            name = f"{population.path.name}-{population.id[:8]}"
            create_table_artifact(table=budget_rows(balance), key=key("budget", name),
                                  description=f"Privacy budget of population {population.path.name}")  # fmt: skip


def budget_rows(balance) -> list[dict]:
    """A balance as a table of spent, reserved and left."""
    budget = balance.budget
    return [
        {"": "budget", "rho": budget.rho_max, "epsilon": budget.epsilon, "delta": budget.delta},
        {"": "spent", "rho": balance.rho_spent, "epsilon": balance.epsilon_spent, "delta": budget.delta_conv},
        {"": "reserved", "rho": balance.rho_reserved, "epsilon": None, "delta": None},
        {"": "left", "rho": balance.rho_left, "epsilon": None, "delta": None},
    ]
