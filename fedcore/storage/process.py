"""Which process this is, and whether another one still lives: what locks and leases name as their holder; and giving
memory back to the system."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Holder:
    """A process. started: its start time, so that a re-used process id is not mistaken for it."""

    host: str
    pid: int
    started: float

    def alive(self, expired: bool) -> bool:
        """Whether the process is alive. On another host this is unknown: there it counts as alive until its lease has
        expired."""
        if self.host != this_host():
            return not expired
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 1.0
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:  # it exists
            return True


def this_host() -> str:
    """The name of this host or container, made unique: two of one name have different spaces of process ids."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return platform.node()


@cache
def boot_id() -> str:
    """Changes whenever this machine starts: process ids of before mean nothing then. Empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return ""


def this_process() -> Holder:
    """What names this process in a lock or a lease."""
    return Holder(this_host(), os.getpid(), psutil.Process().create_time())


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


@cache
def keep_freed_memory() -> None:
    """Keep some freed memory in this process. By default glibc returns freed megabytes to the system, most of all in
    Dask's workers, which request it. Every leaf, round and piece of a table then faults these pages in again, which can
    take as long as the arithmetic.
    """
    with suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, 128 * 2**20)
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
