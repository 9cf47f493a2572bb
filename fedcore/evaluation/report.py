"""The report of a run: a summary, figures, one self-contained HTML page, a short markdown for an artifact.

Everything is computed from committed values that may be shown: metrics, published values, the privacy statement, and
scores on data that their owner declared public. A private run never shows a column that depends on raw statistics (an
objective, a likelihood), even if the method wrote one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic_core import to_jsonable_python

from fedcore.errors import ExtraMissing, FedcoreError
from fedcore.evaluation.bars import bars_figure
from fedcore.evaluation.changes import since_the_run_before
from fedcore.evaluation.figures import (
    PARTS,
    WHOLE,
    budget_figure,
    data_uri,
    evaluation_figure,
    rounds_figure,
    seconds_figure,
)
from fedcore.evaluation.images import pictures_figure
from fedcore.evaluation.positions import positions_figure
from fedcore.evaluation.privacy_page import paragraphs, privacy_page
from fedcore.evaluation.profiles import profiles_figure
from fedcore.evaluation.run_summary import (
    declared_metrics,
    evaluation_of,
    privacy_of,
    read_object,
    result_of,
    run_summary,
    shown_metrics,
)
from fedcore.evaluation.templates import markup, rendered
from fedcore.evaluation.written import Shown, first_table, in_markdown, iso_date, show, show_bytes, shown_tables
from fedcore.methods.registry import method_class
from fedcore.rounds.choices import flat, known_settings
from fedcore.rounds.results import Bars, Figure, Pictures, Positions, Result
from fedcore.rounds.scores import differences_in_words
from fedcore.runs.plan_check import PLAN
from fedcore.runs.run_files import METRICS
from fedcore.runs.store import Run
from fedcore.storage.arrays import writing
from fedcore.storage.files import Place, listing, write_whole
from fedcore.storage.parsing import JsonObject

CAPTIONS = {  # of figures that no method declares
    "tasks": "Distance from the common centres in units of the limit; above 1 a client is apart from the others.",
    "budget": "What is spent after each release; dotted: planned, but not released.",
    "evaluation": "Scores on held-out data that their owner declared public.",
    "seconds": "Where the time went.",
}
FILES = {
    "run.json": "what was asked: method, settings, population, plan",
    "head.json": "where the run is: its last committed round",
    METRICS: "one row for each committed round",
    "statement.json": "the privacy statement",
    "evaluation.json": "scores on public held-out data",
    PLAN: "the plan that the run is held against",
    "report.html": "this page",
    "result.json": "the result for programs: tables, outcome, statement",
    "state": "state of the server after the last rounds",
    "memory": "memories of the clients; their own data may follow from them, so keep them where the data are",
    "releases": "copies of the published values",
}
SECONDS = (*PARTS, WHOLE)
LOSS, AXIS = "kl", "mean KL(held out ‖ estimate) over clients (nats)"  # unless the scores say other
TOP = 8  # tokens of a profile
ARTIFACT_ROWS, ARTIFACT_COLUMNS = 12, 8  # of a table of the result


# --- figures --------------------------------------------------------------------------------------------------------


def run_figures(run: Run, vocabulary: Sequence[str] | None = None) -> dict[str, bytes]:
    """The figures that this run has, as PNG by name: evaluation, profiles, objective, movement, budget, seconds.

    vocabulary: tokens of the population, for profiles. Columns used: "movement", "objective" (never in a private run),
    "seconds_clients", "seconds_release", "seconds_server", "seconds_round".
    """
    rows, figures = shown_metrics(run), {}
    evaluation = evaluation_of(run)
    if evaluation is not None and evaluation["rows"]:
        figures["evaluation"] = evaluation_figure(
            evaluation["rows"], evaluation.get("loss", LOSS), evaluation.get("axis", AXIS)
        )
    for figure in result_of(run, vocabulary).figures:
        figures[figure.name] = _drawn(figure, vocabulary)
    for metric in declared_metrics(run):
        if metric.title and any(metric.name in row for row in rows):
            figures[metric.name] = rounds_figure(rows, [metric.name], metric.title, metric.unit)
    apart = read_object(run.path / "diagnosis.json") if run.info.get("private") is False else None
    if apart is not None and apart.get("tasks"):
        from fedcore.evaluation.outliers import distances_figure  # it imports training, which not every report needs

        figures["tasks"] = distances_figure(apart["tasks"])
    releases, privacy = _releases(run), privacy_of(run)
    if releases:
        population = privacy.get("population") or {}
        paid = {release["name"] for release in releases if release["paid"]}
        figures["budget"] = budget_figure(releases, paid, population.get("rho_max"), spent_by_others(privacy))
    if any(part in row for row in rows for part in SECONDS):
        figures["seconds"] = seconds_figure(rows)
    return figures


def _drawn(figure: Figure, vocabulary: Sequence[str] | None) -> bytes:
    if isinstance(figure, Positions):
        return positions_figure(figure)
    if isinstance(figure, Pictures):
        return pictures_figure(figure)
    if isinstance(figure, Bars):
        return bars_figure(figure)
    return profiles_figure(figure.centres, figure.mean, figure.weights, vocabulary, TOP)


def spent_by_others(privacy: JsonObject) -> float:
    """The rho that other runs than that of this statement have charged to those who took part in it, at most."""
    spent = (privacy.get("cohorts") or {}).get("most_of_them") or privacy.get("population") or {}
    return float(max(0.0, spent.get("rho_spent", 0.0) - privacy.get("rho", 0.0)))


def _published(run: Run) -> set[str]:
    """Names of the releases of which the run keeps a copy; the copies themselves are not read."""
    return set(run.release_names())


# --- the page -------------------------------------------------------------------------------------------------------


def write_report(run: Run, vocabulary: Sequence[str] | None = None, drawn: Mapping[str, bytes] | None = None) -> Place:
    """Write report.html into the run's folder, whole or not at all; needs nothing from elsewhere. Returns its path.

    drawn: what `run_figures` returned for the run as it is now; drawn here if it is not given. Without Matplotlib the
    page has no figures, and states why.
    """
    undrawn = ""
    try:
        drawn = run_figures(run, vocabulary) if drawn is None else drawn
    except ExtraMissing as missing:
        drawn, undrawn = {}, f"This page has no figures. {missing} Then write it again: fedcore report {run.path}"
    figures = {name: data_uri(png) for name, png in drawn.items()}
    path, evaluation = run.path / "report.html", evaluation_of(run)
    summary, result = run_summary(run), result_of(run, vocabulary)
    first = first_table(result.tables)
    page = rendered(
        "report.html",
        {"show": show, "bytes": show_bytes, "words": _words, "date": iso_date},
        first_page=markup(privacy_page(run, vocabulary)),
        summary=summary,
        figures=figures,
        undrawn=undrawn,
        captions=_captions(run, result),
        settings=_settings(run),
        since=since_the_run_before(run),
        first=first,
        results=shown_tables(result.tables[1:] if first is not None and first.whole else result.tables),
        pictures=[figure.name for figure in result.figures],
        metrics=_table(shown_metrics(run), ["round"], SECONDS),
        promise=_promise(summary),
        not_published=_not_published(_releases(run)),
        evaluation=evaluation,
        scores=_table(
            (evaluation or {}).get("rows", []),
            ("method", (evaluation or {}).get("loss", LOSS), "se", "difference", "difference_se"),
        ),
        differences=differences_in_words(evaluation or {}),
        curves=[*(metric.name for metric in declared_metrics(run) if metric.title), "tasks"],
        asked=run.info,
        files=_files(run),
    )
    with writing(path.name):
        write_whole(path, page.encode("utf-8", "backslashreplace"))
    return path


def report_if_possible(
    run: Run, vocabulary: Sequence[str] | None = None, drawn: Mapping[str, bytes] | None = None
) -> str:
    """Call `write_report`. Returns a warning if it failed, for any reason: a report never decides how a run ends."""
    try:
        write_report(run, vocabulary, drawn)
    except Exception as error:
        return not_shown(run, f"{type(error).__name__}: {error}")
    return ""


def not_shown(run: Run, why: str) -> str:
    """That the report is not there, and what to do; the run itself is whole."""
    return (
        f"report.html of run {run.id!r} was not written ({why.rstrip('.')}). The run lacks nothing else. Once that is "
        f"fixed, `fedcore report {run.path}` writes it."
    )


def _captions(run: Run, result: Result) -> dict[str, str]:
    """Of every figure that the run may have, by name."""
    captions = dict(CAPTIONS)
    captions |= {metric.name: metric.caption or metric.title for metric in declared_metrics(run)}
    return captions | {figure.name: figure.caption for figure in result.figures}


def _promise(summary: Mapping) -> dict:
    """Planned and measured values, in the units of their names; ratio: planned / measured."""
    rows = [
        {**row, **{side: show_bytes(row[side]) for side in ("promised", "measured") if "bytes" in row["what"]}}
        for row in summary.get("promise", ())
    ]
    return _table([{**row, "what": _words(row["what"])} for row in rows])


def _settings(run: Run) -> list[dict]:
    """One row for each setting; "given" where it is not the default, and those come first."""
    config = flat(run.info.get("config") or {})
    try:
        fields = known_settings(method_class(str(run.info.get("method"))).Config, config)
    except FedcoreError:  # a method of another installation: defaults unknown
        fields = {}
    usual = {name: None if info.is_required() else info.get_default() for name, info in fields.items()}
    defaults = flat(to_jsonable_python(usual))
    rows = []
    for name in sorted(config, key=lambda name: list(fields).index(name) if name in fields else len(fields)):
        value = config[name]
        default = defaults.get(name, value)
        meaning = fields[name].description if name in fields else None
        rows.append(
            {"name": name, "value": value, "default": default, "meaning": meaning or "", "given": value != default}
        )
    return sorted(rows, key=lambda row: not row["given"])


def _table(rows: Sequence[Mapping], first: Sequence[str] = (), last: Sequence[str] = ()) -> dict:
    """Rows with the same cells in the same order. columns: (name, whether it holds numbers)."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.sort(key=lambda name: first.index(name) if name in first else len(first) + (name in last))
    cells = [[row.get(name) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(name), (int, float, type(None))) for row in rows) for name in names]
    return {"columns": list(zip(names, numeric, strict=True)), "cells": cells}


