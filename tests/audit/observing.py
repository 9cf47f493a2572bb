"""Everything that leaves a process while a command runs, by name, so that two runs of it can be compared.

stdout, stderr, exit code, how often each was written to, updates of progress, lines of log, files that were made,
changed or removed with their modes, and rows of databases. Times, places and identifiers, which name nobody, are
blanked out; arrays are compared by their bits.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import logging
import os
import re
import sqlite3
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from rich.progress import Progress

from fedcore.cli import main
from fedcore.storage.arrays import read_values

BLANKED = [
    (re.compile(rb"\"(at|started|expires|pid|ended|since|made|beat)\": ?[\d.]+"), b"WHEN"),
    (re.compile(rb"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?"), b"WHEN"),
    (re.compile(rb"\b\d{8}T\d{6}\b"), b"WHEN"),
    (re.compile(rb"[-\d]+:[-\d]{2}:[-\d]{2}([.,]\d+)?"), b"WHEN"),
]
# Identifiers and digests: those that are the same in a world of other secrets must be the same in a neighbour.
NAMES = re.compile(rb"\b(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32,64})\b")
SPACES = re.compile(rb"(?:[ \t]|\xe2[\x94\x95][\x80-\xbf])+")  # in tables they are as wide as what may differ


@dataclass(frozen=True)
class Declared:
    """Something that may differ between neighbours. where: pattern of names of traces. what: expression whose matches
    are blanked out there; None: the trace may hold anything. because: why that is right. may_lack: whether the trace
    need not be there; else it must be in both worlds."""

    where: str
    what: str | None
    because: str
    may_lack: bool = False


class Counted(io.StringIO):
    """Text, and how often somebody wrote."""

    calls = 0

    def write(self, text: str) -> int:
        self.calls += 1
        return super().write(text)


def observed(arguments: Sequence[object], folder: Path) -> dict[str, bytes]:
    """What `fedcore ARGUMENTS` leaves, and where; `folder` holds everything that it may write to."""
    return watched(lambda: _command(arguments), folder)


def _command(arguments: Sequence[object]) -> int:
    with mock.patch.object(sys, "argv", ["fedcore", *map(str, arguments)]):
        try:
            main()
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return 0


def watched(work: Callable[[], int], folder: Path, but: Sequence[str] = ()) -> dict[str, bytes]:
    """What leaves the process while `work` is done. but: folders that are looked at in another way."""
    out, err, log, updates = Counted(), Counted(), [], []
    before = dict(_files(folder, but))
    updated = Progress.update

    def update(self, task, **values):
        updates.append(str(values))
        return updated(self, task, **values)

    code = "raised"
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(Progress, "update", update),
        _logged(log),
        warnings.catch_warnings(record=True) as warned,
    ):
        try:
            code = str(work())
        except Exception as error:
            code = f"raised {type(error).__name__}: {error}"
    after = dict(_files(folder, but))
    traces = {
        "exit code": code.encode(),
        "stdout": out.getvalue().encode(),
        "stderr": err.getvalue().encode(),
        "writes": f"{out.calls} to stdout, {err.calls} to stderr".encode(),
        "progress": "\n".join(updates).encode(),
        "log": "\n".join(log).encode(),
        "warnings": "\n".join(str(item.message) for item in warned).encode(),
    }
    traces |= {f"removed {name}": b"" for name in before.keys() - after.keys()}
    traces |= {name: value for name, value in after.items() if before.get(name) != value}
    return {name: blanked(value, folder) for name, value in sorted(traces.items())}


@contextmanager
def _logged(lines: list[str]) -> Iterator[None]:
    """Every line of fedcore's loggers, and warnings of all others."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name.startswith("fedcore") or record.levelno >= logging.WARNING:
                lines.append(f"{record.name} {record.levelname} {record.getMessage()}")

    handler, root, own = Lines(), logging.getLogger(), logging.getLogger("fedcore")
    level = own.level
    root.addHandler(handler)
    own.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(level)


