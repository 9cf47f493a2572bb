"""Walks the points of commands: each is met by every fault that can happen there, and the command is taken up again.

    python -m tests.faults.walk                      # all commands, all points
    python -m tests.faults.walk train "resume private" --stride 7

Prints, for each command, how many points it has, how many faults were met, and what became of them. What is left is
whole or absent at once; after the command was run again or resumed, bits, files and balance are those of a command that
nothing disturbed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest import mock

import jinja2

from fedcore.errors import FedcoreError
from fedcore.evaluation import report
from fedcore.methods.names import OWN
from fedcore.privacy.ledger import ledger as ledger_books
from fedcore.rounds import engine
from fedcore.runs.store import Run
from fedcore.storage import files
from tests.faults.commands import COMMANDS, Command, Workplace, known_as
from tests.faults.machine import LATE, RANDOM, Fault, Killed, Machine, Point

MEMORY = Path("/dev/shm")  # nothing here needs a disk, and a ledger that is flushed to one takes its time
OVERTAKEN = "overtaken"
PATIENCE = 60.0  # for a process that hangs, seconds
PUBLISH_SECONDS = 0.25  # a ledger that is gone here does not come back
LEFT = re.compile(r"bucket/runs/run/(state/[0-9]+\.zip|metrics-\*\.jsonl)")
UNGUARDED = re.compile(r"runs/run/(state|metrics|\.?head|\.?run\.json|lock)")
SHOWN = 400  # characters of a difference
HEAD = ("command", "points", "reads", "faults", "died", "told", "unnoticed", "wrong", "seconds")


class Elsewhere(AssertionError):
    """Another point was met than the one that was meant."""


@dataclass
class Walked:
    """What became of the faults of a command. died, told: with a named error, unnoticed: how many; wrong: in words."""

    name: str
    points: int = 0
    reads: int = 0
    faults: int = 0
    outcomes: Counter = field(default_factory=Counter)
    kinds: Counter = field(default_factory=Counter)  # of points
    wrong: list[str] = field(default_factory=list)
    bypassed: set[str] = field(default_factory=set)
    seconds: float = 0.0

    def row(self) -> tuple:
        told = [self.outcomes[name] for name in ("died", "told", "unnoticed")]
        return self.name, self.points, self.reads, self.faults, *told, len(self.wrong), round(self.seconds, 1)


class Walk:
    """The points of one command in one folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.command: Command = COMMANDS[name]
        self.folder = folder
        self.machine = Machine(folder / "machine")
        asked = {one.name for one in fields(Workplace)} & {one.name for one in fields(Command)}
        self.place = Workplace(self.machine, **{name: getattr(self.command, name) for name in asked})
        self.walked = Walked(name)
        self.template, self.objects = folder / "template", dict[str, bytes]()

    @contextmanager
    def world(self) -> Iterator[None]:
        """Inside, the machine is on, and commands find what they need."""
        with mock.patch.dict(OWN, {"toy": "tests.toy:WarmToy"}), undrawn(), world(self.machine, self.place.ledger_url):
            yield

    @contextmanager
    def on(self) -> Iterator[Walk]:
        """Inside, the machine is on, and the command was run undisturbed."""
        self.machine.root.mkdir(parents=True)
        with self.world():
            self.command.prepare(self.place)
            shutil.copytree(self.machine.root, self.template)
            self.objects = dict(self.machine.bucket.objects)
            with self.machine.process() as process:
                self.command.run(self.place)
            self.points, self.reads = process.points, process.reads
            self.calm = self.place.outcome()
            self.walked.points, self.walked.reads = len(self.points), len(self.reads)
            self.walked.kinds = Counter(point.kind for point in [*self.points, *self.reads])
            self.walked.bypassed = self.machine.bypassed
            yield self

    def die_really(self, number: int) -> None:
        """Run the command in this process, which dies by SIGKILL before the point."""

        def die(point: Point) -> None:
            if point.number == number:
                os.kill(os.getpid(), signal.SIGKILL)

        with self.world(), self.machine.process() as process:
            process.gate = die
            self.command.run(self.place)

    def faults(self, stride: int = 1) -> list[tuple[Point, Fault]]:
        """What can happen to the command; with a stride, every so many of them."""
        hangs = self._where_it_may_hang()
        found = [
            (point, Fault(kind, point.number, point.reads))
            for point in [*self.points, *self.reads]
            for kind in (*point.faults(), *((OVERTAKEN,) if point in hangs else ()))
            if not self.command.only or kind in self.command.only
        ]
        return found[::stride]

    def _where_it_may_hang(self) -> set[Point]:
        """Points at which another process can go on with the run: no lock is held that it would wait for.

        In a folder whose locks do not reach the other host nothing guards the moments between a look at the head and
        its rename; in object storage, conditions of puts do.
        """
        free = takewhile(lambda point: "/.operations" not in point.what, self.points)
        found = {point for point in free if point.kind not in ("row", "commit")}
        if not self.command.remote:
            found = {point for point in found if not UNGUARDED.search(point.what)}
        return found if self.command.goes_on is not None else set()

    def restore(self) -> None:
        shutil.rmtree(self.machine.root)
        shutil.copytree(self.template, self.machine.root)
        self.machine.bucket.forget(self.objects)
        self.machine.disk.forget()

    def meet(self, point: Point, fault: Fault, again: int = 3) -> None:
        """Run the command with this fault, look, take it up again, and compare. again: how often, if another point is
        met: holders of locks are looked at by the clock, and a busy machine takes its time
        """
        self.walked.faults += again == 3
        said, doing = "", "the command"
        try:
            self.restore()
            outcome, said = self._overtaken(fault) if fault.kind == OVERTAKEN else self._disturbed(point, fault)
            self.walked.outcomes[outcome] += 1
            doing = "what it left"
            self.place.look()
            self._wait()
            doing = "the command again"
            with self.machine.process():
                self.command.again(self.place)
            self.machine.bucket.deliver_now()
            doing = "the end"
            self._compare(fault)
        except Exception as error:
            if again and isinstance(error, Elsewhere):
                return self.meet(point, fault, again - 1)
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} [{Path(where.filename).name}:{where.lineno}]"
            self.walked.wrong.append(f"{point}, {fault.kind}: {doing}: {text}{f' (after {said})' if said else ''}")

    def _disturbed(self, point: Point, fault: Fault) -> tuple[str, str]:
        said = ""
        with self.machine.process(fault) as process:
            try:
                self.command.run(self.place)
            except Killed:
                assert process.dead
            except FedcoreError as error:
                if not process.struck:
                    raise
                said = f"{type(error).__name__}: {error}"
        if process.struck != point:
            raise Elsewhere(f"{process.struck or 'no point'} was met instead")
        return ("died" if process.dead else "told" if said else "unnoticed"), said

    def _overtaken(self, fault: Fault) -> tuple[str, str]:
        """The process hangs at the point; another one goes on with the run to its end; then the first one wakes up.

        It is on another host, whose file locks do not reach here.
        """
        here, on, ended = threading.Event(), threading.Event(), list[BaseException | None]()
        target = self.points[fault.number - 1]
        left = [(point.kind, point.what) for point in self.points[: fault.number]].count((target.kind, target.what))

        def hang(point: Point) -> None:
            nonlocal left
            left -= (point.kind, point.what) == (target.kind, target.what)
            if left == 0 and not here.is_set():
                here.set()
                on.wait(PATIENCE)

        def first() -> None:
            with self.machine.process(of_this_thread=True) as process:
                process.gate = hang
                try:
                    self.command.run(self.place)
                    ended.append(None)
                except BaseException as error:
                    ended.append(error)
                here.set()

        thread = threading.Thread(target=first)
        with ExitStack() as stack:
            if not self.command.remote:
                stack.enter_context(mock.patch.object(Run, "lock", lambda run, take_over=False: False))
            thread.start()
            try:
                here.wait(PATIENCE)
                with self.machine.process(of_this_thread=True):
                    assert self.command.goes_on is not None
                    self.command.goes_on(self.place)
            finally:
                on.set()
                thread.join(PATIENCE)
        if thread.is_alive():
            raise AssertionError("the process that was overtaken does not end")
        if ended[0] is None:
            return "unnoticed", ""
        if not isinstance(ended[0], FedcoreError):
            raise ended[0]
        return "told", f"{type(ended[0]).__name__}: {ended[0]}"

    def _wait(self) -> None:
        """A person comes hours later."""
        then = time.time() - 2 * files.ABANDONED
        for path in self.machine.root.rglob("*"):
            os.utime(path, (then, then))

    def _compare(self, fault: Fault) -> None:
        found, calm = self.place.outcome(), dict(self.calm)
        if fault.kind in LATE or fault.kind == OVERTAKEN:  # what came after its successor, and nobody asks for
            late = {known_as(RANDOM.sub("*", self.machine.bucket.late_path))}
            late |= {name for name in found["files"] if fault.kind == OVERTAKEN and LEFT.fullmatch(name)}
            found["files"] = sorted(set(found["files"]) - (late - set(calm["files"])))
        swept_later = re.compile(self.command.swept_later)
        found["files"] = [name for name in found["files"] if not swept_later.fullmatch(name)]
        if fault.kind == OVERTAKEN:  # locks were taken out for this
            calm["files"] = [name for name in calm["files"] if not name.endswith("/lock")]
            found["files"] = [name for name in found["files"] if not name.endswith("/lock")]
        lost = found["balance"].pop("lost", 0)
        if lost > self.calm["balance"].get("lost", 0) + 1:
            raise AssertionError(f"{lost} charges were lost")
        expected = {**calm, "balance": {k: v for k, v in self.calm["balance"].items() if k != "lost"}}
        for name in expected.keys() | found.keys():
            if expected.get(name) != found.get(name):
                raise AssertionError(f"{name} differs: {difference(expected.get(name), found.get(name))}")


