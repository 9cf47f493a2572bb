"""What an operator asks about a population: its versions, the runs on it, what is spent of its budget.

Counts of clients and blocks are for operators; privacy statements do not cover them. Nothing here is computed from
clients' data.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fedcore.errors import LedgerMissing, PrivacyError, RunError
from fedcore.evaluation.figures import data_uri
from fedcore.evaluation.written import iso_date
from fedcore.operations.cohort_page import (
    LIFETIME,
    OF_SHARES,
    able_rows,
    founders_in_words,
    lifetime_rows,
    promise_in_words,
    segment_rows,
    share_rows,
)
from fedcore.operations.forecast import cohort_lines, forecast_rows, in_a_sentence, payers_of
from fedcore.operations.latest_runs import all_latest
from fedcore.operations.trends import (
    SeriesOfRuns,
    budget_drawn,
    deployment_row,
    run_rows,
    score_figures,
    seconds_drawn,
    series_of,
)
from fedcore.population.manifest import Manifest
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import Balance
from fedcore.privacy.statement import loss_in_words, schema_in_words
from fedcore.runs.store import Run, list_runs
from fedcore.storage.files import Place, absolute, place
from fedcore.training.budget import epsilon_that_fits, ledger_of
from fedcore.training.vocabulary import released_in_words, runs_behind
from fedcore.training.witness import missing_witness

MOST_RUNS = 20  # of a deployment
MOST_SERIES = 20
MOST_VERSIONS = 20


def population_page(
    path: str,
    runs: str | Place,
    *,
    starts: Mapping[str, Sequence[datetime]] | None = None,
    now: datetime | None = None,
    figures: bool = True,
) -> str:
    """Markdown: deployments, budget with a forecast, trends, latest runs, versions, and the runs of the folder `runs`
    on the population, by deployment.

    starts: known scheduled starts, by deployment; now: the present, UTC; figures: whether to include them, as data
    URIs
    """
    newest, now = Population.open(path), now or datetime.now(UTC)
    mine = [run for run in list_runs(runs) if (run.info.get("population") or {}).get("id") == newest.id]
    mine.sort(key=lambda run: (str(run.info.get("started")), run.id), reverse=True)
    series = series_of(mine)
    parts = [
        f"# Population {cell(newest.path.name)}",
        "",
        f"{_content(newest)}; id {newest.id}; {cell(newest.location)}",
        "",
        "Numbers of clients and blocks are for operators and not protected; do not publish this page.",
        "",
        "## Deployments",
        "",
        *([*table([deployment_row(one) for one in series[:MOST_SERIES]])] if series else ["No run was made yet."]),
        "",
        *_forecast(newest, mine, starts or {}, now, figures),
        "## Budget",
        "",
        *_budget(newest, mine),
        "",
        *(_trends(series) if figures else []),
        "## Latest runs",
        "",
        *_latest(runs, {run.path.name for run in mine}),
        "",
        "## Versions",
        "",
        *_versions(newest),
        "",
        f"## Runs in {cell(runs)}",
        "",
        *_runs(series, runs),
    ]
    return "\n".join(parts) + "\n"


def _content(newest: Population) -> str:
    return "words" if newest.kind == "words" else f"{newest.kind}, {newest.features} features"


def _versions(newest: Population) -> list[str]:
    numbers = sorted(newest.versions(), reverse=True)
    rows = []
    for number in numbers[:MOST_VERSIONS]:
        version = newest if number == newest.version else Population.open(newest.path, version=number)
        rows.append(
            {
                "version": number,
                "clients": version.n_clients,
                "rows" if version.kind == "rows" else "tokens": version.n_rows,
                "blocks": len(version.blocks),
                "held-out part": _held_out(version),
            }
        )
    return [*table(rows), *_left_out(len(numbers) - MOST_VERSIONS, "versions")]


def _held_out(version: Population) -> str:
    if not version.has_heldout:
        return "no"
    return f"yes, dealt by {version.manifest.halves}" if version.manifest.halves else "yes"


def _budget(population: Population, runs: Sequence[Run]) -> list[str]:
    if population.manifest.ledger is None:
        return ["The population names no ledger: no private run on it is possible."]
    try:
        ledger = ledger_of(population, to_show=True)
        balance, missing = ledger.balance(population.id), missing_witness(population, ledger)
    except LedgerMissing as error:
        return [cell(f"The ledger is not at hand: {error}")]
    except PrivacyError as error:
        return [cell(f"The ledger cannot be used: {error}")]
    if balance.budget is None:
        return ["No budget is set: no private run on it is possible until `fedcore budget set`."]
    released = bool(runs_behind(population, ledger))
    notes = [
        *schema_in_words(balance.public_schema, released_words=released),
        *([loss_in_words(balance.loss.at, balance.loss.reason)] if balance.loss else []),
    ]
    notes += [f"**{missing}**"] if missing else []
    notes += released_in_words(ledger, population.id)
    rows = share_rows(balance, population.manifest)
    shares = ["", OF_SHARES, "", *table(rows)] if rows else []
    if population.manifest.cohorts:
        return [*_cohorts(population, balance, runs), *shares, *(line for note in notes for line in ("", cell(note)))]
    left = epsilon_that_fits(balance)
    fits = f"A run of epsilon {left:.4g} or less still fits." if left > 0 else "No run fits any more."
    return [
        *table(budget_rows(balance, population.manifest)),
        *(shares or ["", fits]),
        *(line for note in notes for line in ("", cell(note))),
    ]


def budget_rows(balance: Balance, manifest: Manifest) -> list[dict[str, Any]]:
    """A balance as a table of spent, reserved and left; by cohort, if it is kept so."""
    budget = balance.required_budget()
    if balance.segments:
        return segment_rows(balance, manifest)
    return [
        {"part": "budget", "rho": budget.rho_max, "epsilon": budget.epsilon, "delta": budget.delta},
        {"part": "spent", "rho": balance.rho_spent, "epsilon": balance.epsilon_spent, "delta": budget.delta_conv},
        {"part": "reserved", "rho": balance.rho_reserved, "epsilon": None, "delta": None},
        {"part": "left", "rho": balance.rho_left, "epsilon": None, "delta": None},
    ]


def _forecast(
    population: Population, runs: Sequence[Run], starts: Mapping[str, Sequence[datetime]], now: datetime, figures: bool
) -> list[str]:
    """When the budget ends if runs continue as now; nothing if no budget is charged."""
    if population.manifest.ledger is None:
        return []
    try:
        balance = ledger_of(population, to_show=True).balance(population.id)
    except PrivacyError:  # `_budget` says it
        return []
    payers = payers_of(runs, starts, now)
    if balance.budget is None or not payers:
        return []
    lines = ["## Forecast", ""]
    if population.manifest.cohorts:
        said = cohort_lines(population.manifest, balance, payers, population.path.name)
        return [*lines, *(line for one in said for line in (cell(one), ""))]
    lines += [f"**{cell(in_a_sentence(balance, payers))}**", "", *table(forecast_rows(balance, payers)), ""]
    lines += ["A run is taken to cost what the last one of its deployment did; nothing is reserved for it.", ""]
    return [*lines, *_drawn(budget_drawn(balance, payers, runs, now), "the budget over time")] if figures else lines


def _trends(series: Sequence[SeriesOfRuns]) -> list[str]:
    """Figures of scores and seconds over the runs; nothing before there are two of a series."""
    lines = [
        *(line for title, png in score_figures(series) for line in _drawn(png, title)),
        *_drawn(seconds_drawn(series), "seconds of the runs"),
    ]
    return ["## Trends", "", *lines] if lines else []


def _drawn(png: bytes | None, what: str) -> list[str]:
    return [] if png is None else [f"![{cell(what)}]({data_uri(png)})", ""]


def _cohorts(population: Population, balance: Balance, runs: Sequence[Run]) -> list[str]:
    """A budget that is kept by cohort."""
    manifest = population.manifest
    known = f"Cohorts so far: {len(manifest.cohorts)}."
    if manifest.period is not None:
        known = (
            f"{manifest.period.unit.capitalize()}s so far: {manifest.periods_in_words(((1, len(manifest.cohorts)),))}."
        )
    spent = [*table(segment_rows(balance, manifest)), ""] if balance.segments else []
    lines = [cell(f"{promise_in_words(balance)} {known}"), "", *spent]
    if balance.periods is not None:
        lines += [f"{LIFETIME}:", "", *table(lifetime_rows(balance)), ""]
    elif founders := founders_in_words(population, balance, runs):
        lines += [founders, ""]
    took_part = able_rows(population, runs)
    return [*lines, *(["Who took part:", "", *table(took_part)] if took_part else ["No run by cohort was made yet."])]


def _latest(runs: str | Place, mine: set[str]) -> list[str]:
    try:
        found = [item for item in all_latest(runs) if item.run in mine]
    except RunError as error:
        return [cell(str(error))]
    rows = [
        {"deployment": item.deployment, "run": item.run, "since": iso_date(item.since), "because": item.because}
        for item in found
    ]
    return table(rows) if rows else ["None."]


def _runs(series: Sequence[SeriesOfRuns], runs: str | Place) -> list[str]:
    """The newest runs of each series, under separate headings."""
    if not series:
        return ["None."]
    lines = [cell(f"Of each run {absolute(place(runs))}/RUN/report.html is the report."), ""]
    for one in series[:MOST_SERIES]:
        rows = run_rows(one, MOST_RUNS)
        older = len(one.points) + one.older - len(rows)
        lines += [f"### {cell(one.name)}", "", *table(rows), *_left_out(older, "runs"), ""]
    left = len(series) - MOST_SERIES
    return [*lines, *([f"and {left} more deployments"] if left > 0 else [])]


def _left_out(number: int, what: str) -> list[str]:
    return ["", f"and {number} older {what}"] if number > 0 else []


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a markdown table; the columns are those of the first row."""
    names = list(rows[0])
    return [
        "| " + " | ".join(map(cell, names)) + " |",
        "|" + "---|" * len(names),
        *("| " + " | ".join(cell(row[name]) for name in names) + " |" for row in rows),
    ]


def cell(value: Any) -> str:
    """Text that markdown and HTML leave as it is."""
    text = "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
    return _escaped(" ".join(text.split()))


def sentences(text: str) -> str:
    """The same of sentences in which `commands` stand between backticks: these stay so."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        return _escaped("`".join(parts))
    return "`".join(part if number % 2 else _escaped(part) for number, part in enumerate(parts))


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]()#!|~$])", r"\\\1", html.escape(text, quote=False))
