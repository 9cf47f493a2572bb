"""The run store: one folder for each run, or one prefix of object storage, committed round by round.

    run.json         what was asked: method, config, seed, population, plan; written once
    head.json        where the run is; the rename, or the put, of this small file commits a round
    state/000007.zip server state after round 7: a zipped Zarr group of arrays, scalars as attributes
    memory/000007/   per-client memory after round 7, raw arrays for each block; 000007.json lists their digests
    releases/        copies of the published values (private runs)
    metrics.jsonl    one row for each committed round; appended to
    report.html, result.json    for people and for programs; nothing here reads them

Behind a URL there are two differences. `holder.json` stands for the lock (`fedcore.storage.remote_lock`). And objects
cannot be appended to, so the metrics are put whole at each commit, under a name of their writer that the head
contains. So a process that lost the run cannot shorten those of its successor (`fedcore.runs.metrics_file`).

Arrays and JSON only: loading a run executes nothing, and names and sizes are checked first. The head names all files
that it commits by their digests (`fedcore.runs.digests`), which are compared whenever a file is read. The folder is for
its owner's eyes only, whatever the umask.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import FedcoreError, RunBusy, RunError, RunNotFound, Unreachable, retired
from fedcore.runs import digests as run_digests
from fedcore.runs import head_file, run_lock
from fedcore.runs.client_memories import ClientMemories
from fedcore.runs.metrics_file import MetricsFile, name_of
from fedcore.runs.release_copies import ReleaseCopies
from fedcore.runs.run_files import (
    HOLDER,
    METRICS_NAME,
    NO_HEAD,
    START_FILE,
    numbered,
    read_document,
    read_head,
    read_json,
    refuse_links,
    refuse_unknown_schema,
    resolve,
)
from fedcore.storage import digests, files
from fedcore.storage import objects as object_storage
from fedcore.storage.arrays import read_values, state_values, unknown_schema, write_values, writing
from fedcore.storage.files import Place, is_remote, json_bytes, place, write_json
from fedcore.storage.remote_lock import RemoteLock

if TYPE_CHECKING:
    from upath import UPath

TRAINED = "trained"  # the status of a run whose rounds are done and that is not finished yet
STATES_KEPT = 2  # of the last commit, and of the one before it, which may be read now


# --- one run --------------------------------------------------------------------------------------------------------


class Run:
    """A run's folder, or its prefix of object storage.

    It is made with `Run.create`, and opened with `Run.open` to read or with `Run.open_locked` to write.
    """

    def __init__(
        self, path: Place, info: dict[str, Any], head: dict[str, Any], stored_head: dict[str, Any] | None = None
    ) -> None:
        """stored_head: what head.json holds; None: there is none yet."""
        self.path = path
        self.info = info
        self.head = head
        self._head_file = head_file.HeadFile(path, str(info["run_id"]), stored_head)
        self.taken = False  # over from a holder that died, or without looking whether it did
        self._lock: run_lock.Lock | None = None
        self.client_memories = ClientMemories(path, str(info["run_id"]))
        self._metrics = MetricsFile(path, str(info["run_id"]))
        self._record: str | None = None  # digest of run.json as it is stored
        self._start: str | None = None  # digest of the copy of what the run starts from, until the head names it
        self._releases = ReleaseCopies(path, str(info["run_id"]), info.get("plan") or ())
        self._to_keep: dict[str, np.ndarray] = {}  # published values whose copies the next commit writes
        self._before: int | None = None  # the round of the commit before the last one, if this process made both

    @property
    def id(self) -> str:
        return str(self.info["run_id"])

    @property
    def round(self) -> int:
        """Rounds committed; -1 before the first state."""
        return int(self.head["round"])

    @property
    def status(self) -> str:
        return str(self.head["status"])

    @property
    def status_now(self) -> str:
        """The status, or "interrupted" for a running run without a live process, by one look."""
        return "interrupted" if self.status == "running" and not run_lock.is_held(self.path) else self.status

    @property
    def pruned(self) -> bool:
        """Whether its model was removed (`fedcore.operations.retention.prune`)."""
        return "pruned" in self.head

    @classmethod
    def create(cls, folder: str | Place, info: dict[str, Any], start: Mapping[str, np.ndarray] | None = None) -> Run:
        """A new run below `folder`, named by info["run_id"] and locked by this process. It has no state yet.

        start: what it starts from, of which it keeps a copy, that is there once run.json is; None: nothing is given

        Raises RunError if there is a run of this name, or none can be made.
        """
        path = place(folder) / info["run_id"]
        run = cls(path, {"schema": run_digests.SCHEMA, "needs": [], **info}, dict(NO_HEAD))
        exists = RunError(f"a run named {info['run_id']!r} exists already.", "Choose another name.")
        if is_remote(path):
            run._create_objects(path, exists, start)
            return run
        if path.exists() and not run_lock.is_unborn(path):
            raise exists
        try:
            files.make_folder(path.parent, durable=True)
            run_lock.sweep_unborn(path)
            files.make_folder(path, private=True, durable=True)
        except OSError as error:
            raise RunError(f"cannot create a run in {str(folder)!r}: {error.strerror}.") from error
        try:
            run.lock()
        except RunBusy:
            raise exists from None
        if not run_lock.is_unborn(path):  # another process was quicker
            run.unlock()
            raise exists
        try:
            run._keep_start(start)
            with writing("run.json"):
                write_json(path / "run.json", run.info)
        except BaseException:
            run.remove()
            run.unlock()
            raise
        return run

    def _create_objects(self, path: UPath, exists: RunError, start: Mapping[str, np.ndarray] | None) -> None:
        """A place is free if there is nothing below it except the start of a run that was never made, and no process
        holds it. Then run.json is created if it is not there.
        """
        if files.listing(path).keys() - {HOLDER, START_FILE}:
            raise exists
        try:
            self.lock()
        except RunBusy:
            raise exists from None
        try:
            if start is not None and files.is_file(path / "run.json"):  # another process was quicker
                raise FileExistsError
            self._keep_start(start)
            object_storage.create(path / "run.json", json_bytes(self.info))
        except FileExistsError:
            self.unlock()
            raise exists from None
        except BaseException:
            self.unlock()
            raise

    def _keep_start(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        if arrays is not None:
            self._start = write_values(self.path / START_FILE, arrays)

    def remove(self, *, ours: bool = False) -> None:
        """Remove the run with all its files, as far as possible, unless another process has continued it.

        ours: certainly no other process has; its head may have been written in spite of an error.
        """
        try:
            if not ours:
                self._head_file.check(self._lock)
        except FedcoreError:  # or this is unknown
            return
        if is_remote(self.path):
            with suppress(FedcoreError):
                object_storage.remove(self.path)
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def open(cls, path: str | Place, *, without_head: bool = False) -> Run:
        """The run at this folder or URL. Raises RunNotFound, or RunError for unreadable, foreign or lost files.

        without_head: the head is lost and is not looked at; the run is as if it had no state yet.
        """
        found = resolve(place(path))
        fetched = object_storage.read_many(found, ("run.json", "head.json")) if is_remote(found) else None
        return cls._from_files(found, fetched, without_head)

    @classmethod
    def _from_files(cls, path: Place, fetched: Mapping[str, bytes] | None, without_head: bool = False) -> Run:
        """fetched: run.json and head.json, where they were fetched already."""
        refuse_links(path, 2, path.name)  # those among a round's memories are looked for when they are read
        info, text = read_document(path / "run.json", fetched)
        if info is None:
            raise RunNotFound(f"there is no run at {str(path)!r}.", "`fedcore runs list` shows the runs of a folder.")
        if type(info.get("schema")) is int and info["schema"] == 1:
            raise RunError(*retired(f"run {path.name!r}", "of schema 1"))
        if type(info.get("schema")) is not int or info["schema"] != run_digests.SCHEMA:
            raise unknown_schema(f"run {path.name!r}", info.get("schema"), run_digests.SCHEMA)
        run_digests.check_needs(path, info)
        if not isinstance(info.get("run_id"), str):
            raise RunError(f"run.json of run {path.name!r} is not valid.", "Restore it from a backup.")
        if without_head:
            head = None
            with suppress(RunError):  # it is damaged: that is why
                head = read_json(path / "head.json", fetched)
            refuse_unknown_schema(path, head)
            return cls(path, info, dict(NO_HEAD))
        head = read_head(path, fetched)
        run_digests.check_head(path, text, head)
        run = cls(path, info, head or dict(NO_HEAD), head)
        run._record = None if text is None else digests.of_document(text)
        return run

    @classmethod
    def open_locked(cls, path: str | Place, *, without_head: bool = False, take_over: bool = False) -> Run:
        """The run, read after it was locked: another process may have continued it until then.

        without_head: as in `open`; a damaged head is moved out of the way. take_over: as in `lock`.
        """
        waiting = cls.open(path, without_head=without_head)
        taken = waiting.lock(take_over)
        try:
            if without_head:
                head_file.set_aside(waiting.path)
            run = cls.open(path, without_head=without_head)
            run._lock, run.taken, waiting._lock = waiting._lock, taken, None
        except BaseException:
            waiting.unlock()
            raise
        if taken and run._head_file.stored is not None:  # what the earlier holder still puts is then not over this head
            try:
                run.note(taken_over=run.head.get("taken_over", 0) + 1)
            except BaseException:
                run.unlock()
                raise
        return run

    def lock(self, take_over: bool = False) -> bool:
        """Lock the run until `unlock` or the end of the process, and remove what a dead holder left half-written.

        Behind a URL a holder on another host lives while it renews its lock; take_over: take it even if it does.
        Returns whether the run was taken from such a holder, who notices it at its next commit. Raises RunBusy if
        another live process holds the run, RunError if the lock cannot be written.
        """
        self._lock, taken = run_lock.take(self.path, take_over)
        if not is_remote(self.path):
            self._sweep()
        return taken

    def _sweep(self) -> None:
        """Remove half-written files of dead writers, as far as possible; they do no harm."""
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
        """Give the lock back. Nothing happens without one."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def state_file(self, round: int) -> Place:
        return self.path / "state" / f"{round:06d}.zip"

    def memory_folder(self, round: int) -> Place:
        return self.client_memories.folder(round)

    def memories(self) -> Place | None:
        """As `ClientMemories.committed`."""
        return self.client_memories.committed(self.head)

    def memory_digests(self) -> dict[str, str] | None:
        """As `ClientMemories.digests`: of the files of `memories`."""
        return self.client_memories.digests(self.head)

    @property
    def metrics_file(self) -> Place:
        return self.path / name_of(self.head)

    def read_state(self) -> dict[str, Any]:
        """Arrays and scalars of the committed state, by field name. Raises RunError for none, or a damaged one."""
        if self.round < 0:
            raise RunError(f"run {self.id!r} has no committed state yet.", "`fedcore resume` it first.")
        if self.pruned:
            raise RunError(
                f"the model of run {self.id!r} was removed on {self.head['pruned']} as newer ones are kept.",
                "Its metrics, statement and report are still there.",
            )
        return read_values(self.state_file(self.round), self._named("state"))

    def commit(
        self,
        round: int,
        state: Any,
        rows: Sequence[Mapping[str, Any]] = (),
        *,
        memories: Mapping[str, str] | None = None,
        **head: Any,
    ) -> None:
        """Make a round current: write state, then the rows of metrics, then the head; drop old states and memories.

        state: a dataclass of arrays and scalars; rows: of the rounds since the last commit, each with its "round";
        memories: {name: digest} of the files in its folder of memories, None if there are none; head: facts for the
        head. Raises RunError, and LeaseLost if another process has continued the run.
        """
        self._head_file.check(self._lock, to_write=True)
        before = self.round
        token = self._lock.token if isinstance(self._lock, RemoteLock) else None
        stored, written, kept, *_ = files.at_once(
            self.path,
            partial(write_values, self.state_file(round), state_values(state)),
            partial(self._metrics.append, self.head, rows, token),
            partial(self._has_memories, round, memories),
            *(partial(self._releases.keep, *pair) for pair in self._to_keep.items()),
        )
        self._to_keep = {}
        head = {**head, **written}
        found = self.client_memories.keep_list(round, memories) if kept else None
        if self._releases.known is None:
            self.check_releases()
        head["files"] = {
            "run": self.record_digest,
            "state": stored,
            "memory": found,
            "metrics": self._metrics.digest(),
            "releases": self._releases.digest(round),
            "start": self._digest_of_start(),
        }
        if kept:
            self.client_memories.flush_names()
        self._write_head({**self.head, **head, "round": round, "memories": kept})
        if self._before is None or kept or not is_remote(self.path):
            self._prune({before, round})
        elif 0 <= self._before < before and is_remote(old := self.state_file(self._before)):
            with writing("state"):  # all others were dropped before
                object_storage.remove_file(old)
        self._before = before
        if isinstance(self._lock, RemoteLock):
            self._lock.keep_renewing()

    def _has_memories(self, round: int, known: Mapping[str, str] | None) -> bool:
        """Whether clients have memories after this round. known: as in `commit`. Those of a private run have none."""
        if known or self.info.get("private") is True:
            return bool(known)
        return files.is_folder(self.memory_folder(round))

    def _digest_of_start(self) -> str | None:
        """Also of a copy that a process left which died before the first state."""
        known = self._start or self._named("start")
        if known is not None or self.info.get("start") is None:
            return known
        with writing("the head"):
            return run_digests.of_place(self.path / START_FILE)

    @property
    def record_digest(self) -> str:
        """SHA-256 of run.json, which is written once."""
        return self._record or digests.of_document(json_bytes(self.info))

    @property
    def committed_digest(self) -> str | None:
        """Of what the head commits; None before it commits anything."""
        return run_digests.committed(self.head) if "files" in self.head else None

    def _named(self, name: str) -> str | None:
        """The digest that the head has of this file or list of files; None if it has none."""
        found = self.head.get("files", {}).get(name)
        return None if found is None else str(found)

    def check_releases(self) -> None:
        """Raises RunError if the copies of released values are others than they were."""
        if "files" in self.head and not self.pruned:
            self._releases.check(self.round, self._named("releases"))

    def _prune(self, kept: set[int]) -> None:
        """Drop states and memories of rounds before the last of `kept`, but those. Later ones may be those of another
        process, which has continued the run. A folder that a worker of a dead process still writes to stays until the
        next time: no process reads it.
        """
        with writing("state and memory"):
            found = [partial(numbered, self.path / name) for name in ("state", "memory")]
            for old in chain.from_iterable(files.at_once(self.path, *found)):
                if int(old.stem) in kept or int(old.stem) > max(kept):
                    continue
                if is_remote(old):
                    object_storage.remove_file(old) if old.suffix else object_storage.remove(old)
                else:
                    shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)

    def finish(self, status: str) -> None:
        """End the run with one of `run_files.STATUSES`. What commits have dropped does not come back after that."""
        with writing("state and memory"):
            for name in ("state", "memory"):
                if not is_remote(self.path) and (self.path / name).is_dir():
                    files.flush(self.path / name)
        self._write_head({**self.head, "status": status})
        states = sorted(int(state.stem) for state in numbered(self.path / "state") if int(state.stem) <= self.round)
        kept = {self.round, *states[-STATES_KEPT:]}
        files.at_once(self.path, partial(self._prune, kept), self._sweep)  # what a process left that died

    def note(self, **facts: Any) -> None:
        """Keep facts about the run's execution (memory, seconds) in its head."""
        self._write_head({**self.head, **facts})

    def add(self, **facts: Any) -> None:
        """The same, with the next change of the head."""
        self.head = {**self.head, **facts}

    def _write_head(self, head: dict[str, Any]) -> None:
        head = run_digests.sealed({"files": {**run_digests.NOTHING, "run": self.record_digest}, **head})
        self._head_file.write(head, self._lock)
        self.head = head

    def keep_release(self, name: str, array: np.ndarray, *, at_commit: bool = False) -> None:
        """Keep a copy of a published value. at_commit: behind a URL, the next commit writes it with the state."""
        if at_commit and is_remote(self.path):
            self._to_keep[name] = array
        else:
            self._releases.keep(name, array)

    def remove_unplanned_releases(self) -> None:
        """Remove files in the folder of published values that are no copies of them. Raises RunError."""
        with writing("releases"):
            self._releases.remove_unplanned()

    def release_names(self) -> list[str]:
        """Names of the published values that the run keeps copies of."""
        return self._releases.names()

    def releases(self) -> dict[str, np.ndarray]:
        """The run's copies of its published values, by name. Raises RunError if they are others than they were."""
        self.check_releases()
        return self._releases.read()

    def metrics(self) -> list[dict[str, Any]]:
        """One row for each committed round. Raises RunError if they are damaged or lost."""
        return self._metrics.rows(self.head)


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A trained model as values: info (what was asked), state (arrays and scalars by name), metrics, head."""

    path: Place
    info: dict[str, Any]
    head: dict[str, Any]
    state: dict[str, Any]
    metrics: list[dict[str, Any]]


def load_run(path: str | Place) -> LoadedRun:
    """Read a run without executing anything from it; safe on files from elsewhere.

    path: the run's folder or URL, or the file latest-NAME.json that says which run is the latest of a deployment.
    Raises RunNotFound or RunError.
    """
    run = Run.open(path)
    return LoadedRun(run.path, run.info, run.head, run.read_state(), run.metrics())


def list_runs(folder: str | Place) -> list[Run]:
    """Every readable run of a folder or URL, in the order of their names. Raises Unreachable, a RunError."""
    return read_runs(folder)[0]


def read_runs(folder: str | Place) -> tuple[list[Run], list[RunError]]:
    """`list_runs`, and why the others cannot be read."""
    root = place(folder)
    found: dict[Place, dict[str, bytes] | None] = {}
    if is_remote(root):
        names = [name for name, size in object_storage.listing(root).items() if size is None]
        wanted = [f"{name}/{file}" for name in names for file in ("run.json", "head.json")]
        by_run: dict[str, dict[str, bytes]] = {}
        for name, content in object_storage.read_many(root, wanted).items():
            run, _, file = name.rpartition("/")
            by_run.setdefault(run, {})[file] = content
        found |= {root / run: contents for run, contents in by_run.items()}
    else:
        found |= {path.parent: None for path in sorted(root.glob("*/run.json"))}
    runs, damaged = [], []
    for path, fetched in found.items():
        try:
            if not is_remote(path) and path.is_symlink():
                raise RunError(f"{path.name} is a symbolic link. A search for runs does not follow it.")
            runs.append(Run._from_files(path, fetched))
        except Unreachable:
            raise
        except RunError as error:
            damaged.append(error)
    return runs, damaged
