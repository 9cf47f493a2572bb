"""The plan of a run (`fedcore.planning.run_plan`) beside what was measured when it was made."""

from __future__ import annotations

import json
from typing import Any

from fedcore.errors import RunError
from fedcore.runs.store import Run
from fedcore.storage import files
from fedcore.storage.files import Place, write_json

PROMISE = "promise.json"  # in the folder of a run: the plan that it is held against


def held(run: Run, promised: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows what, promised, measured, ratio (promised / measured; None where one of them is missing or 0).

    Raises RunError if the plan is one of another method or population.
    """
    about = {"method": run.info.get("method"), "population": (run.info.get("population") or {}).get("name")}
    other = [name for name, value in about.items() if promised.get(name) != value]
    if other:
        raise RunError(
            f"the plan is of {other[0]} {promised.get(other[0])!r}, and run {run.id!r} is of {about[other[0]]!r}.",
            "Name the plan of this run.",
        )
    rows = run.metrics()
    seconds = sum(row.get("seconds_round", 0.0) for row in rows)
    releases = sum(row.get("seconds_release", 0.0) for row in rows)
    workers = run.head.get("peak_memory_of_workers") or []
    measured = {
        "passes": (promised.get("passes"), run.round),
        "seconds": (promised.get("seconds"), seconds),
        "seconds_per_pass": (promised.get("seconds_per_pass"), seconds / run.round if run.round > 0 else None),
        "seconds_of_releases": (promised.get("seconds_of_releases"), releases),
        "bytes_per_worker": (promised.get("bytes_per_worker"), max(workers, default=None)),
        "bytes_of_flow": (promised.get("bytes_of_flow"), run.head.get("peak_memory_of_flow")),
        "disk_bytes": (
            promised.get("disk_bytes"),
            sum(files.size(run.path / name) for name in ("state", "memory", "releases")),
        ),
    }
    return [
        {"what": name, "promised": said, "measured": was, "ratio": said / was if said and was else None}
        for name, (said, was) in measured.items()
        if said or was
    ]


def keep_promise(run: Run, promised: dict[str, Any]) -> list[dict[str, Any]]:
    """Put the plan beside the run, where its report finds it. Returns what `held` does, and raises that."""
    rows = held(run, promised)
    write_json(run.path / PROMISE, promised)
    return rows


def read_promise(path: Place) -> dict[str, Any]:
    """Raises RunError if there is no plan in the file."""
    try:
        promised = json.loads(files.read_bytes(path))
    except (OSError, ValueError) as error:
        raise RunError(
            f"{str(path)!r} holds no plan ({type(error).__name__}).", "`fedcore plan ... --save FILE.json` writes one."
        ) from error
    if not isinstance(promised, dict) or not isinstance(promised.get("passes"), int):
        raise RunError(f"{str(path)!r} holds no plan.", "`fedcore plan ... --save FILE.json` writes one.")
    return promised
