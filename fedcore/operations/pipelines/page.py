"""A run of a pipeline as a page: each step, what it did, how long it took, and where what it made is.

For operators: it names files, versions and numbers of clients. Nothing here is computed from clients' data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedcore.operations.pipelines.journal import Journal, RunRecord, StepRecord
from fedcore.operations.pipelines.steps import Pipeline
from fedcore.operations.population_page import cell, table

MOST_RUNS = 20
MOST_FILES = 50
SIGNS = {
    "done": "done",
    "nothing": "nothing to do",
    "skipped": "not made",
    "waiting": "waiting",
    "begun": "interrupted",
}


def pipeline_page(
    pipeline: Pipeline, journal: Journal, run: RunRecord, reports: Mapping[str, str] | None = None
) -> str:
    """Markdown: the run's steps, the files that came and those that were set aside, and the runs before it. reports:
    addresses of the reports of runs, by step
    """
    parts = [
        f"# Pipeline {cell(pipeline.name)}, for {cell(run.at)}",
        "",
        *([cell(pipeline.description), ""] if pipeline.description else []),
        f"{cell(in_words(run))} Population {cell(pipeline.population)}; began {cell(run.began)}"
        f"{'' if run.ended is None else f', ended {cell(run.ended)}'}.",
        "",
        "Numbers of clients and names of files are for operators and not protected; do not publish this page.",
        "",
        "## Steps",
        "",
        *table([_row(record) for record in run.steps] or [{"step": "none yet"}]),
    ]
    if run.bad:
        parts += ["", "## What went wrong", "", *(f"- {cell(record.step)}: {cell(record.what)}" for record in run.bad)]
    links = [{"step": one.step, "what": what, "where": where} for one in run.steps for what, where in one.links.items()]
    if links:
        parts += ["", "## Where things are", "", *table(links)]
    parts += [line for step, where in (reports or {}).items() for line in ("", f"[Report of {cell(step)}]({where})")]
    for record in run.steps:
        parts += _files(record)
        parts += _scores(record)
    if pipeline.files_are_public_because:
        parts += ["", f"Files are declared public: {cell(pipeline.files_are_public_because)}"]
    if journal.aside:
        rows = [{"file": name, "why": why} for name, (_, why) in sorted(journal.aside.items())]
        parts += ["", "## Set aside", "", "They are tried again when their content is another.", "", *table(rows)]
    before = [one for one in reversed(journal.runs) if one.at != run.at][:MOST_RUNS]
    if before:
        parts += ["", "## Runs before", "", *table([_earlier(one) for one in before])]
    return "\n".join(parts) + "\n"


def in_words(run: RunRecord) -> str:
    """One sentence: how the run went."""
    if run.ended is None:
        return "It is in progress, or was interrupted."
    if run.bad:
        return f"{len(run.bad)} of {len(run.steps)} steps went wrong: {', '.join(one.step for one in run.bad)}."
    made = sum(one.status == "done" for one in run.steps)
    return f"{made} of {len(run.steps)} steps did something; nothing went wrong."


def files_aside(run: RunRecord) -> list[str]:
    """Names of the files that this run has set aside."""
    return [name for one in run.steps for name in one.facts.get("aside", {})]


def aside_in_words(names: Sequence[str]) -> str:
    """Of files that were set aside, one at least."""
    many = len(names) != 1
    return f"{len(names)} {'files were' if many else 'file was'} set aside: {', '.join(names[:5])}"


def _row(record: StepRecord) -> dict[str, Any]:
    status = SIGNS.get(record.status, record.status)
    return {"step": record.step, "state": status, "seconds": round(record.seconds, 1), "what": record.what}


def _files(record: StepRecord) -> list[str]:
    names = record.facts.get("new_files") or []
    if not names:
        return []
    left = [f"and {len(names) - MOST_FILES} more"] if len(names) > MOST_FILES else []
    return ["", "## Files of this run", "", *(f"- {cell(name)}" for name in [*names[:MOST_FILES], *left])]


def _scores(record: StepRecord) -> list[str]:
    rows = record.facts.get("scores") or []
    return ["", f"## {cell(record.facts.get('title', record.step))}", "", *table(rows)] if rows else []


def _earlier(run: RunRecord) -> dict[str, Any]:
    return {"for": run.at, "ended": run.ended or "no", **{"how": in_words(run)}}
