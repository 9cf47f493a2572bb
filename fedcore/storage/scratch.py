"""Temporary folders for data of people: removed in the end, and if their process was killed by the next one that makes
such a folder.

A process holds a lock in each of its folders for as long as it lives. The kernel releases it when the process ends, in
whatever way, so a folder whose lock can be taken has no process any more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

PREFIX = "fedcore-scratch-"
LOCK = "lock"  # the file in each of these folders that is locked
_scratch: set[Path] = set()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new local folder that only its user can read, and that is removed in the end. It is removed too when SIGTERM
    ends the process. Of processes that were killed otherwise, those that died before are cleared away here.

    Nothing in the folder has to survive this process, so this process makes none of it durable.
    """
    remove_dead()
    folder, lock = _locked_folder()
    _scratch.add(folder)
    try:
        with _removed_at_the_end(folder):
            yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:  # also if removing was interrupted: then the next one removes the rest
            _scratch.discard(folder)
            os.close(lock)


def is_scratch(path: Path) -> bool:
    """Whether the path is in a `scratch_folder` of this process."""
    return bool(_scratch) and not _scratch.isdisjoint((path, *path.parents))


def remove_dead() -> None:
    """Remove, as far as possible, the folders of this user's processes that are dead. Others are left as they are."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            with suppress(OSError):  # it is empty: its process has just made it, and makes another, or is dead
                folder.rmdir()
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _locked_folder() -> tuple[Path, int]:
    """(a new folder, the descriptor of its locked file). Another process may remove a folder before it is locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(FileNotFoundError):
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # it is being removed
                os.close(lock)
                continue
            except OSError:  # a file system without locks: no process can take this one either
                return folder, lock
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(folder / LOCK)):
                    return folder, lock
            os.close(lock)


@contextmanager
def _removed_at_the_end(folder: Path) -> Iterator[None]:
    """Inside, SIGTERM removes the folder and then ends the process as always; where nothing else handles it."""
    inside = threading.current_thread() is threading.main_thread()
    if not inside or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:  # and not a process that was forked from it
            shutil.rmtree(folder, ignore_errors=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