@contextmanager
def world(machine: Machine, ledger_url: str) -> Iterator[None]:
    """Inside, the machine is on with its ledger, every round is committed, and nobody waits long for the ledger."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"FEDCORE_LEDGER": ledger_url}))
        stack.enter_context(mock.patch.object(engine, "COMMIT_SECONDS", 0.0))
        stack.enter_context(mock.patch.object(ledger_books, "PUBLISH_SECONDS", PUBLISH_SECONDS))
        stack.enter_context(machine.on())
        yield


@contextmanager
def undrawn() -> Iterator[None]:
    """Inside, figures of reports are empty and the page is compiled once: both take longer than all the rest."""
    with ExitStack() as stack:
        for name in ("evaluation", "profiles", "rounds", "seconds", "budget"):
            stack.enter_context(mock.patch.object(report, f"{name}_figure", lambda *_: b""))
        compiled = lru_cache(jinja2.Environment.from_string)
        environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        environment.filters.update(show=report.show, bytes=report.show_bytes, words=report._words)
        stack.enter_context(
            mock.patch.object(jinja2.Environment, "from_string", lambda _, source: compiled(environment, source))
        )
        yield


def difference(expected: Any, found: Any) -> str:
    if isinstance(expected, dict) and isinstance(found, dict):
        names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        return ", ".join(f"{name}: {difference(expected.get(name), found.get(name))}" for name in names)[:SHOWN]
    if isinstance(expected, list) and isinstance(found, list):
        more, less = [x for x in found if x not in expected], [x for x in expected if x not in found]
        return "; ".join(f"{what} {_few(items)}" for what, items in (("unexpected", more), ("missing", less)) if items)
    return f"{found!r} instead of {expected!r}"[:SHOWN]


def _few(items: list) -> str:
    return ", ".join(map(str, items[:3])) + (f" and {len(items) - 3} more" if len(items) > 3 else "")


def walk(name: str, folder: Path, stride: int = 1, only: Iterable[str] = ()) -> Walked:
    """Walk a command. only: kinds of faults; all of them without."""
    started = time.perf_counter()
    with Walk(name, folder).on() as walking:
        for point, fault in walking.faults(stride):
            if not only or fault.kind in only:
                walking.meet(point, fault)
    walking.walked.seconds = time.perf_counter() - started
    return walking.walked


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"of: {', '.join(COMMANDS)}")
    parser.add_argument("--stride", type=int, default=1, help="only every so many faults")
    parser.add_argument("--fault", action="append", default=[], help="only faults of this kind")
    parser.add_argument("--show", type=int, default=20, help="faults that went wrong to show for each command")
    parser.add_argument("--points", action="store_true", help="list the points")
    given = parser.parse_args(arguments)
    failed = False
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    for name in given.commands or COMMANDS:
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            if given.points:
                with Walk(name, Path(folder).resolve() / "walk").on() as walking:
                    print(*walking.points, *walking.reads, sep="\n")
            walked = walk(name, Path(folder).resolve() / "again", given.stride, given.fault)
        print("| " + " | ".join(map(str, walked.row())) + " |", flush=True)
        for line in walked.wrong[: given.show]:
            print(f"  WRONG {line}")
        if walked.bypassed:
            print(f"  BYPASSED {sorted(walked.bypassed)}")
        failed |= bool(walked.wrong or walked.bypassed)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
