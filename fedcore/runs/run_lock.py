"""The lock on the folder of a run (`fedcore.runs.store`), and removal of folders in which no run was completed.

In a folder the system locks the file `lock`, which a process gives back when it dies. Behind a URL, where no such lock
reaches, the object `holder.json` stands for it (`fedcore.storage.remote_lock`).
"""

from __future__ import annotations

import fcntl
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fedcore.errors import RunBusy
from fedcore.runs.run_files import HOLDER, START_FILE
from fedcore.storage import files
from fedcore.storage.arrays import writing
from fedcore.storage.files import Place, is_remote
from fedcore.storage.remote_lock import RemoteLock, holder_may_live

LOCK = "lock"
LOOKS, SECONDS_BETWEEN = 3, 0.02  # before a lock counts as that of a working process
UNBORN_SECONDS = 3600.0  # after which no process is still making a folder without run.json
Lock = RemoteLock | IO[Any]  # to be closed


def take(path: Place, take_over: bool = False) -> tuple[Lock, bool]:
    """The lock of the run in this folder, and whether it was taken from a holder on another host.

    take_over: take it even from such a holder that lives. Raises RunBusy if another live process holds the run,
    RunError if the lock cannot be written.
    """
    if is_remote(path):
        remote_lock = RemoteLock(path / HOLDER, f"run {path.name!r}")
        return remote_lock, remote_lock.take(take_over)
    with writing("the lock"):
        file = files.opened(path / LOCK, "w")
    for look in range(LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file, False
        except BlockingIOError:  # perhaps by a process that only looks (`is_held`), which takes no time
            time.sleep(SECONDS_BETWEEN if look + 1 < LOOKS else 0.0)
    file.close()
    raise RunBusy(f"another process is working on run {path.name!r}.", "Wait for it, or stop it.")


def is_held(path: Place) -> bool:
    """Whether some process works in the folder of this run, by one look. Behind a URL, a holder on another host counts
    as alive until a process that wants the run has watched it.
    """
    if is_remote(path):
        return holder_may_live(path / HOLDER)
    try:
        file = open(path / LOCK, "rb")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def is_unborn(path: Path) -> bool:
    """Whether a process died in this folder before there was a run.json, and left nothing else behind."""
    return path.is_dir() and not path.is_symlink() and all(_before_birth(name) for name in files.listing(path))


def _before_birth(name: str) -> bool:
    """Whether the file is in the folder before run.json is."""
    return name in (LOCK, START_FILE) or files.PARTIAL.fullmatch(name) is not None


def sweep_unborn(wanted: Path) -> None:
    """Remove, as far as possible, folders of runs whose process died before it had written run.json. These hold only a
    free lock and the start of the run, and were not changed for a while.

    wanted: the folder of a new run, which may also be there and be empty
    """
    for path in wanted.parent.iterdir():
        with suppress(OSError):
            if path.is_symlink() or not path.is_dir() or time.time() - path.stat().st_mtime < UNBORN_SECONDS:
                continue
            names = [file.name for file in path.iterdir()]
            if not all(_before_birth(name) for name in names):
                continue
            if LOCK not in names and path != wanted:  # an empty folder of another program
                continue
            with files.opened(path / LOCK, "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
