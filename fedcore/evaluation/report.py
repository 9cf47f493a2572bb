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

from fedcore.errors import ConfigError, RunError
from fedcore.evaluation.figures import (
    PARTS,
    WHOLE,
    budget_figure,
    data_uri,
    distinguishing,
    evaluation_figure,
    heaviest,
    printable,
    profiles_figure,
    rounds_figure,
    seconds_figure,
)
from fedcore.runs.plan_check import PROMISE, held
from fedcore.runs.run_files import METRICS
from fedcore.runs.store import Run
from fedcore.storage.files import Place, listing, read_bytes, write_whole

RAW = re.compile(r"objective|likelihood|loss|inertia|entropy|misfit|distortion|residual", re.IGNORECASE)
CURVES = {  # by method: column of the metrics, title, unit
    "histograms": [
        ("objective", "Objective", "nats per client"),
        ("movement", "Movement of the centres", "total variation"),
    ],
    "federated_em": [
        ("objective", "Negative log-likelihood", "nats per row"),
        ("field_norm", "Squared norm of the field H", ""),
        ("active_clients", "Active clients", ""),
        ("bits_up", "Bits from clients", "bits"),
        ("movement", "Movement of the parameters", ""),
    ],
    "private_gmm": [
        ("radius", "Largest radius of a cell's ball", "units of the data"),
        ("leaves", "Cells", ""),
        ("candidates", "Candidate centres", ""),
        ("noise_of_a_count", "Noise of a count (standard deviation)", "units"),
    ],
    "gradient_em": [
        ("movement", "Movement of the common centres", ""),
        ("between_clients", "Standard deviation of clients' centres around the common ones", ""),
        ("apart", "Share of estimates that the penalty leaves apart", ""),
        ("active_clients", "Active clients", ""),
    ],
    "dictionaries": [
        ("loss", "Squared residual of a sample", "units of the data, squared"),
        ("movement", "Largest movement of a global atom", ""),
        ("distance", "Clients' own version of the global atoms from them", ""),
        ("nonzero", "Atoms of a sample's code", ""),
        ("active_clients", "Active clients", ""),
    ],
}
CAPTIONS = {
    "objective": "Objective of the training data after each round.",
    "movement": "How far centres or parameters moved in each round.",
    "loss": "Mean over all samples of the clients that took part, before their step.",
    "distance": "Mean over clients and atoms; unit atoms that have nothing in common are 1.41 apart.",
    "nonzero": "Mean over the samples.",
    "apart": "Estimates of clients that stay further from the common centre than the penalty reaches.",
    "between_clients": "By coordinate, in units of the spread within a component; by it clients are drawn.",
    "tasks": "Distance from the common centres in units of what the pull bounds; above 1 it leaves a client apart.",
    "field_norm": "How far the statistics still are from a fixed point of EM; compression and batches add noise to it.",
    "active_clients": "Clients that took part in each round.",
    "radius": "The released ball that rows are cut to, of the level or the leaves in work; jumps where a level begins.",
    "leaves": "Cells that the search has found so far; each becomes a component.",
    "candidates": "Released centres of boxes that hold many rows, before balls are chosen among them.",
    "noise_of_a_count": "What one unit of noise in a release hides, were every release a count.",
    "bits_up": "Encoded messages of all active clients in each round.",
    "budget": "What is spent after each release; dotted: planned, but not released.",
    "profiles": "The tokens whose share of a centre exceeds their share of the mean the most.",
    "evaluation": "Scores on held-out data that their owner declared public.",
    "seconds": "Where the time went.",
}
FILES = {
    "run.json": "what was asked: method, settings, population, plan",
    "head.json": "where the run is: its last committed round",
    METRICS: "one row for each committed round",
    "statement.json": "the privacy statement",
    "evaluation.json": "scores on public held-out data",
    PROMISE: "the plan that the run is held against",
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
    (`fedcore.runs.plan_check.held`). Raises RunError for unreadable files.
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
    promised = _read(run.path / PROMISE)
    if promised is not None:
        summary["promise"] = held(run, promised)
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
    """The committed metrics; of a private run without columns that would follow raw statistics."""
    rows = run.metrics()
    if not _withholds(run):
        return rows
    return [{name: value for name, value in row.items() if not RAW.search(name)} for row in rows]


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
    evaluation, profiles = evaluation_of(run), _profiles(run)
    if evaluation is not None and evaluation["rows"]:
        figures["evaluation"] = evaluation_figure(
            evaluation["rows"], evaluation.get("loss", LOSS), evaluation.get("axis", AXIS)
        )
    if profiles is not None:
        figures["profiles"] = profiles_figure(*profiles, vocabulary, TOP)
    for name, title, unit in CURVES.get(run.info.get("method"), []):
        if any(name in row for row in rows):
            figures[name] = rounds_figure(rows, [name], title, unit)
    apart = _read(run.path / "diagnosis.json") if run.info.get("private") is False else None
    if apart is not None and apart.get("tasks"):
        from fedcore.evaluation.outliers import tasks_figure

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


def _profiles(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """(centres, mean, weights) of a state whose centres are histograms and have been trained for a round."""
    if run.round < 0:
        return None
    state = run.read_state()
    centres, mean = state.get("centres"), state.get("mean")
    if not (isinstance(centres, np.ndarray) and isinstance(mean, np.ndarray)) or state.get("round") == 0:
        return None
    if centres.ndim != 2 or not centres.size or mean.shape != centres.shape[1:]:
        return None
    if not (np.isfinite(centres).all() and np.isfinite(mean).all() and centres.min() >= 0 and mean.min() >= 0):
        return None
    counts = state.get("counts")
    if not isinstance(counts, np.ndarray) or counts.shape != centres.shape[:1]:
        return centres, mean, None
    counts = np.maximum(counts, 0.0)  # noised counts may be negative
    return centres, mean, counts / counts.sum() if counts.sum() > 0 else None


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
    summary = run_summary(run)
    page = environment.from_string(source).render(
        summary=summary,
        figures=figures,
        captions=CAPTIONS,
        settings=_settings(run),
        profiles=_profile_rows(run, vocabulary),
        metrics=_table(shown_metrics(run), ["round"], SECONDS),
        promise=_promise(summary),
        releases=_releases(run),
        facts=_facts(privacy_of(run)),
        paragraphs=_paragraphs(privacy_of(run)),
        evaluation=evaluation,
        scores=_table((evaluation or {}).get("rows", []), ("method", (evaluation or {}).get("loss", LOSS), "se")),
        curves=[*(name for name, *_ in CURVES.get(run.info.get("method"), [])), "tasks"],
        asked=run.info,
        files=_files(run),
    )
    write_whole(path, page.encode("utf-8", "backslashreplace"))
    return path


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


def _profile_rows(run: Run, vocabulary: Sequence[str] | None) -> list[dict]:
    """The profiles as text: full tokens, which the figure shortens or cannot draw."""
    found = _profiles(run)
    if found is None:
        return []
    centres, mean, weights = found
    rows = []
    for k in heaviest(len(centres), weights, len(centres)):
        tokens, _ = distinguishing(centres[k], mean, TOP)
        names = [
            printable(str(vocabulary[i])) if vocabulary is not None and i < len(vocabulary) else f"token {i}"
            for i in tokens
        ]
        rows.append({"centre": k + 1, "share": None if weights is None else float(weights[k]), "tokens": names})
    return rows


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
    for name, png in figures.items():
        lines += [f"![{_md(name)}]({data_uri(png)})", "", CAPTIONS.get(name, ""), ""]
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
