"""The run store: one folder for each run, or one prefix of object storage, committed round by round.

    run.json         what was asked: method, config, seed, population, plan; written once
    head.json        where the run is; the rename, or the put, of this small file commits a round
    state/000007.zip server state after round 7: a zipped Zarr group of arrays, scalars as attributes
    memory/000007/   per-client memory after round 7, one such file for each block
    releases/        copies of the published values (private runs)
    metrics.jsonl    one row for each committed round; appended to
    report.html

Behind a URL there are two differences. `holder.json` stands for the lock (`fedcore.storage.remote_lock`). Objects are
not appended
to, so the metrics are put whole at each commit, under a name of their writer's own that the head tells: a process that
lost the run cannot shorten those of its successor.

Arrays and JSON only: loading a run executes nothing, and names and sizes are checked first.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from fedcore.errors import FedcoreError, LeaseLost, RunBusy, RunError, RunNotFound, Unreachable
from fedcore.runs.run_files import (
    HOLDER,
    METRICS,
    METRICS_NAME,
    NO_HEAD,
    numbered,
    read_head,
    read_json,
    refuse_unknown_schema,
)
from fedcore.storage import files
from fedcore.storage import objects as object_storage
from fedcore.storage.arrays import NAME, SCHEMA, read_values, state_values, unknown_schema, write_values, writing
from fedcore.storage.files import Place, is_remote, json_bytes, place, write_json
from fedcore.storage.remote_lock import Claim

__all__ = [
    "NAME",
    "SCHEMA",
    "LoadedRun",
    "Run",
    "list_runs",
    "load_run",
    "pointed",
    "read_values",
    "state_values",
    "write_values",
    "writing",
]

STATES_KEPT = 2  # of the last commit, and of the one before it: somebody may be reading that


# --- one run --------------------------------------------------------------------------------------------------------


class Run:
    """A run's folder, or its prefix of object storage. Made with `Run.create`, opened with `Run.open` to read or with
    `Run.open_locked` to write.
    """

    def __init__(self, path: Place, info: dict, head: dict, stored_head: dict | None = None):
        """stored_head: what head.json holds; None: there is none yet."""
        self.path = path
        self.info = info
        self.head = head
        self._stored_head = stored_head
        self.taken = False  # from a holder that died, or that was not asked
        self._lock = None
        self._metrics: bytes | None = None  # behind a URL: the committed rows, once they were read

    @property
    def id(self) -> str:
        return self.info["run_id"]

    @property
    def round(self) -> int:
        """Rounds committed."""
        return self.head["round"]

    @property
    def status(self) -> str:
        return self.head["status"]

    @property
    def pruned(self) -> bool:
        """Whether its model was removed (`fedcore.operations.series.prune`)."""
        return "pruned" in self.head

    @classmethod
    def create(cls, folder: str | Place, info: dict) -> Run:
        """A new run below `folder`, named by info["run_id"]; locked by this process. It has no state yet."""
        path = place(folder) / info["run_id"]
        run = cls(path, {"schema": SCHEMA, **info}, dict(NO_HEAD))
        exists = RunError(f"a run named {info['run_id']!r} exists already.", "Choose another name.")
        if is_remote(path):
            run._create_objects(exists)
            return run
        try:
            path.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            raise exists from None
        except OSError as error:
            raise RunError(f"cannot create a run in {str(folder)!r}: {error.strerror}.") from error
        try:
            run.lock()
            with writing("run.json"):
                write_json(path / "run.json", run.info)
        except BaseException:
            run.unlock()
            run.remove()
            raise
        return run

    def _create_objects(self, exists: RunError) -> None:
        """What nobody holds and nothing is below is free; then run.json is created under the condition that it is."""
        if files.listing(self.path).keys() - {HOLDER}:
            raise exists
        try:
            self.lock()
        except RunBusy:
            raise exists from None
        try:
            object_storage.create(self.path / "run.json", json_bytes(self.info))
        except FileExistsError:
            self.unlock()
            raise exists from None
        except BaseException:
            self.unlock()
            raise

    def remove(self) -> None:
        """Remove the run with all that it has, as far as possible."""
        if is_remote(self.path):
            with suppress(FedcoreError):
                object_storage.remove(self.path)
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def open(cls, path: str | Place, *, without_head: bool = False) -> Run:
        """Raises RunNotFound, or RunError for unreadable, foreign or lost files.

        path: a folder or a URL. without_head: the head is lost and is not looked at; the run is as if it had no state
        yet.
        """
        path = pointed(place(path))
        there = object_storage.read_many(path, ("run.json", "head.json")) if is_remote(path) else None
        return cls._of(path, there, without_head)

    @classmethod
    def _of(cls, path: Place, there: Mapping[str, bytes] | None, without_head: bool = False) -> Run:
        """there: run.json and head.json, where they were fetched already."""
        info = read_json(path / "run.json", there)
        if info is None:
            raise RunNotFound(f"there is no run at {str(path)!r}.", "`fedcore runs list` shows the runs of a folder.")
        if info.get("schema") != SCHEMA:
            raise unknown_schema(f"run {path.name!r}", info.get("schema"))
        if not isinstance(info.get("run_id"), str):
            raise RunError(f"run.json of run {path.name!r} is not valid.", "Restore it from a backup.")
        if without_head:
            head = None
            with suppress(RunError):  # it is damaged: that is why
                head = read_json(path / "head.json", there)
            refuse_unknown_schema(path, head)
            return cls(path, info, dict(NO_HEAD))
        head = read_head(path, there)
        return cls(path, info, head or dict(NO_HEAD), head)

    @classmethod
    def open_locked(cls, path: str | Place, *, without_head: bool = False, take_over: bool = False) -> Run:
        """The run as it is once it is locked: another process may have gone on with it until then.

        without_head: as in `open`; a damaged head is moved out of the way. take_over: as in `lock`.
        """
        waiting = cls.open(path, without_head=without_head)
        taken = waiting.lock(take_over)
        try:
            if without_head:
                waiting._set_aside()
            run = cls.open(path, without_head=without_head)
            run._lock, run.taken, waiting._lock = waiting._lock, taken, None
        except BaseException:
            waiting.unlock()
            raise
        if taken and run._stored_head is not None:  # what the earlier holder still puts is then not over this head
            try:
                run.note(taken_over=run.head.get("taken_over", 0) + 1)
            except BaseException:
                run.unlock()
                raise
        return run

    def _set_aside(self) -> None:
        """Keep a damaged head under another name."""
        head, aside = self.path / "head.json", self.path / "head.json.damaged"
        if is_remote(head):
            with suppress(FileNotFoundError):
                object_storage.write_bytes(aside, object_storage.read_bytes(head))
                object_storage.remove(head)
        elif head.exists():
            with writing("head.json"):
                os.replace(head, aside)

    def lock(self, take_over: bool = False) -> bool:
        """Held until the process ends; what a dead holder left half-written is removed. Raises RunBusy if another live
        process holds it, RunError if it cannot be written.

        Behind a URL a holder on another host lives while it renews its claim; take_over: nobody looks whether it does.
        Returns whether the run was taken from such a holder, who notices it at its next commit.
        """
        if is_remote(self.path):
            claim = Claim(self.path / HOLDER, f"run {self.path.name!r}")
            taken = claim.take(take_over)
            self._lock = claim
            return taken
        with writing("the lock"):
            file = open(self.path / "lock", "w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise RunBusy(
                f"another process is working on run {self.path.name!r}.", "Wait for it, or stop it."
            ) from None
        self._lock = file
        self._sweep()
        return False

    def _sweep(self) -> None:
        """Remove what writers that died left half-written, as far as possible: it is in nobody's way."""
        if is_remote(self.path):  # metrics of writers who lost the run
            with suppress(FedcoreError):
                for name in files.listing(self.path):
                    if METRICS_NAME.fullmatch(name) and name != self.metrics_file.name:
                        object_storage.remove(self.path / name)
            return
        with suppress(OSError):
            for partial in self.path.rglob(".*.partial"):
                partial.unlink(missing_ok=True)

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def state_file(self, round: int) -> Place:
        return self.path / "state" / f"{round:06d}.zip"

    def memory_folder(self, round: int) -> Place:
        return self.path / "memory" / f"{round:06d}"

    @property
    def metrics_file(self) -> Place:
        return self.path / self.head.get("metrics_file", METRICS)

    def memories(self) -> Place | None:
        """The folder of the clients' memories after the last committed round; None: they have none. Raises RunError if
        they had some.
        """
        folder = self.memory_folder(self.round)
        there = files.is_folder(folder)
        kept = self.head.get("memories", there)  # runs that were made before heads told
        if kept and not there:
            raise RunError(
                f"the clients' memories after round {self.round} of run {self.id!r} are lost: there is no "
                f"folder memory/{folder.name}.",
                "Restore it from a backup, or train again.",
            )
        return folder if kept else None

    def read_state(self) -> dict[str, Any]:
        if self.round < 0:
            raise RunError(f"run {self.id!r} has no committed state yet.", "`fedcore resume` it first.")
        if self.pruned:
            raise RunError(
                f"the model of run {self.id!r} was removed on {self.head['pruned']} as newer ones are kept.",
                "Its metrics, statement and report are still there.",
            )
        return read_values(self.state_file(self.round))

    def commit(self, round: int, state: Any, rows: Sequence[Mapping[str, Any]] = (), **head: Any) -> None:
        """Make a round current: state, then the rows of metrics, then the head. Old states and memories are dropped.

        rows: of the rounds since the last commit, each with its "round".
        """
        self._check_current()
        before = self.round
        write_values(self.state_file(round), state_values(state))
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
        head = {**head, **(self._put_metrics(lines) if is_remote(self.path) else self._append_metrics(lines))}
        memories = files.is_folder(self.memory_folder(round))
        if memories:
            with writing("memory"):
                files.flush(self.path / "memory")
        self._write_head({**self.head, **head, "round": round, "memories": memories})
        self._prune({before, round})
        if isinstance(self._lock, Claim):
            self._lock.renew()

    def _append_metrics(self, lines: bytes) -> dict:
        """Rows after the committed ones. Returns what the head says of the metrics then."""
        size = self.head["metrics_bytes"]
        with writing(METRICS), open(self.metrics_file, "ab") as file:
            if file.tell() < size:
                raise self._lost_metrics()
            file.truncate(size)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
            return {"metrics_bytes": os.fstat(file.fileno()).st_size}

    def _put_metrics(self, lines: bytes) -> dict:
        if self._metrics is None or len(self._metrics) != self.head["metrics_bytes"]:
            self._metrics = self._committed_metrics()
        if not lines:
            return {}
        self._metrics += lines  # if the round is not committed, the length tells, and they are read again
        name = f"metrics-{self._lock.token}.jsonl" if isinstance(self._lock, Claim) else METRICS
        files.write_whole(self.path / name, self._metrics)
        return {"metrics_bytes": len(self._metrics), "metrics_file": name}

    def _committed_metrics(self) -> bytes:
        size = self.head["metrics_bytes"]
        try:
            text = files.read_bytes(self.metrics_file) if size else b""
        except OSError as error:
            raise self._bad_metrics(error) from error
        if len(text) < size:
            raise self._lost_metrics()
        return text[:size]

    def _bad_metrics(self, error: Exception) -> RunError:
        return RunError(
            f"{self.metrics_file.name} of run {self.id!r} is unreadable ({type(error).__name__}).",
            "Restore it from a backup.",
        )

    def _lost_metrics(self) -> RunError:
        return RunError(
            f"{self.metrics_file.name} of run {self.id!r} is shorter than its head says.", "Restore it from a backup."
        )

    def flush_memories(self, round: int) -> None:
        """Make memories durable that were written without a flush. On a disk that hosts share, what another host wrote
        is there since it closed the file.
        """
        folder = self.memory_folder(round)
        if is_remote(folder) or not folder.is_dir():
            return
        with writing("memory"):
            for path in [*sorted(folder.iterdir()), folder]:
                files.flush(path)

    def drop_memories(self, round: int) -> None:
        """Remove the memories of a round that was never committed, as far as possible."""
        with suppress(FedcoreError, OSError):
            files.remove(self.memory_folder(round))

    def _prune(self, kept: set[int]) -> None:
        """Drop states and memories of all rounds but `kept`. A folder that a worker of a dead process
        still writes to stays until the next time: nobody reads it.
        """
        with writing("state and memory"):
            for old in [*numbered(self.path / "state"), *numbered(self.path / "memory")]:
                if int(old.stem) in kept:
                    continue
                if is_remote(old):
                    object_storage.remove_file(old) if old.suffix else object_storage.remove(old)
                else:
                    shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)

    def finish(self, status: str) -> None:
        self._write_head({**self.head, "status": status})
        self._sweep()

    def note(self, **facts: Any) -> None:
        """Keep facts about the run's execution (memory, seconds) in its head."""
        self._write_head({**self.head, **facts})

    def _check_current(self) -> None:
        """Raises LeaseLost if another process has gone on with the run: where locks do not reach, on another host."""
        there = None
        if isinstance(self._lock, Claim):
            there = object_storage.read_many(self.path, (HOLDER, "head.json"))
            self._lock.check(there.get(HOLDER))
        if read_json(self.path / "head.json", there) != self._stored_head:
            raise self._lost()

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"another process has gone on with run {self.id!r}.", "This process stops; the other one goes on."
        )

    def _write_head(self, head: dict) -> None:
        if is_remote(self.path):
            self._put_head(head)
        else:
            self._check_current()
            with writing("head.json"):
                write_json(self.path / "head.json", head)
        self.head, self._stored_head = head, json.loads(json.dumps(head))

    def _put_head(self, head: dict) -> None:
        """Over the head that this process knows and no other, where the store can tell."""
        path, content = self.path / "head.json", json_bytes(head)
        try:
            version = None if self._stored_head is None else object_storage.version(path)
            self._check_current()
            if self._stored_head is None:
                object_storage.create(path, content)
            else:
                object_storage.replace(path, content, version)
        except (FileExistsError, FileNotFoundError):
            if read_json(path) != json.loads(content):  # else: put by a request whose answer was lost
                raise self._lost() from None

    def keep_release(self, name: str, array: np.ndarray) -> None:
        write_values(self.path / "releases" / f"{name}.zip", {"values": array})

    def release_names(self) -> list[str]:
        """Of the published values that the run keeps copies of."""
        stored = files.listing(self.path / "releases")
        return [name.removesuffix(".zip") for name in stored if name.endswith(".zip") and not name.startswith(".")]

    def releases(self) -> dict[str, np.ndarray]:
        """The run's copies of its published values, by name."""
        return {name: read_values(self.path / "releases" / f"{name}.zip")["values"] for name in self.release_names()}

    def metrics(self) -> list[dict]:
        """One row for each committed round. Raises RunError if they are damaged or lost."""
        try:
            return [json.loads(line) for line in self._committed_metrics().decode().splitlines()]
        except ValueError as error:
            raise self._bad_metrics(error) from error


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A trained model as values: info (what was asked), state (arrays and scalars by name), metrics, head."""

    path: Place
    info: dict
    head: dict
    state: dict[str, Any]
    metrics: list[dict]


def pointed(path: Place) -> Place:
    """The run that the file `latest-NAME.json` names (`fedcore.operations.series`); any other path as it is.

    Raises RunError for a file that names none.
    """
    if path.suffix != ".json" or not files.is_file(path):
        return path
    content = read_json(path) or {}
    if content.get("schema", SCHEMA) != SCHEMA:
        raise unknown_schema(path.name, content["schema"])
    name = content.get("run")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RunError(f"{path.name} names no run.", "Name the folder of a run, or a file latest-NAME.json.")
    return path.parent / name


def load_run(path: str | Place) -> LoadedRun:
    """Read a run without executing anything from it; safe on files from elsewhere.

    path: the run's folder or URL, or the file latest-NAME.json that says which run is the latest of a deployment.
    Raises RunNotFound or RunError.
    """
    run = Run.open(path)
    return LoadedRun(run.path, run.info, run.head, run.read_state(), run.metrics())


def list_runs(folder: str | Place) -> list[Run]:
    """Every readable run of a folder or URL, oldest name first. Raises Unreachable, a RunError."""
    folder, found = place(folder), {}
    if is_remote(folder):
        names = [name for name, size in object_storage.listing(folder).items() if size is None]
        fetched = object_storage.read_many(
            folder, [f"{name}/{file}" for name in names for file in ("run.json", "head.json")]
        )
        for name, content in fetched.items():
            run, _, file = name.rpartition("/")
            found.setdefault(folder / run, {})[file] = content
    else:
        found = {path.parent: None for path in sorted(folder.glob("*/run.json"))}
    runs = []
    for path, there in found.items():
        try:
            runs.append(Run._of(path, there))
        except Unreachable:
            raise
        except RunError:
            continue
    return runs
