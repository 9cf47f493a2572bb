"""The report of a run: a summary, figures, one self-contained HTML page, a short markdown for an artifact.

Everything is computed from what is committed and may be seen: metrics, published values, the privacy statement, and
scores on data that their owner declared public. In a private run a column that would follow raw statistics (an
objective, a likelihood) is never shown, whoever wrote it.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, FedcoreError, RunError
from fedcore.evaluation.figures import (
    PARTS,
    WHOLE,
    budget_figure,
    data_uri,
    evaluation_figure,
    printable,
    profiles_figure,
    rounds_figure,
    seconds_figure,
)
from fedcore.methods.registry import make_method
from fedcore.rounds.method import Method
from fedcore.rounds.results import Features, Metric, Result, Table
from fedcore.runs.plan_check import PLAN, compare
from fedcore.runs.run_files import METRICS
from fedcore.runs.store import Run
from fedcore.storage.files import Place, listing, read_bytes, write_whole

RAW = re.compile(r"objective|likelihood|loss|inertia|entropy|misfit|distortion|residual", re.IGNORECASE)
CAPTIONS = {  # of figures that no method declares
    "tasks": "Distance from the common centres in units of what the pull bounds; above 1 it leaves a client apart.",
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
    "state": "state of the server after the last rounds",
    "memory": "memories of the clients; their own data may follow from them, so keep them where the data are",
    "releases": "copies of the published values",
}
OF_RUN = {"unit": "unit", "relation": "relation", "epsilon": "ε of this run", "delta": "at δ", "rho": "ρ of this run"}
OF_POPULATION = {
    "epsilon": "ε of the population, all runs",
    "delta": "at δ",
    "rho_max": "ρ of the population, all runs",
    "rho_spent": "ρ spent by all runs",
    "epsilon_spent": "ε spent by all runs",
}
SECONDS = (*PARTS, WHOLE)
LOSS, AXIS = "kl", "mean KL(held out ‖ estimate) over clients (nats)"  # unless the scores say other
TOP = 8  # tokens of a profile


# --- what is known of a run -----------------------------------------------------------------------------------------


def run_summary(run: Run) -> dict[str, Any]:
    """What is known of a run, as JSON: parts that do not exist are left out.

    run_id, status, method, rounds, private (whether it may claim privacy), outcome (of methods that tell one),
    population {name, version, id}, started, code_version, seed, seconds (wall, of all rounds), metrics (the last row),
    peak_memory_bytes {flow, workers}, privacy (`privacy_of`), evaluation (title, rows), promise
    (`fedcore.runs.plan_check.compare`). Raises RunError for unreadable files.
    """
    info, rows, privacy = run.info, shown_metrics(run), privacy_of(run)
    summary = {
        "run_id": run.id,
        "status": run.status,
        "method": info.get("method"),
        "rounds": max(run.round, 0),
        "private": privacy["private"],
    }
    if run.head.get("outcome"):
        summary["outcome"] = run.head["outcome"]
    population = info.get("population") or {}
    if population:
        summary["population"] = {key: population[key] for key in ("name", "version", "id") if key in population}
    summary |= {key: info[key] for key in ("started", "code_version", "seed") if info.get(key) is not None}
    if rows:
        summary["seconds"] = round(sum(row.get(WHOLE, sum(row.get(part, 0.0) for part in PARTS)) for row in rows), 3)
        summary["metrics"] = rows[-1]
    memory = {"flow": run.head.get("peak_memory_of_flow"), "workers": run.head.get("peak_memory_of_workers")}
    if any(memory.values()):
        summary["peak_memory_bytes"] = {key: value for key, value in memory.items() if value}
    evaluation = evaluation_of(run)
    if evaluation is not None:
        summary["evaluation"] = {key: evaluation[key] for key in ("title", "rows") if key in evaluation}
    promised = _read(run.path / PLAN)
    if promised is not None:
        summary["promise"] = compare(run, promised)
    return summary | {"privacy": privacy}


def privacy_of(run: Run) -> dict[str, Any]:
    """The run's statement (`PrivacyStatement.to_json`); "private" tells whether it claims anything, "text" says it.

    A claim needs three things: a private method, no test noise, and a statement that claims. Where one is missing,
    nothing else of the statement is returned than the reason; "pending" marks a private run that has none yet.
    """
    statement = _statement(run)
    if statement.get("private") is True:
        return {"text": "", **statement}
    if run.info.get("private") is True and not run.info.get("test_noise") and not statement:
        text = (
            "No statement yet: one is written when a run finishes or its budget is exhausted. What the run charged "
            "counts against the budget of its population, whatever becomes of the run."
        )
        return {"private": False, "pending": True, "text": text}
    reason = str(statement["reason"]).rstrip(".")
    return {"private": False, "privacy": "none", "reason": reason, "text": f"privacy: none, because {reason}."}


def _statement(run: Run) -> dict[str, Any]:
    """statement.json, or {} if there is none; without its claims where method or noise cannot bear them."""
    statement = _read(run.path / "statement.json") or {}
    if run.info.get("private") is True and not run.info.get("test_noise"):
        if not statement or (statement.get("private") is True and statement.get("privacy") != "none"):
            return statement
        reason = statement.get("reason") or "its statement claims nothing"
    elif run.info.get("test_noise"):
        reason = "the noise was pseudo-random test noise, which anyone who knows its key can subtract"
    else:
        reason = (
            not statement.get("private")
            and statement.get("reason")
            or "this configuration of the method adds no noise that protects people"
        )
    return {"private": False, "reason": reason}


def shown_metrics(run: Run) -> list[dict]:
    """The committed metrics; of a private run only columns that its method declares as made from published values."""
    rows = run.metrics()
    if not _withholds(run):
        return rows
    declared = {metric.name: not metric.follows_data for metric in _metrics(run)}
    return [
        {name: value for name, value in row.items() if not RAW.search(name) and _may_be_seen(name, declared)}
        for row in rows
    ]


def _may_be_seen(name: str, declared: Mapping[str, bool]) -> bool:
    """Rounds and seconds are the engine's own columns. Nothing is known of a method of another installation."""
    return name == "round" or name.startswith("seconds_") or declared.get(name, not declared)