def _files(folder: Path, but: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Files and folders below, with their modes; archives by member; databases by table."""
    for parent, folders, files in os.walk(folder):
        if parent == str(folder):
            folders[:] = [name for name in folders if name not in but]
            files = [name for name in files if name not in but]
        for path in (os.path.join(parent, name) for name in [*folders, *files]):
            name = os.path.relpath(path, folder)
            try:
                yield f"mode of {name}", f"{stat.S_IMODE(os.lstat(path).st_mode):o}".encode()
                if not os.path.isfile(path):
                    continue
                if ".sqlite" in name or ".db" in name:
                    if path.endswith((".sqlite", ".db")):
                        yield from ((f"{name}: {table}", rows) for table, rows in tables(Path(path)).items())
                    continue
                content = Path(path).read_bytes()
                if path.endswith((".zip", ".npz")):
                    yield from ((f"{name}: {key}", value) for key, value in _members(Path(path), content).items())
                else:
                    yield name, content
            except FileNotFoundError:  # a temporary file of another thread
                continue


_decoded: dict[bytes, dict[str, bytes]] = {}  # by content: most archives are the same before and after a command


def _members(archive: Path, content: bytes) -> dict[str, bytes]:
    """The bits of the arrays of an archive, by name. content: of the file"""
    if (known := _decoded.get(content)) is not None:
        return known
    if archive.suffix == ".zip":
        found = {key: _bits(value) for key, value in read_values(archive).items()}
    else:
        with np.load(archive) as held:
            found = {key: _bits(held[key]) for key in held.files}
    if archive.read_bytes() == content:  # and not another file by now
        _decoded[content] = found
    return found


def _bits(value: object) -> bytes:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str} {value.shape} ".encode() + value.tobytes()
    return repr(value).encode()


def tables(path: Path, only: Sequence[str] | None = None) -> dict[str, bytes]:
    """The rows of each table of an SQLite database, as text, in the order of their keys."""
    found = {}
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in sorted(names):
            if only is None or name in only:
                rows = connection.execute(f'SELECT * FROM "{name}"')
                columns = [column[0] for column in rows.description]
                found[name] = b"\n".join(_row(columns, row) for row in rows)
    return found


def _row(columns: Sequence[str], row: Sequence[object]) -> bytes:
    named = zip(columns, row, strict=True)
    return b", ".join(f'"{column}": '.encode() + _cell(cell) for column, cell in named)


TASKS = re.compile(rb"\b\w+-[0-9a-f]{3}\b")
KEYS = re.compile(rb"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def rows_in_order(rows: bytes, folder: Path) -> bytes:
    """The rows of a table whose keys are random, without these, in the order of what is left: neither keys nor digests
    nor the names that Prefect invents for task runs decide it.
    """
    left = TASKS.sub(b"TASK", KEYS.sub(b"ID", blanked(rows, folder))).split(b"\n")
    return b"\n".join(sorted(left, key=lambda row: NAMES.sub(b"ID", row)))


def _cell(cell: object) -> bytes:
    return cell.hex(" ").encode() if isinstance(cell, bytes) else str(cell).encode()


def blanked(value: bytes, folder: Path) -> bytes:
    value = value.replace(str(folder).encode(), b"WORLD")
    for pattern, word in BLANKED:
        value = pattern.sub(word, value)
    return value


@dataclass(frozen=True)
class Difference:
    """A trace that depends on whose data there are. None: it is not there."""

    trace: str
    one: bytes | None
    other: bytes | None

    def __str__(self) -> str:
        if self.one is None or self.other is None:
            return f"{self.trace}: {'missing' if self.one is None else self.one[:200]!r} | " + (
                "missing" if self.other is None else repr(self.other[:200])
            )
        pairs = enumerate(zip(self.one, self.other, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(self.one), len(self.other)))
        near = slice(max(0, at - 60), at + 60)
        return f"{self.trace}: {self.one[near]!r} | {self.other[near]!r}"


def differences(
    one: dict[str, bytes], other: dict[str, bytes], hidden: dict[str, bytes], declared: Sequence[Declared] = ()
) -> list[Difference]:
    """The traces of two worlds that differ although nobody declared that they may.

    hidden: of a world with the data of `one` and other secrets: a digest that differs there covers a secret, and is not
    compared.
    """
    found = []
    for name in sorted(one.keys() | other.keys()):
        if any(item.may_lack and fnmatch.fnmatchcase(name, item.where) for item in declared):
            continue
        left, right, apart = (_declared(name, side.get(name), declared) for side in (one, other, hidden))
        if left is None or right is None:
            found.append(Difference(name, left, right))
        else:
            secret = _hidden(left, apart)
            left, right = _without(left, secret), _without(right, secret)
            if left != right:
                found.append(Difference(name, left, right))
    return found


def _hidden(one: bytes, apart: bytes | None) -> list[bool]:
    """Of each name in the trace: whether a world of the same data and other secrets has another one in its place."""
    mine, theirs = NAMES.findall(one), NAMES.findall(apart or b"")
    if len(mine) != len(theirs):
        return [True] * len(mine)
    return [left != right for left, right in zip(mine, theirs, strict=True)]


def _without(value: bytes, hidden: Sequence[bool]) -> bytes:
    """With the names that cover a secret blanked out; a name too many is none of them."""
    flags = iter(hidden)
    return NAMES.sub(lambda found: b"ID" if next(flags, False) else found[0], value)


def _declared(name: str, value: bytes | None, declared: Sequence[Declared]) -> bytes | None:
    if value is None:
        return None
    value = SPACES.sub(b" ", value) if name in ("stdout", "stderr") else value
    for item in declared:
        if fnmatch.fnmatchcase(name, item.where):
            value = b"" if item.what is None else re.sub(item.what.encode(), b"DECLARED", value)
    return value
