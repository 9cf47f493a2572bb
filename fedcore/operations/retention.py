"""Which runs are kept. A run that is pruned loses what a model consists of and keeps what says how it was made and what
it cost.

Only finished runs are pruned, and never the latest of a deployment (`fedcore.operations.latest_runs`).
"""

from __future__ import annotations

from typing import Any

from fedcore.errors import ConfigError, RunBusy
from fedcore.operations.latest_runs import all_latest, alone
from fedcore.runs.run_row import NO_DEPLOYMENT
from fedcore.runs.store import Run, list_runs
from fedcore.storage import files
from fedcore.storage.arrays import writing
from fedcore.storage.files import Place, place

MODEL = ("state", "memory", "releases", "start.zip")  # what a pruned run loses


def prune(
    folder: str | Place,
    keep: int,
    stamp: str,
    deployment: str | None = None,
    *,
    dry_run: bool = False,
    ending: Run | None = None,
) -> list[dict[str, Any]]:
    """Remove the models of all but the newest `keep` finished runs of a deployment; oldest first.

    deployment: by name; None: of every deployment, and of the runs that none made, by method and population.
    A run loses its states, the memories of its clients, its copies of released values and of its start. It keeps
    run.json, head.json, metrics, privacy statement, scores and report: what was asked, what it cost, what came out.
    A run that has not finished is never touched, nor one that is the latest of any deployment, nor one that another
    process holds. ending: a trained run that is being concluded: it counts as finished, and stays. Returns one dict for
    each run that was or would be pruned: run, deployment, bytes, removed (False in a dry run, or if it is held). Raises
    ConfigError if keep < 1, RunError if a file latest-NAME.json is damaged.
    """
    folder = place(folder)
    if keep < 1:
        raise ConfigError(f"at least one run is kept, not {keep}.")
    if not files.is_folder(folder):
        return []
    with alone(folder):
        protected = {item.run for item in all_latest(folder)} | ({ending.path.name} if ending is not None else set())
        old = [run for series in _series(folder, deployment, ending) for run in series[:-keep]]
        old = [run for run in old if run.path.name not in protected and set(MODEL) & files.listing(run.path).keys()]
        return [
            {
                "run": run.id,
                "deployment": run.info.get("deployment") or NO_DEPLOYMENT,
                "bytes": _bytes(run),
                "removed": not dry_run and _remove_model(run, stamp),
            }
            for run in old
        ]


def _series(folder: Place, deployment: str | None, ending: Run | None = None) -> list[list[Run]]:
    """Finished runs that follow one another, oldest first; ending: counts as one of them."""
    found: dict[tuple, list[Run]] = {}
    for run in list_runs(folder):
        name, where = run.info.get("deployment"), run.info.get("population") or {}
        done = run.status == "finished" or (ending is not None and run.path.name == ending.path.name)
        if done and (deployment is None or name == deployment):
            key = (name,) if name else (None, run.info.get("method"), where.get("id"))
            found.setdefault(key, []).append(run)
    return [sorted(runs, key=lambda run: (str(run.info.get("started")), run.id)) for runs in found.values()]


def _bytes(run: Run) -> int:
    return sum(files.size(run.path / name) for name in MODEL)


def _remove_model(run: Run, stamp: str) -> bool:
    """The head says so first: a run without a model must never look like a damaged one."""
    try:
        mine = Run.open_locked(run.path)
    except RunBusy:
        return False
    try:
        if mine.status != "finished":
            return False
        if not mine.pruned:
            mine.note(pruned=stamp)
        with writing("what is to be removed"):
            for name in MODEL:
                files.remove(mine.path / name)
    finally:
        mine.unlock()
    return True
