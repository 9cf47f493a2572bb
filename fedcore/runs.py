"""The run store: one folder for each run, committed round by round.

    run.json         what was asked: method, config, seed, population, plan; written once
    head.json        where the run is; the rename of this small file commits a round
    state/000007.zip server state after round 7: a zipped Zarr group of arrays, scalars as attributes
    memory/000007/   per-client memory after round 7, one such file for each block
    releases/        copies of the published values (private runs)
    metrics.jsonl    one row for each committed round
    report.html

Arrays and JSON only: loading a run executes nothing, and names and sizes are checked first.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from fedcore.errors import LeaseLost, RunBusy, RunError, RunNotFound
from fedcore.files import replace_durably, sync_folder, write_json

SCHEMA = 1
STATES_KEPT = 2
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile, zarr.errors.BaseZarrError)
MAX_STATE_BYTES = 16 * 2**30
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
NO_HEAD = {"round": -1, "status": "running", "metrics_bytes": 0}  # before the first state
STATUSES = ("running", "finished", "failed", "budget exhausted", "abandoned")


@contextmanager
def writing(what: str) -> Iterator[None]:
    """A full or broken disk, or a missing permission, met inside becomes a RunError that names what was written."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {what} of the run: {error.strerror or error}.",
            "Free some space or mend the disk, then resume: committed rounds are kept.",
        ) from error


# --- values on disk -------------------------------------------------------------------------------------------------


def write_values(path: Path, values: Mapping[str, Any]) -> None:
    """Arrays to Zarr, scalars (str, bool, int, float, None) to its attributes, in one zip file; durable on return.

    The file appears whole or not at all. One that exists already is replaced: it was never committed.
    """
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    scalars = {name: _scalar(name, value) for name, value in values.items() if name not in arrays}
    bad = [name for name in values if not NAME.fullmatch(name)]
    if bad:
        raise RunError(f"{bad[0]!r} cannot be the name of a stored value.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    shapes = {name: list(value.shape) for name, value in arrays.items()}
    try:
        with writing(repr(path.name)):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.touch()  # Zarr's store cannot close what it could not make
            with closing(zarr.storage.ZipStore(partial, mode="w")) as store:
                attributes = {"schema": SCHEMA, "scalars": scalars, "arrays": shapes}
                group = zarr.create_group(store, zarr_format=3, attributes=attributes)
                for name, value in arrays.items():
                    array = group.create_array(
                        name, shape=value.shape, chunks=tuple(max(1, n) for n in value.shape), dtype=value.dtype,
                        compressors=[zarr.codecs.Crc32cCodec()], config={"write_empty_chunks": True},
                    )  # fmt: skip
                    if value.size:
                        array[...] = value
            replace_durably(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _scalar(name: str, value: Any) -> Any:
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)) and math.isfinite(value):
        return float(value)
    raise RunError(f"{name!r} cannot be stored: a {type(value).__name__} is neither an array nor a finite scalar.")


def read_values(path: Path) -> dict[str, Any]:
    """What `write_values` wrote. Raises RunError if anything is missing, torn or too large."""
    try:
        with zipfile.ZipFile(path) as archive:  # Zarr's store cannot close what it could not open
            stored = archive.namelist()
        with zarr.storage.ZipStore(path, mode="r") as store:
            group = zarr.open_group(store, mode="r", zarr_format=3)
            attributes = dict(group.attrs)
            arrays, values = attributes["arrays"], dict(attributes["scalars"])
            if attributes["schema"] != SCHEMA or not all(NAME.fullmatch(name) for name in [*arrays, *values]):
                raise ValueError("unknown schema or names")
            for name, shape in arrays.items():
                array = group[name]
                if list(array.shape) != shape or array.nbytes > MAX_STATE_BYTES or array.dtype.kind not in "biuf":
                    raise ValueError(f"array {name!r} is not as declared")
                # Zarr's own count of chunks fails on a zip when one name is the beginning of another.
                if array.size and sum(f"{entry}/".startswith(f"{name}/c/") for entry in stored) != array.nchunks:
                    raise ValueError(f"array {name!r} lacks chunks")
                values[name] = np.asarray(array[...])
    except UNREADABLE as error:
        raise RunError(
            f"stored values {path.name!r} are unreadable ({type(error).__name__}: {error}).",
            "Restore this file of the run from a backup, or train again.",
        ) from error
    return values


