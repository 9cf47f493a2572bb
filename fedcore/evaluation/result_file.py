"""The result of a run as one JSON object: tables, outcome, and what may be claimed about privacy.

runs/RUN/result.json   written when a run ends; nothing reads it, no run needs it, `fedcore export` makes it again
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcore.evaluation.run_summary import privacy_of, result_of, run_summary
from fedcore.rounds.results import Result
from fedcore.runs.store import Run
from fedcore.storage.arrays import writing
from fedcore.storage.files import write_json

RESULT = "result.json"
SCHEMA = 1
TOLD = ("run_id", "method", "status", "rounds", "outcome", "population", "started", "code_version", "seed")


def result_document(run: Run, result: Result) -> dict[str, Any]:
    """schema, run_id, method, status, rounds, outcome (of methods that have one), population, started, code_version,
    seed, settings, privacy (`fedcore.evaluation.run_summary.privacy_of`), and tables. A table has name, title, note
    and columns of name, unit, values and, where there are any, standard errors. Values that are not finite are null.
    Raises RunError for unreadable files.
    """
    summary = run_summary(run)
    return {
        "schema": SCHEMA,
        **{name: summary[name] for name in TOLD if name in summary},
        "settings": run.info.get("config") or {},
        "privacy": privacy_of(run),
        "tables": [table.to_json() for table in result.tables],
    }


def keep_result(run: Run, vocabulary: Sequence[str] | None) -> None:
    """Write result.json into the run's folder, whole or not at all. Raises RunError."""
    document = result_document(run, result_of(run, vocabulary))
    with writing(RESULT):
        write_json(run.path / RESULT, document)


def keep_result_if_possible(run: Run, vocabulary: Sequence[str] | None) -> str:
    """Call `keep_result`. Returns a warning if it failed, for any reason: it never decides how a run ends."""
    try:
        keep_result(run, vocabulary)
    except Exception as error:
        return (
            f"{RESULT} of run {run.id!r} was not written ({type(error).__name__}: {str(error).rstrip('.')}). The run "
            f"lacks nothing else; `fedcore export {run.path} FILE.json` says the same."
        )
    return ""


def json_value(value: object) -> Any:
    """A cell as JSON; None for numbers that are not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)
