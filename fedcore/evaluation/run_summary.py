"""Facts of a run that may be shown: its summary, metrics, privacy, scores and result, for reports and commands.

Everything comes from committed values: metrics, published values, the privacy statement, and scores on data that
their owner declared public. A private run never shows a metric that depends on raw statistics, even if the method
wrote one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from fedcore.errors import FedcoreError, RunError
from fedcore.evaluation.figures import PARTS, WHOLE
from fedcore.methods.names import METHODS
from fedcore.methods.registry import make_method, method_class
from fedcore.population.store import Population
from fedcore.rounds.choices import flat
from fedcore.rounds.method import AnyMethod
from fedcore.rounds.old_names import new_names
from fedcore.rounds.results import Features, Metric, Result
from fedcore.runs.plan_check import PLAN, compare
from fedcore.runs.store import Run
from fedcore.storage.files import Place, read_bytes
from fedcore.storage.parsing import JsonObject, parse_json

RAW = re.compile(r"objective|likelihood|loss|inertia|entropy|misfit|distortion|residual", re.IGNORECASE)


def run_summary(run: Run) -> dict[str, Any]:
    """Return a summary of a run as JSON, without parts that do not exist.

    run_id, status, method, rounds, private (whether it may claim privacy), algorithm (where the
    method states it), outcome (of methods that have one),
    population {name, version, id}, started, code_version, seed, seconds (wall, of all rounds), metrics (the last row),
    peak_memory_bytes {flow, workers}, privacy (`privacy_of`), evaluation (title, rows), promise
    (`fedcore.runs.plan_check.compare`). Raises RunError for unreadable files.
    """
    info, rows, privacy = run.info, shown_metrics(run), privacy_of(run)
    summary = {
        "run_id": run.id,
        "status": run.status_now,
        "method": info.get("method"),
        "rounds": max(run.round, 0),
        "private": privacy["private"],
    }
    if algorithm := _algorithm_of(info):
        summary["algorithm"] = algorithm
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
    promised = read_object(run.path / PLAN)
    if promised is not None:
        summary["promise"] = compare(run, promised)
    return summary | {"privacy": privacy}


def _algorithm_of(info: JsonObject) -> str:
    """That of its settings, or of its method if that is installed; empty if neither says anything."""
    if chosen := flat(info.get("config") or {}).get("algorithm"):
        return str(chosen)
    name = info.get("method")
    return method_class(name).algorithm if isinstance(name, str) and name in METHODS else ""


def privacy_of(run: Run) -> dict[str, Any]:
    """Return the run's statement (`PrivacyStatement.to_json`). "private": whether it claims anything; "text": the
    claim.

    A claim needs three things: a private method, no test noise, and a statement that claims. If one is missing, only
    the reason is returned; "pending" marks a private run that has no statement yet.
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
    statement = read_object(run.path / "statement.json") or {}
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
    declared = {metric.name: not metric.follows_data for metric in declared_metrics(run)}
    return [
        {name: value for name, value in row.items() if not RAW.search(name) and _may_be_seen(name, declared)}
        for row in rows
    ]


def _may_be_seen(name: str, declared: Mapping[str, bool]) -> bool:
    """Rounds and seconds are the engine's own columns. Nothing is known of a method of another installation."""
    return name == "round" or name.startswith("seconds_") or declared.get(name, not declared)


def method_of(run: Run) -> AnyMethod | None:
    """The run's method, without settings that this version does not know; None for one of another installation."""
    try:
        cls = method_class(str(run.info.get("method")))
        config = new_names(run.info.get("config") or {}, cls.renamed_settings, cls.name, stored=True)
        return make_method(cls.name, {name: config[name] for name in cls.Config.model_fields if name in config})
    except FedcoreError:
        return None


def declared_metrics(run: Run) -> tuple[Metric, ...]:
    method = method_of(run)
    return () if method is None else method.metrics


def kind_of(run: Run) -> str:
    """What the run read: "counts" or "rows"; "" for a method of another installation."""
    method = method_of(run)
    return "" if method is None else method.kind


def result_of(run: Run, vocabulary: Sequence[str] | None = None) -> Result:
    """Return the run's result from its method; empty before the first round, and after the model was removed. Raises
    RunError.

    vocabulary: names of the features; None: those of the population that the run was trained on, if it is there.
    """
    method = method_of(run)
    if method is None or run.round < 1 or run.pruned:
        return Result()
    try:
        state = method.State(**run.read_state())
    except TypeError:  # of another version
        return Result()
    return method.result(state, features_of(run, vocabulary))


def features_of(run: Run, vocabulary: Sequence[str] | None = None) -> Features:
    """The columns that the run read, as it recorded them, or its vocabulary, with the names that its population gives
    them; without names where it is not there any more, because a model is read without its population too."""
    count, columns = int(run.info.get("features") or 0), run.info.get("columns") or []
    image, people = _image(run, count), run.info.get("nominal_clients")
    people = people if isinstance(people, int) else None
    if vocabulary is None and len(columns) == count > 0:
        names, units = [str(one["name"]) for one in columns], [str(one.get("unit") or "") for one in columns]
        return Features(count, names, units, image, people)
    recorded = run.info.get("population") or {}
    if vocabulary is None:
        try:
            vocabulary = Population.open(recorded["path"], version=recorded["version"]).vocabulary()
        except (FedcoreError, KeyError):
            return Features(count, image=image, people=people)
    return Features(count, vocabulary, image=image, people=people)


def _image(run: Run, count: int) -> tuple[int, int] | None:
    """(height, width) of the pictures that the run read; None if its rows were none."""
    image = run.info.get("image")
    if not (isinstance(image, list) and len(image) == 2 and all(type(one) is int and one > 0 for one in image)):
        return None
    return (image[0], image[1]) if count in (image[0] * image[1], 3 * image[0] * image[1]) else None


def evaluation_of(run: Run) -> dict | None:
    """The run's scores, if they are of data that their owner declared public, with the reason."""
    evaluation = read_object(run.path / "evaluation.json")
    if evaluation is None or evaluation.get("privacy") == "none" or not evaluation.get("public"):
        return None
    rows = evaluation.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RunError(f"the rows of {run.path.name}/evaluation.json are not a table.", "Evaluate the run again.")
    return evaluation


@dataclass(frozen=True, slots=True)
class PublicScore:
    """What the run gives its clients, scored on public held-out data. loss: "kl" or "nll", nats, or another column of
    the table of scores; lower is better. on: the population and its version; method: the line of the table.
    """

    loss: str
    method: str
    score: float
    standard_error: float | None
    on: str


def public_score(run: Run) -> PublicScore | None:
    """The headline of the run's scores on public data; None if it has none, or of a method that is not installed."""
    table, method = evaluation_of(run), method_of(run)
    if table is None or method is None or not table["rows"]:
        return None
    row, loss = method.headline(table["rows"]), str(table.get("loss", "kl"))
    value, error = row.get(loss), row.get("se")
    if not _is_number(value):
        return None
    on = f"{table.get('population')}, version {table.get('version')}"
    return PublicScore(loss, str(row.get("method")), float(value), float(error) if _is_number(error) else None, on)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _withholds(run: Run) -> bool:
    """Whether raw statistics must not be shown; also true if the run does not state it."""
    return run.info.get("private") is not False


def read_object(path: Place) -> dict | None:
    """A JSON object, or None if there is no such file. Raises RunError for an unreadable one."""
    try:
        value = parse_json(read_bytes(path))
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