def _releases(run: Run) -> list[dict]:
    """The planned releases, with the cost that was charged, "state" in words and `paid`; [] if nothing is claimed."""
    privacy = privacy_of(run)
    if not (privacy["private"] or privacy.get("pending")):
        return []
    charged = {release["name"]: release for release in privacy.get("releases", ())}
    published, rows = _published(run), []
    for planned in run.info.get("plan") or []:
        name, attempts = planned["name"], charged.get(planned["name"], {}).get("attempts", 1)
        state = "published" if name in published else "charged and lost" if name in charged else "not made"
        rows.append(
            {
                **planned,
                **charged.get(name, {}),
                "paid": state != "not made",
                "state": state if attempts == 1 else f"{state}; drawn {attempts} times",
            }
        )
    return rows


def _not_published(releases: Sequence[Mapping]) -> list[str]:
    """Which planned releases are not published, or were drawn again, in sentences; empty if all were at once."""
    lost = [row["name"] for row in releases if row["paid"] and row["state"].startswith("charged")]
    again = [f"{row['name']} ({row['attempts']} times)" for row in releases if row.get("attempts", 1) != 1]
    missing = [row["name"] for row in releases if not row["paid"]]
    told = {"Charged and lost": lost, "Drawn more than once": again, "Planned and not made": missing}
    return [f"{what}: {', '.join(names)}." for what, names in told.items() if names]


