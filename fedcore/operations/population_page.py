"""What an operator asks about a population: its versions, the runs on it, what is spent of its budget.

Counts of clients and blocks are for operators; privacy statements do not cover them. Nothing here is computed from
clients' data.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedcore.errors import LedgerMissing, PrivacyError, RunError
from fedcore.evaluation.run_summary import summary_row
from fedcore.operations.cohort_page import (
    LIFETIME,
    able_rows,
    founders_in_words,
    lifetime_rows,
    promise_in_words,
    segment_rows,
)
from fedcore.operations.latest_runs import all_latest
from fedcore.population.manifest import Manifest
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import Balance
from fedcore.privacy.statement import loss_in_words, schema_in_words
from fedcore.runs.store import Run, list_runs
from fedcore.storage.files import Place, absolute, is_file, read_bytes
from fedcore.storage.parsing import parse_json
from fedcore.training.budget import epsilon_that_fits, ledger_of
from fedcore.training.vocabulary import released_in_words, runs_behind
from fedcore.training.witness import missing_witness

MOST_RUNS = 50
MOST_VERSIONS = 20


def population_page(path: str, runs: str | Place) -> str:
    """Markdown: versions, runs of the folder `runs` on the population (newest first), latest runs, budget."""
    newest = Population.open(path)
    mine = [run for run in list_runs(runs) if (run.info.get("population") or {}).get("id") == newest.id]
    mine.sort(key=lambda run: (str(run.info.get("started")), run.id), reverse=True)
    parts = [
        f"# Population {cell(newest.path.name)}",
        "",
        f"{_content(newest)}; id {newest.id}; {cell(newest.location)}",
        "",
        "Numbers of clients and blocks are for operators and not protected; do not publish this page.",
        "",
        "## Versions",
        "",
        *_versions(newest),
        "",
        "## Budget",
        "",
        *_budget(newest, mine),
        "",
        "## Latest runs",
        "",
        *_latest(runs, {run.path.name for run in mine}),
        "",
        f"## Runs in {cell(runs)}",
        "",
        *_runs(mine),
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
        *([loss_in_words(balance.loss)] if balance.loss else []),
    ]
    notes += [f"**{missing}**"] if missing else []
    notes += released_in_words(ledger, population.id)
    if population.manifest.cohorts:
        return [*_cohorts(population, balance, runs), *(line for note in notes for line in ("", cell(note)))]
    left = epsilon_that_fits(balance)
    fits = f"A run of epsilon {left:.4g} or less still fits." if left > 0 else "No run fits any more."
    return [
        *table(budget_rows(balance, population.manifest)),
        "",
        fits,
        *(line for note in notes for line in ("", cell(note))),
    ]


def budget_rows(balance: Balance, manifest: Manifest) -> list[dict[str, Any]]:
    """A balance as a table of spent, reserved and left; by cohort, if it is kept so."""
    budget = balance.required_budget()
    if balance.segments:
        return segment_rows(balance, manifest)
    return [
        {"": "budget", "rho": budget.rho_max, "epsilon": budget.epsilon, "delta": budget.delta},
        {"": "spent", "rho": balance.rho_spent, "epsilon": balance.epsilon_spent, "delta": budget.delta_conv},
        {"": "reserved", "rho": balance.rho_reserved, "epsilon": None, "delta": None},
        {"": "left", "rho": balance.rho_left, "epsilon": None, "delta": None},
    ]


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
        {"deployment": item.deployment, "run": item.run, "since": item.since, "because": item.because} for item in found
    ]
    return table(rows) if rows else ["None."]


def _runs(runs: Sequence[Run]) -> list[str]:
    rows = [_run(run) for run in runs[:MOST_RUNS]]
    return [*(table(rows) if rows else ["None."]), *_left_out(len(runs) - MOST_RUNS, "runs")]


def _run(run: Run) -> dict[str, Any]:
    row = summary_row(run)
    report = run.path / "report.html"
    return {
        "run": row["run"],
        "status": row["status"],
        "epsilon": _epsilon(run),
        "rounds": row["rounds"],
        "method": row["method"],
        "version": row["version"],
        "deployment": row["deployment"],
        "started": row["started"],
        "model": row["model"],
        "report": absolute(report) if is_file(report) else None,
    }


def _epsilon(run: Run) -> str | float:
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
    return f"{value:.5g}, on somebody's word" if statement.get("vouched") else value


def _left_out(number: int, what: str) -> list[str]:
    return ["", f"and {number} older {what}"] if number > 0 else []


# --- markdown -------------------------------------------------------------------------------------------------------


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
    return re.sub(r"([\\`*_{}\[\]()#!|~$])", r"\\\1", html.escape(" ".join(text.split()), quote=False))