def state_values(state: Any) -> dict[str, Any]:
    """The fields of a state dataclass."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


# --- one run --------------------------------------------------------------------------------------------------------


class Run:
    """A run's folder. Made with `Run.create`, opened with `Run.open` to read or with `Run.open_locked` to write."""

    def __init__(self, path: Path, info: dict, head: dict):
        self.path = path
        self.info = info
        self.head = head
        self._stored_head = head if (path / "head.json").exists() else None
        self._lock = None

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
        """Whether its model was removed (`fedcore.operations.prune`)."""
        return "pruned" in self.head

    @classmethod
    def create(cls, folder: Path, info: dict) -> Run:
        """A new run below `folder`, named by info["run_id"]; locked by this process. It has no state yet."""
        path = Path(folder) / info["run_id"]
        try:
            path.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            raise RunError(f"a run named {info['run_id']!r} exists already.", "Choose another name.") from None
        except OSError as error:
            raise RunError(f"cannot create a run in {str(folder)!r}: {error.strerror}.") from error
        run = cls(path, {"schema": SCHEMA, **info}, dict(NO_HEAD))
        try:
            run.lock()
            with writing("run.json"):
                write_json(path / "run.json", run.info)
        except BaseException:
            run.unlock()
            shutil.rmtree(path, ignore_errors=True)
            raise
        return run

    @classmethod
    def open(cls, path: str | Path, *, without_head: bool = False) -> Run:
        """Raises RunNotFound, or RunError for unreadable, foreign or lost files.

        without_head: the head is lost and is not looked at; the run is as if it had no state yet.
        """
        path = pointed(Path(path))
        if not (path / "run.json").is_file():
            raise RunNotFound(f"there is no run at {str(path)!r}.", "`fedcore runs list` shows the runs of a folder.")
        info = _read_json(path / "run.json")
        if info.get("schema") != SCHEMA:
            raise RunError(f"run {path.name!r} has the unknown schema {info.get('schema')!r}.", "Upgrade fedcore.")
        if not isinstance(info.get("run_id"), str):
            raise RunError(f"run.json of run {path.name!r} is not valid.", "Restore it from a backup.")
        return cls(path, info, dict(NO_HEAD) if without_head else _read_head(path))

    @classmethod
    def open_locked(cls, path: str | Path, *, without_head: bool = False) -> Run:
        """The run as it is once it is locked: another process may have gone on with it until then.

        without_head: as in `open`; a damaged head is moved out of the way.
        """
        waiting = cls.open(path, without_head=without_head)
        waiting.lock()
        try:
            if without_head and (waiting.path / "head.json").exists():
                with writing("head.json"):
                    os.replace(waiting.path / "head.json", waiting.path / "head.json.damaged")
            run = cls.open(path, without_head=without_head)
        except BaseException:
            waiting.unlock()
            raise
        run._lock, waiting._lock = waiting._lock, None
        return run

    def lock(self) -> None:
        """Held until the process ends; what a dead holder left half-written is removed. Raises RunBusy if another live
        process holds it, RunError if it cannot be written.
        """
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

    def _sweep(self) -> None:
        """Remove what writers that died left half-written, as far as possible: it is in nobody's way."""
        with suppress(OSError):
            for partial in self.path.rglob(".*.partial"):
                partial.unlink(missing_ok=True)

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def state_file(self, round: int) -> Path:
        return self.path / "state" / f"{round:06d}.zip"

    def memory_folder(self, round: int) -> Path:
        return self.path / "memory" / f"{round:06d}"

    def memories(self) -> Path | None:
        """The folder of the clients' memories after the last committed round; None: they have none. Raises RunError if
        they had some.
        """
        folder = self.memory_folder(self.round)
        kept = self.head.get("memories", folder.is_dir())  # runs that were made before heads told
        if kept and not folder.is_dir():
            raise RunError(f"the clients' memories after round {self.round} of run {self.id!r} are lost: there is no "
                           f"folder memory/{folder.name}.", "Restore it from a backup, or train again.")  # fmt: skip
        return folder if kept else None

    def read_state(self) -> dict[str, Any]:
        if self.round < 0:
            raise RunError(f"run {self.id!r} has no committed state yet.", "`fedcore resume` it first.")
        if self.pruned:
            raise RunError(f"the model of run {self.id!r} was removed on {self.head['pruned']} as newer ones are kept.",
                           "Its metrics, statement and report are still there.")  # fmt: skip
        return read_values(self.state_file(self.round))

    def commit(self, round: int, state: Any, row: Mapping[str, Any] | None, **head: Any) -> None:
        """Make a round current: state, then the metrics row, then the head. Old states and memories are dropped."""
        self._check_current()
        write_values(self.state_file(round), state_values(state))
        size = self.head["metrics_bytes"]
        with writing("metrics.jsonl"), open(self.path / "metrics.jsonl", "ab") as file:
            if file.tell() < size:
                raise _lost_metrics(self.id)
            file.truncate(size)
            if row is not None:
                file.write((json.dumps({"round": round, **row}, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        memories = self.memory_folder(round).is_dir()
        if memories:
            with writing("memory"):
                sync_folder(self.path / "memory")
        self._write_head({**self.head, **head, "round": round, "metrics_bytes": size, "memories": memories})
        self._prune()

    def _prune(self) -> None:
        """Drop states and memories that are not those of the last rounds. A folder that a worker of a dead process
        still writes to stays until the next time: nobody reads it.
        """
        with writing("state and memory"):
            for old in [*self.path.glob("state/[0-9]*.zip"), *self.path.glob("memory/[0-9]*")]:
                if not self.round - STATES_KEPT < int(old.stem) <= self.round:
                    shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)

    def finish(self, status: str) -> None:
        self._write_head({**self.head, "status": status})
        self._sweep()

    def note(self, **facts: Any) -> None:
        """Keep facts about the run's execution (memory, seconds) in its head."""
        self._write_head({**self.head, **facts})

    def _check_current(self) -> None:
        """Raises LeaseLost if another process has gone on with the run: where locks do not reach, on another host."""
        stored = self.path / "head.json"
        if (_read_json(stored) if stored.exists() else None) != self._stored_head:
            raise LeaseLost(f"another process has gone on with run {self.id!r}.", "This process stops; the other one "
                            "goes on.")  # fmt: skip

    def _write_head(self, head: dict) -> None:
        self._check_current()
        with writing("head.json"):
            write_json(self.path / "head.json", head)
        self.head, self._stored_head = head, json.loads(json.dumps(head))

    def keep_release(self, name: str, array: np.ndarray) -> None:
        write_values(self.path / "releases" / f"{name}.zip", {"values": array})

    def releases(self) -> dict[str, np.ndarray]:
        """The run's copies of its published values, by name."""
        return {p.stem: read_values(p)["values"] for p in sorted(self.path.glob("releases/[!.]*.zip"))}

    def metrics(self) -> list[dict]:
        """One row for each committed round. Raises RunError if they are damaged or lost."""
        size = self.head["metrics_bytes"]
        if size == 0:
            return []
        try:
            text = (self.path / "metrics.jsonl").read_bytes()
            if len(text) < size:
                raise _lost_metrics(self.id)
            return [json.loads(line) for line in text[:size].decode().splitlines()]
        except (OSError, ValueError) as error:
            raise RunError(f"metrics.jsonl of run {self.id!r} is unreadable ({type(error).__name__}).",
                           "Restore it from a backup.") from error  # fmt: skip


def _read_head(path: Path) -> dict:
    lost = "Restore head.json from a backup. Without one the run can only be given up: fedcore runs abandon."
    head = dict(NO_HEAD)
    if (path / "head.json").exists():
        head = _read_json(path / "head.json")
    elif any(int(state.stem) > 0 for state in path.glob("state/[0-9]*.zip")):  # it would begin again over its states
        raise RunError(f"the head of run {path.name!r} is missing.", lost)
    if (not _is_count(head.get("round"), -1) or not _is_count(head.get("metrics_bytes"), 0)
            or type(head.get("memories", False)) is not bool or head.get("status") not in STATUSES):  # fmt: skip
        raise RunError(f"the head of run {path.name!r} is not valid.", lost)
    return head


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _lost_metrics(run_id: str) -> RunError:
    return RunError(f"metrics.jsonl of run {run_id!r} is shorter than its head says.", "Restore it from a backup.")


def _read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"{path.parent.name}/{path.name} is unreadable ({type(error).__name__}).",
                       "Restore it from a backup.") from error  # fmt: skip
    if not isinstance(value, dict):
        raise RunError(f"{path.parent.name}/{path.name} does not hold an object.", "Restore it from a backup.")
    return value


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A trained model as values: info (what was asked), state (arrays and scalars by name), metrics, head."""

    path: Path
    info: dict
    head: dict
    state: dict[str, Any]
    metrics: list[dict]


def pointed(path: Path) -> Path:
    """The run that the file `latest-NAME.json` names (`fedcore.operations`); any other path as it is.

    Raises RunError for a file that names none.
    """
    if path.suffix != ".json" or not path.is_file():
        return path
    name = _read_json(path).get("run")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RunError(f"{path.name} names no run.", "Name the folder of a run, or a file latest-NAME.json.")
    return path.parent / name


def load_run(path: str | Path) -> LoadedRun:
    """Read a run without executing anything from it; safe on files from elsewhere.

    path: the run's folder, or the file latest-NAME.json that says which run is the latest of a deployment. Raises
    RunNotFound or RunError.
    """
    run = Run.open(path)
    return LoadedRun(run.path, run.info, run.head, run.read_state(), run.metrics())


def list_runs(folder: str | Path) -> list[Run]:
    """Every readable run below a folder, oldest name first."""
    runs = []
    for path in sorted(Path(folder).glob("*/run.json")):
        try:
            runs.append(Run.open(path.parent))
        except RunError:
            continue
    return runs