def _files(run: Run) -> list[dict]:
    there, rows = listing(run.path), []
    for name, meaning in FILES.items():
        name = run.metrics_file.name if name == METRICS else name
        if name in there or name == "report.html":
            rows.append({"name": name, "meaning": meaning, "bytes": there[name] if name != "report.html" else None})
    return rows


# --- markdown -------------------------------------------------------------------------------------------------------


def markdown_report(run: Run, figures: Mapping[str, bytes]) -> str:
    """Short markdown for an artifact: a table, the privacy statement in three lines, the figures as data URIs."""
    summary = run_summary(run)
    privacy, population = summary["privacy"], summary.get("population", {})
    lines = [f"# Run {in_markdown(summary['run_id'])}", ""]
    if not privacy["private"]:
        lines += [f"> **{'privacy: not stated yet' if privacy.get('pending') else 'privacy: none'}**", ""]
    table = {
        "status": summary["status"],
        "method": summary["method"],
        "rounds": summary["rounds"],
        "outcome": summary.get("outcome"),
        "population": f"{population['name']}, version {population.get('version')}" if "name" in population else None,
        "started": iso_date(summary.get("started")),
        "seconds": summary.get("seconds"),
        **{
            _words(name): value
            for name, value in summary.get("metrics", {}).items()
            if name != "round" and name not in SECONDS
        },
        **{
            f"peak memory, {name}": show_bytes(max(np.atleast_1d(value)))
            for name, value in summary.get("peak_memory_bytes", {}).items()
        },
    }
    lines += ["| | |", "|---|---|"]
    lines += [
        f"| {in_markdown(name)} | {in_markdown(show(value))} |" for name, value in table.items() if value is not None
    ]
    lines += _since(run)
    result = result_of(run)
    if result.tables:
        lines += ["", "## Result", ""]
    for found in shown_tables(result.tables, ARTIFACT_ROWS, ARTIFACT_COLUMNS):
        lines += [*_md_table(found), ""]
    lines += ["", "## Privacy", "", *_three_lines(privacy), ""]
    captions = _captions(run, result)
    for name, png in figures.items():
        lines += [f"![{in_markdown(name)}]({data_uri(png)})", "", captions.get(name, ""), ""]
    return "\n".join(lines)