def _method(run: Run) -> Method[Any, Any] | None:
    """The run's method; None for one of another installation, or for damaged settings."""
    try:
        return make_method(str(run.info.get("method")), run.info.get("config") or {})
    except FedcoreError:
        return None


def _metrics(run: Run) -> tuple[Metric, ...]:
    method = _method(run)
    return () if method is None else method.metrics


def result_of(run: Run, vocabulary: Sequence[str] | None = None) -> Result:
    """What the run has learnt, as its method tells it; empty before the first round. Raises RunError."""
    method = _method(run)
    if method is None or run.round < 1:
        return Result()
    try:
        state = method.State(**run.read_state())
    except TypeError:  # of another version
        return Result()
    return method.result(state, Features(int(run.info.get("features") or 0), vocabulary))


def evaluation_of(run: Run) -> dict | None:
    """The run's scores, if they are of data that their owner declared public, with the reason."""
    evaluation = _read(run.path / "evaluation.json")
    if evaluation is None or evaluation.get("privacy") == "none" or not evaluation.get("public"):
        return None
    rows = evaluation.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RunError(f"the rows of {run.path.name}/evaluation.json are not a table.", "Evaluate the run again.")
    return evaluation


def _withholds(run: Run) -> bool:
    """Whether raw statistics must not be shown; so also when nobody said."""
    return run.info.get("private") is not False


