"""The disk of a simulated machine: files below its root, and the SQLite databases there.

Every system call that changes something, and every opening of a file, is a point. The disk also knows what was flushed:
a power failure takes the content of files that were not, and undoes renames, removals and new names in folders that
were not. SQLite's own files are taken to be what SQLite says of them: a commit is durable and whole.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from tests.faults.machine import Machine, Process

CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ROWS = ("INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP")
Inode = tuple[int, int]


@dataclass
class Name:
    """A change of names that is not durable yet. folders: not flushed since; places: all of them, as they were. A
    folder of the same name that is made later is another one.
    """

    folders: set[object]
    undo: Callable[[], None]
    places: list[tuple[Path, object]]


class Disk:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.graves = machine.root.with_name(f"{machine.root.name}.graves")
        self.unflushed: dict[Inode, bytes] = {}  # content that a file has after a power failure
        self.names: list[Name] = []
        self.known: dict[Inode, object] = {}  # folders that were made here: an inode may be that of one before
        self.real = {name: getattr(os, name) for name in ("open", "close", "write", "fsync", "link", "unlink")}
        self.real |= {name: getattr(os, name) for name in ("rename", "replace", "mkdir", "rmdir", "truncate")}
        self.real |= {"chmod": os.chmod, "fchmod": os.fchmod, "ftruncate": os.ftruncate, "io.open": io.open}

    def forget(self) -> None:
        """All that is there now is durable."""
        self.unflushed.clear()
        self.names.clear()
        if self.graves.is_dir():
            _rmtree(self.real, self.graves)
        self.real["mkdir"](self.graves)

    # --- paths --------------------------------------------------------------------------------------------------------

    def path_of(self, file: Any, folder: int | None = None) -> str | None:
        """The path below the root, relative to it; None for anything that is not there."""
        try:
            if isinstance(file, int):
                path = os.readlink(f"/proc/self/fd/{file}")
            else:
                path = os.fsdecode(file)
                if folder is not None and not os.path.isabs(path):
                    path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
        except (OSError, TypeError):
            return None
        path, root = os.path.abspath(path), str(self.machine.root)
        return path[len(root) + 1 :] if path.startswith(root + os.sep) else None

    def _whole(self, relative: str) -> Path:
        return self.machine.root / relative

    # --- what is durable ----------------------------------------------------------------------------------------------

    def _inode(self, path: Path | int) -> Inode:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def _which(self, folder: Path | int) -> object:
        """The folder that this is, or was before it went and came back."""
        inode = self._inode(folder)
        return self.known.get(inode, inode)

    def touched(self, file: Path | int) -> None:
        """The content of this file is about to change, or it is new."""
        inode = self._inode(file)
        if inode not in self.unflushed:
            path = Path(os.readlink(f"/proc/self/fd/{file}")) if isinstance(file, int) else file
            with self.real["io.open"](path, "rb") as handle:
                self.unflushed[inode] = handle.read()

    def flushed(self, descriptor: int) -> None:
        inode = self._inode(descriptor)
        self.unflushed.pop(inode, None)
        for name in self.names:
            name.folders.discard(self._which(descriptor))
        self.names = [name for name in self.names if name.folders]

    def renamed(self, undo: Callable[[], None], *folders: Path) -> None:
        places = [(folder, self._which(folder)) for folder in folders]
        self.names.append(Name({which for _, which in places}, undo, places))

    def buried(self, path: Path) -> Path:
        """Another name of a file that is about to lose its own."""
        grave = self.graves / f"{len(os.listdir(self.graves)):06d}"
        self.real["link"](path, grave)
        return grave

    def lose_power(self, *, names_kept: bool) -> None:
        """What was not flushed is gone."""
        if not names_kept:
            for name in reversed(self.names):
                with suppress(OSError):
                    if all(self._which(folder) == was for folder, was in name.places):
                        name.undo()
        for where, _, files in os.walk(self.machine.root):
            for file in files:
                path = Path(where) / file
                content = self.unflushed.get(self._inode(path))
                if content is not None:
                    with self.real["io.open"](path, "wb") as handle:
                        handle.write(content)
        self.forget()

    # --- calls --------------------------------------------------------------------------------------------------------

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Inside, the calls of this process go through the machine, if they are about files below its root."""
        self.forget()
        with ExitStack() as stack:
            for name in ("open", "write", "fsync", "link", "unlink", "rename", "mkdir", "rmdir", "truncate", "chmod"):
                stack.enter_context(mock.patch.object(os, name, getattr(self, f"_{name}")))
            for name, other in (("close", self._close), ("replace", self._rename), ("remove", self._unlink)):
                stack.enter_context(mock.patch.object(os, name, other))
            for name in ("fchmod", "ftruncate"):
                stack.enter_context(mock.patch.object(os, name, getattr(self, f"_{name}")))
            for module in (builtins, io):
                stack.enter_context(mock.patch.object(module, "open", self._open_file))
            stack.enter_context(mock.patch.object(sqlite3, "connect", self._connect))
            yield
        shutil.rmtree(self.graves, ignore_errors=True)

    def close_all(self, process: Process) -> None:
        """What the system does for a process that has ended: files are closed, and their locks with them."""
        for file in list(process.files):
            io.FileIO.close(file)
        for descriptor in list(process.descriptors):
            with suppress(OSError):
                self.real["close"](descriptor)
        process.descriptors.clear()

    def _reach(self, kind: str, what: str, act, half=None, *, reads: bool = False) -> Any:
        return self.machine.reach("disk", kind, what, act, half, reads=reads)

    def _mine(self, file: Any, folder: int | None = None) -> str | None:
        """The path, if it is the machine's business and not that of the test."""
        return None if self.machine.running() is None else self.path_of(file, folder)

    def _created(self, path: Path) -> None:
        self.renamed(lambda: self.real["unlink"](path), path.parent)

    def _open_file(
        self, file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None
    ):
        what, process = self._mine(file), self.machine.running()
        opening = lambda: self.real["io.open"](file, mode, buffering, encoding, errors, newline, closefd, opener)  # noqa: E731
        if what is None or process is None:
            return opening()
        if not set(mode) & set("wax+"):
            return self._reach("read", what, opening, reads=True)
        raw_mode = mode.replace("t", "").replace("b", "")
        raw = self._reach_opening(
            what, "w" in mode, lambda: Writer(self, process, what, file, raw_mode, closefd, opener)
        )
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def _reach_opening(self, what: str, truncates: bool, act: Callable[[], Any]) -> Any:
        path = self._whole(what)
        there = path.exists()

        def opening():
            if there and truncates and path.stat().st_size:
                self.touched(path)
            opened = act()
            if not there:
                self._created(path)
                self.unflushed[self._inode(path)] = b""
            return opened

        return self._reach("open" if there else "create", what, opening)

    def _open(self, path, flags, mode=0o777, *, dir_fd=None):
        what, process = self._mine(path, dir_fd), self.machine.running()
        opening = lambda: self.real["open"](path, flags, mode, dir_fd=dir_fd)  # noqa: E731
        if what is None or process is None or self.machine.inside or os.path.isdir(self._whole(what)):
            return opening()
        if flags & CHANGING:
            descriptor = self._reach_opening(what, bool(flags & os.O_TRUNC), opening)
        else:
            descriptor = self._reach("read", what, opening, reads=True)
        process.descriptors.add(descriptor)
        return descriptor

    def _close(self, descriptor):
        process = self.machine.running()
        if process is not None:
            process.descriptors.discard(descriptor)
        return self.real["close"](descriptor)

    def _write(self, descriptor, data):
        what = self._mine(descriptor)
        if what is None:
            return self.real["write"](descriptor, data)

        def writing(part):
            self.touched(descriptor)
            return self.real["write"](descriptor, part)

        return self._reach(
            "write", what, lambda: writing(data), lambda: writing(memoryview(data)[: max(len(data) // 2, 1)])
        )

    def _fsync(self, descriptor):
        path = None if self.machine.running() is None else os.readlink(f"/proc/self/fd/{descriptor}")
        what = "." if path == str(self.machine.root) else self._mine(descriptor)
        if what is None:
            return self.real["fsync"](descriptor)
        return self._reach("fsync", what, lambda: self.flushed(descriptor))  # nothing is ever really flushed here

    def _rename(self, source, target, *, src_dir_fd=None, dst_dir_fd=None):
        old, new = self._mine(source, src_dir_fd), self._mine(target, dst_dir_fd)
        real = lambda: self.real["replace"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)  # noqa: E731
        if old is None or new is None:
            return real()
        here, there = self._whole(old), self._whole(new)

        def renaming():
            grave = self.buried(there) if there.is_file() else None
            real()

            def undo():
                self.real["replace"](there, here)
                if grave is not None:
                    self.real["link"](grave, there)

            self.renamed(undo, here.parent, there.parent)

        return self._reach("rename", new, renaming)

    def _link(self, source, target, *, src_dir_fd=None, dst_dir_fd=None, follow_symlinks=True):
        what = self._mine(target, dst_dir_fd)
        if what is None:
            return self.real["link"](source, target)

        def linking():
            self.real["link"](source, target)
            self._created(self._whole(what))

        return self._reach("link", what, linking)

    def _unlink(self, path, *, dir_fd=None):
        what = self._mine(path, dir_fd)
        if what is None:
            return self.real["unlink"](path, dir_fd=dir_fd)
        whole = self._whole(what)

        def unlinking():
            grave = self.buried(whole) if whole.exists() else None
            self.real["unlink"](path, dir_fd=dir_fd)
            if grave is not None:
                self.renamed(lambda: self.real["link"](grave, whole), whole.parent)

        return self._reach("unlink", what, unlinking) if whole.exists() else self.machine.aside(unlinking)

    def _mkdir(self, path, mode=0o777, *, dir_fd=None):
        what = self._mine(path, dir_fd)
        whole = None if what is None else self._whole(what)
        if what is None or whole is None or whole.exists() or not whole.parent.is_dir():  # fails, and changes nothing
            making = lambda: self.real["mkdir"](path, mode, dir_fd=dir_fd)  # noqa: E731
            return making() if what is None else self.machine.aside(making)

        def making():
            self.real["mkdir"](path, mode, dir_fd=dir_fd)
            self.known[self._inode(whole)] = object()
            self.renamed(lambda: _rmtree(self.real, whole), whole.parent)

        return self._reach("mkdir", what, making)

    def _rmdir(self, path, *, dir_fd=None):
        what = self._mine(path, dir_fd)
        if what is None:
            return self.real["rmdir"](path, dir_fd=dir_fd)
        whole = self._whole(what)

        def removing():
            was = self._which(whole)
            self.real["rmdir"](path, dir_fd=dir_fd)

            def undo():
                self.real["mkdir"](whole)
                self.known[self._inode(whole)] = was

            self.renamed(undo, whole.parent)

        return self._reach("rmdir", what, removing)

    def _truncate(self, path, length):
        what = self._mine(path)
        return self.real["truncate"](path, length) if what is None else self._shorten(what, path, length)

    def _ftruncate(self, descriptor, length):
        what = self._mine(descriptor)
        return self.real["ftruncate"](descriptor, length) if what is None else self._shorten(what, descriptor, length)

    def _shorten(self, what, file, length):
        def shortening():
            self.touched(file)
            self.real["truncate"](file, length)

        return self._reach("truncate", what, shortening)

    def _chmod(self, path, mode, *, dir_fd=None, follow_symlinks=True):
        what = self._mine(path, dir_fd)
        real = lambda: self.real["chmod"](path, mode, dir_fd=dir_fd, follow_symlinks=follow_symlinks)  # noqa: E731
        return real() if what is None else self._reach("chmod", what, real)

    def _fchmod(self, descriptor, mode):
        what = self._mine(descriptor)
        real = lambda: self.real["fchmod"](descriptor, mode)  # noqa: E731
        return real() if what is None else self._reach("chmod", what, real)

    # --- SQLite -------------------------------------------------------------------------------------------------------

    def _connect(self, database, *arguments, **options):
        name = str(database).removeprefix("file://").partition("?")[0]
        what = self._mine(name)
        if what is None:
            return sqlite3.Connection(database, *arguments, **options)
        disk, kind = self, "read" if self._whole(what).exists() else "create"

        class Transaction(sqlite3.Connection):
            def cursor(self, factory=None):
                return super().cursor(Statement)

            def execute(self, *arguments):
                return self.cursor().execute(*arguments)

            def commit(self):
                if self.in_transaction and self.wrote:
                    return disk.machine.reach("ledger", "commit", what, super().commit)
                return super().commit()

            wrote = False

        class Statement(sqlite3.Cursor):
            def execute(self, text, *arguments):
                return self._run(text, lambda: super(Statement, self).execute(text, *arguments))

            def executemany(self, text, *arguments):
                return self._run(text, lambda: super(Statement, self).executemany(text, *arguments))

            def _run(self, text, act):
                words = text.split()
                if words[0] == "BEGIN":
                    self.connection.wrote = "IMMEDIATE" in words
                    if self.connection.wrote:
                        return disk.machine.reach("ledger", "begin", what, act)
                elif words[0] in ROWS or (words[0] == "PRAGMA" and "journal_mode" in text):
                    return disk.machine.reach("ledger", "row", " ".join(words[:3]), act)
                return act()

        opening = lambda: Transaction(database, *arguments, **options)  # noqa: E731
        return self.machine.reach("ledger", kind, what, opening, reads=kind == "read")


class Writer(io.FileIO):
    """A file that is open for writing; each call of the system is a point."""

    def __init__(self, disk: Disk, process: Process, what: str, file, mode, closefd, opener) -> None:
        super().__init__(file, mode, closefd, opener)
        self.disk, self.process, self.what = disk, process, what
        process.files.add(self)

    def write(self, data):
        if self.process.dead:  # what a dead process has in its buffers goes nowhere
            return len(data)

        def writing(part):
            self.disk.touched(self.fileno())
            return io.FileIO.write(self, part)

        return self.disk._reach(
            "write", self.what, lambda: writing(data), lambda: writing(memoryview(data)[: max(len(data) // 2, 1)])
        )

    def truncate(self, size=None):
        if self.process.dead:
            return size

        def shortening():
            self.disk.touched(self.fileno())
            return io.FileIO.truncate(self, size)

        return self.disk._reach("truncate", self.what, shortening)


def _rmtree(real: dict[str, Any], folder: Path) -> None:
    for where, folders, files in os.walk(folder, topdown=False):
        for name in files:
            real["unlink"](os.path.join(where, name))
        for name in folders:
            real["rmdir"](os.path.join(where, name))
    real["rmdir"](folder)
