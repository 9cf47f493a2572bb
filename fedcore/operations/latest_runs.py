"""Which run is the latest of a deployment: the one that others should use.

    runs/latest-NAME.json     the run that the deployment NAME stands for; replaced by one rename, or one put

It need not be the newest: with promote = "if_better" a run that is worse on public data does not become it
(`fedcore.operations.series`). `fedcore.runs.store.load_run` takes the file in place of a run's folder.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedcore.errors import ConfigError, RunBusy, RunError
from fedcore.runs.run_files import read_json, resolve
from fedcore.runs.store import TRAINED, Run
from fedcore.storage import files
from fedcore.storage.arrays import NAME, writing
from fedcore.storage.files import Place, place, shortened, write_json
from fedcore.storage.remote_lock import RemoteLock

SCHEMA = 1
LOCK = ".operations.lock"
HOLDER = ".operations.json"  # stands for the lock behind a URL
PATIENCE = 60.0  # for another process that moves pointers or prunes behind a URL, seconds


@contextmanager
def alone(folder: Place) -> Iterator[None]:
    """One process at a time moves pointers or prunes, so that none prunes what another has just promoted.

    Raises RunBusy behind a URL, where it is not waited for a process without end.
    """
    if not isinstance(folder, Path):
        with closing(_waited_for(RemoteLock(folder / HOLDER, f"which runs of {folder} are in use and kept"))):
            yield
        return
    with writing("the lock of the runs folder"):
        file = open(str(folder / LOCK), "w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _waited_for(lock: RemoteLock) -> RemoteLock:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            lock.take()
            return lock
        except RunBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


@dataclass(frozen=True, slots=True)
class Latest:
    """deployment: by name; run: by id, in the same folder; since: when it was promoted, as text; because: why."""

    path: Place
    deployment: str
    run: str
    since: str
    because: str

    def open(self) -> Run:
        """Raises RunNotFound or RunError."""
        return Run.open(self.path.parent / self.run)


def pointer(folder: str | Place, deployment: str) -> Place:
    if not NAME.fullmatch(deployment):
        raise ConfigError(f"{shortened(deployment)!r} cannot be the name of a deployment.")
    return place(folder) / f"latest-{deployment}.json"


def latest(folder: str | Place, deployment: str) -> Latest | None:
    """Which run is the latest of a deployment; None before one is. Raises RunError if its file is damaged."""
    path = pointer(folder, deployment)
    return _read(path) if files.is_file(path) else None


def all_latest(folder: str | Place) -> list[Latest]:
    """The latest run of every deployment of the folder. Raises RunError if a file is damaged."""
    folder = place(folder)
    names = [name for name in files.listing(folder) if name.startswith("latest-") and name.endswith(".json")]
    return [_read(folder / name) for name in names]


def _read(path: Place) -> Latest:
    run = resolve(path).name
    value = read_json(path) or {}
    return Latest(
        path, path.stem.removeprefix("latest-"), run, str(value.get("since", "")), str(value.get("because", ""))
    )


def promote(run: Run, deployment: str, because: str, stamp: str, *, concluding: bool = False) -> Latest:
    """Make a finished run the latest one of a deployment; readers see the old file or the new one.

    concluding: it is the run that is being concluded, which is trained. Raises RunError if the run has not finished or
    its model was removed.
    """
    path = pointer(run.path.parent, deployment)
    with alone(path.parent):
        now = Run.open(run.path)
        if now.pruned or now.status not in ("finished", TRAINED if concluding else "finished"):
            what = "its model was removed" if now.pruned else f"it is {now.status}"
            remedy = "`fedcore resume` it: that concludes it." if now.status == TRAINED else "Promote a finished run."
            raise RunError(f"run {run.id!r} cannot become the current run of {deployment!r}: {what}.", remedy)
        with writing(path.name):
            write_json(
                path,
                {
                    "schema": SCHEMA,
                    "deployment": deployment,
                    "run": run.path.name,
                    "since": stamp,
                    "because": because,
                    "private": bool(now.info.get("private")),
                },
            )
    return _read(path)


def is_latest(run: Run, deployment: str) -> bool:
    found = latest(run.path.parent, deployment)
    return found is not None and found.run == run.path.name
