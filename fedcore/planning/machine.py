"""What a machine takes for a file, a commit, a start and exact noise: probes of `fedcore.planning.calibration`, no
data."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np

from fedcore.errors import ConfigError
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.privacy.plan import PlannedRelease
from fedcore.runs.store import Run
from fedcore.storage import files, raw_arrays
from fedcore.storage.arrays import read_values, state_values, write_values
from fedcore.storage.files import Place, is_remote

NOISE_CELLS = 4000
FILES = 3  # of each size that are timed
# The kernel counts a process's largest size from before its program was loaded, when it was a copy of this one; the
# size of its present memory begins afresh, where the system reports it.
FRESH = """
from time import perf_counter
started = perf_counter()
import sys
from pathlib import Path
from fedcore.rounds.clients import peak_memory
from fedcore.methods.registry import method_class

def size():
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    kept = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return kept[0] * 1024 if kept else peak_memory()

method_class(sys.argv[1])
print(perf_counter() - started, size())
import fedcore.cli
import fedcore.operations.series
import fedcore.training.session
import fedcore.evaluation.report
import rich.progress
if "private" in sys.argv:
    import flint
print(size())
"""


def _seconds(function: Callable[..., object], *arguments: object) -> float:
    started = perf_counter()
    function(*arguments)
    return perf_counter() - started


def work_seconds(function: Callable[..., object], *arguments: object) -> float:
    started = process_time()
    function(*arguments)
    return process_time() - started


class Disk(NamedTuple):
    """Seconds for a byte of memories: to write it, to have it on the disk, to read it; for a small file of them; for a
    commit. state: bytes of a stored state."""

    write: float
    flush: float
    read: float
    file: float
    commit: float
    state: int


def written(runs: Place, each: float, state: Any, clients: int) -> Disk:
    """Zeros of the shapes of memories and state, written as a run would and removed.

    each: bytes that a client remembers; state: of the server; clients: of a block.
    """
    zeros = replace(
        state,
        **{name: np.zeros_like(value) for name, value in state_values(state).items() if isinstance(value, np.ndarray)},
    )
    with _beside(runs) as folder:
        small, large = (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)
        size = int(min(each * clients, 64 * 2**20)) // 8
        if size:
            small = _file_seconds(folder / f"small{raw_arrays.SUFFIX}", 1)
            large = _file_seconds(folder / f"large{raw_arrays.SUFFIX}", size)
        run = Run.create(folder, {"run_id": "timed"})
        try:
            taken = [_seconds(run.commit, number, zeros) for number in range(4)]
            stored = files.size(run.state_file(run.round))
        finally:
            run.unlock()
    write, flush, read = (max(0.0, more - less) / max(8 * size, 1) for more, less in zip(large, small, strict=True))
    return Disk(write, flush, read, small[0], median(taken), stored)


def _file_seconds(path: Place, numbers: int) -> tuple[float, float, float]:
    """Median seconds of writing `numbers` zeros, of flushing and of reading them."""
    zeros, found = {"zeros": np.zeros(numbers)}, []
    for _ in range(FILES):
        found.append(
            (
                _seconds(partial(write_values, path, zeros, durable=False, name=False)),
                0.0 if is_remote(path) else _seconds(files.flush, path),
                _seconds(read_values, path),
            )
        )
    write, flush, read = (median(column) for column in zip(*found, strict=True))
    return write, flush, read


@contextmanager
def _beside(runs: Place) -> Iterator[Place]:
    """A folder on the same disk or in the same bucket, removed at the end."""
    if is_remote(runs):
        folder = runs / f"plan-{token_hex(6)}"
        try:
            yield folder
        finally:
            files.remove(folder)
        return
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=existing(runs)) as name:
        yield Path(name)


def existing(folder: Place) -> Path:
    """The folder, or the nearest one above it that there is."""
    folder = Path(str(folder)).absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def exact_noise(plan: Sequence[PlannedRelease]) -> tuple[float, float]:
    """Seconds of work of exact noise for a cell, on zeros: of the least or the largest scale, whichever takes longer;
    and of the first draw of a process beyond that."""
    if not plan:
        return 0.0, 0.0
    zeros, slowest = np.zeros(NOISE_CELLS, np.int64), 0.0
    first: float | None = None
    for release in (min(plan, key=lambda r: r.scale), max(plan, key=lambda r: r.scale)):
        timed = replace(release, shape=(NOISE_CELLS,))
        begin = work_seconds(SecureNoise().draw, timed, "", zeros)
        seconds = work_seconds(SecureNoise().draw, timed, "", zeros)
        first = max(0.0, begin - seconds) if first is None else first
        slowest = max(slowest, seconds / NOISE_CELLS)
    return slowest, first or 0.0


def started_process(method: str, private: bool) -> tuple[float, int, int]:
    """(seconds of the imports, bytes after them, bytes with a run) of a fresh process that is to answer clients."""
    asked = [sys.executable, "-P", "-c", FRESH, method, *(["private"] if private else [])]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    try:
        seconds, size, flow = done.stdout.split()
        return float(seconds), int(size), int(flow)
    except ValueError:
        raise ConfigError(
            f"a fresh Python process cannot import the method {method!r}.", "Fix the installation."
        ) from None