def _read(path: Place) -> dict | None:
    """A JSON object, or None if there is no such file. Raises RunError for an unreadable one."""
    try:
        value = json.loads(read_bytes(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path.parent.name}/{path.name} is unreadable ({type(error).__name__}).",
            "Restore it from a backup, or remove it.",
        ) from error
    if not isinstance(value, dict):
        raise RunError(f"{path.parent.name}/{path.name} does not hold an object.", "Restore it, or remove it.")
    return value


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
        figures[figure.name] = profiles_figure(figure.centres, figure.mean, figure.weights, vocabulary, TOP)
    for metric in _metrics(run):
        if metric.title and any(metric.name in row for row in rows):
            figures[metric.name] = rounds_figure(rows, [metric.name], metric.title, metric.unit)
    apart = _read(run.path / "diagnosis.json") if run.info.get("private") is False else None
    if apart is not None and apart.get("tasks"):
        from fedcore.evaluation.outliers import tasks_figure  # it imports training, which not every report needs

        figures["tasks"] = tasks_figure(apart["tasks"])
    releases, privacy = _releases(run), privacy_of(run)
    if releases:
        population = privacy.get("population") or {}
        others = max(0.0, population.get("rho_spent", 0.0) - privacy.get("rho", 0.0))
        paid = {release["name"] for release in releases if release["paid"]}
        figures["budget"] = budget_figure(releases, paid, population.get("rho_max"), others)
    if any(part in row for row in rows for part in SECONDS):
        figures["seconds"] = seconds_figure(rows)
    return figures


def _published(run: Run) -> set[str]:
    """Names of the releases of which the run keeps a copy; the copies themselves are not read."""
    return set(run.release_names())


# --- the page -------------------------------------------------------------------------------------------------------


