"""What becomes of memory that this process has used and freed."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


@cache
def keep_freed_memory() -> None:
    """glibc hands freed megabytes back to the system, most of all in Dask's workers, where it is told to. Leaf after
    leaf, round after round, piece after piece of a table then faults their pages in anew, which can take as long as the
    arithmetic. This process keeps some of it instead.
    """
    with suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, 128 * 2**20)
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
