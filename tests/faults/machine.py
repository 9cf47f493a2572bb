"""A simulated machine: its processes meet a chosen fault at a chosen call of a file, of the ledger or of the network.

Every such call of a process is a numbered *point*: what changes something (`Process.points`) and what only reads
(`Process.reads`) are counted apart. `tests.faults.disk` and `tests.faults.objects` lead all of them through
`Machine.reach`; a hook that Python itself calls tells of those that went another way (`Machine.bypassed`).

A process that is killed raises `Killed`, and from then on changes nothing more, whatever its `finally` clauses try. The
next process is a fresh one: it has none of the caches of the dead one, which is no longer alive in anybody's eyes.
"""

from __future__ import annotations

import errno
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakSet

import zarr

from fedcore.population import arrays, slots, writer
from fedcore.population.ingest import reading_ahead
from fedcore.rounds import clients
from fedcore.rounds.caches import BLOCKS, MEMORIES
from fedcore.storage import files, remote_lock
from fedcore.storage import process as processes

RANDOM = re.compile(r"[0-9a-f]{32}|(?<=\.)\d+(\.[0-9a-f]{8})?(?=\.partial)|(?<=metrics-)[0-9a-f]{16}")
FIRST_PID = 10**8  # larger than any that a system gives
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
WRITING = 3 | 0o100 | 0o1000 | 0o2000  # of the flags of `open`: not only to read, or O_CREAT, O_TRUNC, O_APPEND

FULL = {"create", "write", "mkdir", "link", "row", "commit"}  # what a full disk refuses
POWER = {"power", "power, names kept"}
LATE = {"late", "very late"}


class Killed(BaseException):
    """The process died."""


@dataclass(frozen=True)
class Point:
    """A call. kind: "write", "rename", "commit", "put", ...; what: the file, statement or object, without random parts.

    part_of: "disk", "ledger" or "network"
    """

    number: int
    part_of: str
    kind: str
    what: str
    reads: bool = False

    def __str__(self) -> str:
        return f"{'read' if self.reads else 'point'} {self.number} ({self.kind} {self.what})"

    def faults(self) -> tuple[str, ...]:
        """What can go wrong at this point."""
        if self.part_of == "network":
            if self.reads:
                return ("request lost",)
            return ("kill", "request lost", "answer lost", *(("late", "very late") if self.kind == "put" else ()))
        if self.reads:
            return ("EIO",)
        faults = ["kill", "EIO"]
        if self.kind in FULL:
            faults.append("ENOSPC")
        if self.kind == "write":
            faults.append("torn")
        if self.kind == "commit":
            faults.append("answer lost")
        return (*faults, *sorted(POWER))


@dataclass(frozen=True)
class Fault:
    """What happens at a point of a process:

    kill: it dies just before. torn: half of a write arrives, and it dies. power: it dies, and so does the machine: of
    what was not flushed neither content nor names are there afterwards; "power, names kept": no content.
    ENOSPC: half of a write arrives; from now on the disk is full for this process. EIO: this call fails.
    request lost: a call of the network fails; answer lost: it fails after it has worked.
    late: a put works, the process dies, and the put arrives a second time while the next process is at work; very late:
    after that.
    """

    kind: str
    number: int
    reads: bool = False


class Process:
    """A process of the machine. fault: what it meets; None: nothing."""

    def __init__(self, pid: int, fault: Fault | None = None) -> None:
        self.pid, self.fault = pid, fault
        self.points: list[Point] = []
        self.reads: list[Point] = []
        self.dead = self.full = False
        self.struck: Point | None = None  # where it met the fault
        self.files: WeakSet = WeakSet()
        self.descriptors: set[int] = set()
        self.gate: Callable[[Point], None] | None = None  # called before each point, by the thread that reached it

    def holder(self) -> processes.Holder:
        return processes.Holder("simulated", self.pid, 0.0)