def write_report(run: Run, vocabulary: Sequence[str] | None = None, drawn: Mapping[str, bytes] | None = None) -> Place:
    """Write report.html into the run's folder, whole or not at all; needs nothing from elsewhere. Returns its path.

    drawn: what `run_figures` returned for the run as it is now; drawn here if it is not given.
    """
    import jinja2

    source = resources.files("fedcore.evaluation").joinpath("report.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"show": show, "bytes": show_bytes, "words": _words}
    drawn = run_figures(run, vocabulary) if drawn is None else drawn
    figures = {name: data_uri(png) for name, png in drawn.items()}
    path, evaluation = run.path / "report.html", evaluation_of(run)
    summary, result = run_summary(run), result_of(run, vocabulary)
    page = environment.from_string(source).render(
        summary=summary,
        figures=figures,
        captions=_captions(run, result),
        settings=_settings(run),
        results=[(table, _columns(table)) for table in result.tables],
        pictures=[figure.name for figure in result.figures],
        metrics=_table(shown_metrics(run), ["round"], SECONDS),
        promise=_promise(summary),
        releases=_releases(run),
        facts=_facts(privacy_of(run)),
        paragraphs=_paragraphs(privacy_of(run)),
        evaluation=evaluation,
        scores=_table((evaluation or {}).get("rows", []), ("method", (evaluation or {}).get("loss", LOSS), "se")),
        curves=[*(metric.name for metric in _metrics(run) if metric.title), "tasks"],
        asked=run.info,
        files=_files(run),
    )
    write_whole(path, page.encode("utf-8", "backslashreplace"))
    return path


def _captions(run: Run, result: Result) -> dict[str, str]:
    """Of every figure that the run may have, by name."""
    captions = dict(CAPTIONS)
    captions |= {metric.name: metric.caption or metric.title for metric in _metrics(run)}
    return captions | {figure.name: figure.caption for figure in result.figures}


def _columns(table: Table) -> dict:
    """columns: (heading, whether it holds numbers); cells: rows of text, or of lists of text."""
    kept = [
        (column, all(isinstance(value, (int, float, type(None))) for value in column.values))
        for column in table.columns
    ]
    cells = zip(*([_cell(value, column.unit) for value in column.values] for column, _ in kept), strict=True)
    return {"columns": [(column.name, numeric) for column, numeric in kept], "cells": list(cells)}


def _cell(value: object, unit: str) -> str | list[str]:
    if isinstance(value, (list, tuple)):
        return [printable(str(item)) for item in value]
    if unit == "%" and isinstance(value, float):
        return f"{100 * value:.3g} %"
    return show(value)


def _promise(summary: Mapping) -> dict:
    """What was planned beside what was measured, in the units of their names; ratio: promised / measured."""
    rows = [
        {**row, **{side: show_bytes(row[side]) for side in ("promised", "measured") if "bytes" in row["what"]}}
        for row in summary.get("promise", ())
    ]
    return _table([{**row, "what": _words(row["what"])} for row in rows])


def _settings(run: Run) -> list[dict]:
    """One row for each setting; "given" where it is not the default, and those come first."""
    from fedcore.methods.registry import method_class

    config = run.info.get("config") or {}
    try:
        fields = method_class(run.info.get("method")).Config.model_fields
    except (ConfigError, ImportError):  # a method of another installation: defaults unknown
        fields = {}
    rows = []
    for name in sorted(config, key=lambda name: list(fields).index(name) if name in fields else len(fields)):
        value = config[name]
        default = fields[name].get_default(call_default_factory=True) if name in fields else value
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
    """The planned releases, with the price that was charged, "state" in words and "paid"; [] if nothing is claimed."""
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


def _facts(privacy: Mapping) -> list[tuple[str, Any]]:
    """The numbers of a statement, labelled."""
    population = privacy.get("population") or {}
    facts = [(label, privacy.get(name)) for name, label in OF_RUN.items()]
    facts += [(label, population.get(name)) for name, label in OF_POPULATION.items()]
    return [(label, value) for label, value in facts if value is not None]


def _paragraphs(privacy: Mapping) -> list[str]:
    """The statement's text without its lists, which are shown as tables."""
    lines = [line for line in str(privacy["text"]).splitlines() if line.strip()]
    following = [*lines[1:], ""]
    return [line for line, after in zip(lines, following, strict=True) if line[0] != " " and after[:1] != " "]


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
    lines = [f"# Run {_md(summary['run_id'])}", ""]
    if not privacy["private"]:
        lines += [f"> **{'privacy: not stated yet' if privacy.get('pending') else 'privacy: none'}**", ""]
    table = {
        "status": summary["status"],
        "method": summary["method"],
        "rounds": summary["rounds"],
        "outcome": summary.get("outcome"),
        "population": f"{population['name']}, version {population.get('version')}" if "name" in population else None,
        "started": summary.get("started"),
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
    lines += [f"| {_md(name)} | {_md(show(value))} |" for name, value in table.items() if value is not None]
    lines += ["", "## Privacy", "", *_three_lines(privacy), ""]
    captions = _captions(run, result_of(run))
    for name, png in figures.items():
        lines += [f"![{_md(name)}]({data_uri(png)})", "", captions.get(name, ""), ""]
    return "\n".join(lines)


def _three_lines(privacy: Mapping) -> list[str]:
    """What is promised; what it cost; what is not covered."""
    paragraphs = _paragraphs(privacy)
    lines = [" — ".join(paragraphs[:2]), " ".join(paragraphs[2:4])]
    if privacy.get("not_covered"):
        lines.append("Not covered: " + " ".join(privacy["not_covered"]))
    return [f"- {_md(line)}" for line in lines if line]


def _md(text: Any) -> str:
    """Text that markdown and HTML leave as it is."""
    return re.sub(r"([\\`*_{}\[\]()#!|~$])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


# --- how values are written -----------------------------------------------------------------------------------------


def show(value: Any) -> str:
    """A value for a table: five significant digits, thousands apart, a dash for nothing."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    if isinstance(value, float):
        whole = math.isfinite(value) and value == int(value) and abs(value) < 1e15
        return show(int(value)) if whole else f"{value:.5g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def show_bytes(value: float | None) -> str:
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, "TiB"
    return f"{value:.4g} {unit}"


def _words(name: str) -> str:
    return str(name).replace("_", " ")