def _md_table(shown: Shown) -> list[str]:
    """Its title, the table, and what belongs below."""
    lines = [f"**{in_markdown(shown.title)}**", "", f"| {' | '.join(in_markdown(name) for name in shown.headings)} |"]
    lines.append(f"|{'|'.join('---:' if numeric else '---' for numeric in shown.numeric)}|")
    for row in shown.cells:
        cells = (in_markdown(cell if isinstance(cell, str) else ", ".join(cell)) for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, *(line for note in shown.notes for line in ("", in_markdown(note)))]


def _since(run: Run) -> list[str]:
    """What changed since the run before, if there is one."""
    since = since_the_run_before(run)
    if since is None:
        return []
    lines = ["", "## Since the run before", ""]
    if isinstance(since, str):
        return [*lines, in_markdown(since)]
    if since.changes:
        lines += ["| of | what | before | now | difference |", "|---|---|---|---|---|"]
    for change in since.changes:
        cells = (change.kind, change.what, change.before, change.now, change.note)
        lines.append(f"| {' | '.join(map(in_markdown, cells))} |")
    return [*lines, "", in_markdown(since.in_words)]


def _three_lines(privacy: JsonObject) -> list[str]:
    """What is promised; what it cost; what is not covered."""
    found = paragraphs(privacy)
    lines = [" — ".join(found[:2]), " ".join(found[2:4])]
    if privacy.get("not_covered"):
        lines.append("Not covered: " + " ".join(privacy["not_covered"]))
    return [f"- {in_markdown(line)}" for line in lines if line]


def _words(name: str) -> str:
    return str(name).replace("_", " ")