class Machine:
    """root: the folder whose files are the machine's; everything else is none of its business."""

    def __init__(self, root: Path) -> None:
        from tests.faults.disk import Disk
        from tests.faults.objects import Bucket

        self.root = root
        self.disk, self.bucket = Disk(self), Bucket(self)
        self.alive: set[int] = set()
        self.bypassed: set[str] = set()
        self._current: Process | None = None
        self._of_thread = threading.local()
        self._lock = threading.RLock()
        self._pids = FIRST_PID

    def begin_with(self, pid: int) -> None:
        """The next process has this number: others were here before, on a machine of the same name."""
        self._pids = pid - 1

    # --- processes ----------------------------------------------------------------------------------------------------

    @contextmanager
    def on(self) -> Iterator[Machine]:
        """Inside, files below the root, their ledger and s3:// URLs are the machine's."""
        with ExitStack() as stack:
            stack.enter_context(self.disk.mounted())
            stack.enter_context(self.bucket.reachable())
            for module in ("fedcore.privacy.ledger.ledger", "fedcore.storage.remote_lock"):
                stack.enter_context(mock.patch(f"{module}.this_process", self._holder))
            stack.enter_context(mock.patch.object(processes.Holder, "alive", self._alive()))
            stack.enter_context(mock.patch.object(clients, "worth_reading_ahead", lambda *_: False))  # in one order
            stack.enter_context(mock.patch.object(files, "FLUSHED_AT_ONCE", 1))  # and flushes
            for module in (reading_ahead, writer):  # and writes
                stack.enter_context(mock.patch.object(module, "usable_cores", lambda: 1))
            stack.enter_context(zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1}))
            _watch(self)
            stack.callback(_watch, None)
            yield self

    def _alive(self) -> Callable[..., bool]:
        return lambda holder, expired=False: holder.pid in self.alive

    def _holder(self) -> processes.Holder:
        running = self.running()
        return processes.Holder("simulated", 1, 0.0) if running is None else running.holder()

    def running(self) -> Process | None:
        """The process that this thread belongs to; None: the test itself looks or prepares."""
        return getattr(self._of_thread, "process", None) or self._current

    @contextmanager
    def process(self, fault: Fault | None = None, *, of_this_thread: bool = False) -> Iterator[Process]:
        """Inside, this thread and those that it starts are a new process. Raises Killed if it dies.

        of_this_thread: other threads are other processes.
        """
        self._pids += 1
        made = Process(self._pids, fault)
        self.alive.add(made.pid)
        forget()
        if of_this_thread:
            self._of_thread.process = made
        else:
            self._current = made
        try:
            yield made
        finally:
            if of_this_thread:
                self._of_thread.process = None
            else:
                self._current = None
            self.alive.discard(made.pid)
            self.disk.close_all(made)
            forget()

    # --- points -------------------------------------------------------------------------------------------------------

    def reach(
        self,
        part_of: str,
        kind: str,
        what: str,
        act: Callable[[], Any],
        half: Callable[[], Any] | None = None,
        *,
        reads: bool = False,
    ) -> Any:
        """What a process does at a point: `act`, unless it dies or fails there. half: what a torn write does."""
        process = self.running()
        if process is None or self.inside:
            return act()
        if process.dead:
            raise Killed
        if process.gate is not None and not reads:
            process.gate(Point(len(process.points) + 1, part_of, kind, RANDOM.sub("*", what)))
        with self._lock:
            series = process.reads if reads else process.points
            point = Point(len(series) + 1, part_of, kind, RANDOM.sub("*", what), reads)
            series.append(point)
            self._of_thread.inside = True
            try:
                if not reads:
                    self.bucket.deliver(len(process.points))
                fault = process.fault
                if fault is not None and not process.struck and (fault.number, fault.reads) == (point.number, reads):
                    process.struck = point
                    return self._strike(process, fault.kind, part_of, act, half)
                if process.full and kind in FULL:
                    raise failure(part_of, errno.ENOSPC)
                return act()
            finally:
                self._of_thread.inside = False

    def _strike(self, process: Process, fault: str, part_of: str, act, half) -> Any:
        if fault in ("EIO", "request lost"):
            raise failure(part_of, errno.EIO)
        if fault == "answer lost":
            act()
            raise failure(part_of, errno.EIO)
        if fault == "ENOSPC":
            process.full = True
            if half is not None:
                return half()  # a system call that writes less than it was given: the next one fails
            raise failure(part_of, errno.ENOSPC)
        if fault == "torn":
            half()
        elif fault in LATE:
            act()
            self.bucket.will_arrive_again(late=fault == "late")
        process.dead = True
        if fault in POWER:
            self.disk.lose_power(names_kept=fault != "power")
        raise Killed

    def aside(self, act: Callable[[], Any]) -> Any:
        """A call that changes nothing, and is no point. A dead process does not make it either."""
        process = self.running()
        if process is not None and process.dead:
            raise Killed
        self._of_thread.inside = True
        try:
            return act()
        finally:
            self._of_thread.inside = False

    @property
    def inside(self) -> bool:
        return getattr(self._of_thread, "inside", False)


def failure(part_of: str, number: int) -> Exception:
    """The error of a file, of SQLite or of the network."""
    import sqlite3

    if part_of == "ledger":
        text = "database or disk is full" if number == errno.ENOSPC else "disk I/O error"
        return sqlite3.OperationalError(text)
    if part_of == "network":
        return TimeoutError(errno.ETIMEDOUT, "The request timed out")
    return OSError(number, "No space left on device" if number == errno.ENOSPC else "Input/output error")


def forget() -> None:
    """What a fresh process does not know."""
    for cache in (BLOCKS, MEMORIES, clients._populations, remote_lock._own_tokens):
        cache.clear()
    arrays._open.cache_clear()
    slots._digests.cache_clear()


# --- who went another way ---------------------------------------------------------------------------------------------

_watched: Machine | None = None
_hooked = False


def _watch(machine: Machine | None) -> None:
    global _watched, _hooked
    _watched = machine
    if not _hooked:
        sys.addaudithook(_audit)  # for good: a hook cannot be taken off
        _hooked = True


def _audit(event: str, arguments: tuple) -> None:
    machine = _watched
    if machine is None or (event != "open" and event not in CHANGES and event != "socket.connect"):
        return
    process = machine.running()
    if process is None or machine.inside or process.dead:
        return
    if event == "socket.connect":
        machine.bypassed.add(f"{event} {arguments[1]}")
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITING):
        return
    path = machine.disk.path_of(arguments[0])
    if path is not None:
        machine.bypassed.add(f"{event} {RANDOM.sub('*', path)}")
