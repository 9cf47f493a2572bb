"""The plan of a run (`fedcore.planning.run_plan`) compared with what was measured while the run was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcore.errors import RunError
from fedcore.runs.store import Run
from fedcore.storage import files
from fedcore.storage.files import Place, write_json
from fedcore.storage.parsing import parse_json

PLAN = "promise.json"  # in the folder of a run: the plan that it is compared with


def compare(run: Run, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows what, promised, measured, ratio (promised / measured; None where one of them is missing or 0).

    plan: as JSON, of `fedcore.planning.run_plan`.

    Raises RunError if the plan is one of another method or population.
    """
    about = {"method": run.info.get("method"), "population": (run.info.get("population") or {}).get("name")}
    other = [name for name, value in about.items() if plan.get(name) != value]
    if other:
        raise RunError(
            f"the plan is of {other[0]} {plan.get(other[0])!r}, and run {run.id!r} is of {about[other[0]]!r}.",
            "Name the plan of this run.",
        )
    rows = run.metrics()
    seconds = sum(row.get("seconds_round", 0.0) for row in rows)
    releases = sum(row.get("seconds_release", 0.0) for row in rows)
    workers = run.head.get("peak_memory_of_workers") or []
    measured = {
        "passes": (plan.get("passes"), run.round),
        "seconds": (plan.get("seconds"), seconds),
        "seconds_per_pass": (plan.get("seconds_per_pass"), seconds / run.round if run.round > 0 else None),
        "seconds_of_releases": (plan.get("seconds_of_releases"), releases),
        "bytes_per_worker": (plan.get("bytes_per_worker"), max(workers, default=None)),
        "bytes_of_flow": (plan.get("bytes_of_flow"), run.head.get("peak_memory_of_flow")),
        "disk_bytes": (
            plan.get("disk_bytes"),
            sum(files.size(run.path / name) for name in ("state", "memory", "releases")),
        ),
    }
    return [
        {"what": name, "promised": planned, "measured": was, "ratio": planned / was if planned and was else None}
        for name, (planned, was) in measured.items()
        if planned or was
    ]


def keep_plan(run: Run, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Store the plan with the run, where its report finds it. Returns and raises what `compare` does.

    Also raises RunError for a plan that contains exact counts and a run that may not hold any.
    """
    if run.info.get("private") is not False and plan.get("private") is not True:
        raise RunError(
            f"run {run.id!r} is private, and the plan was made for one that is not: it contains exact "
            "counts of the population, which are not kept with a private run.",
            "Make the plan again, with the settings of this run.",
        )
    rows = compare(run, plan)
    write_json(run.path / PLAN, dict(plan))
    return rows


def read_plan(path: Place) -> dict[str, Any]:
    """The plan in a file. Raises RunError if there is none."""
    try:
        plan = parse_json(files.read_bytes(path))
    except (OSError, ValueError) as error:
        raise RunError(
            f"{str(path)!r} holds no plan ({error}).", "`fedcore plan ... --save FILE.json` writes one."
        ) from error
    if not isinstance(plan, dict) or not isinstance(plan.get("passes"), int):
        raise RunError(f"{str(path)!r} holds no plan.", "`fedcore plan ... --save FILE.json` writes one.")
    return plan
