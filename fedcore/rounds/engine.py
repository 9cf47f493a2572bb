"""The engine: runs a method round by round, on any backend, and is the only place that charges, draws and publishes.

One round:

    message -> [map blocks -> reduce] -> (private: values -> charge -> draw -> publish) -> server_update -> commit

The engine knows nothing of Prefect or Dask; `tasks/` gives it a Dask backend and calls `answer` and `move` as tasks.
"""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from secrets import token_hex
from typing import Any, Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from fedcore.errors import FedcoreError, RunError, SensitivityError, UnplannedRelease, WorkerFailed
from fedcore.population.blocks import ClientBlock, leaves
from fedcore.population.store import Population
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.caches import AHEAD, BLOCKS, MEMORIES
from fedcore.rounds.method import Memory, Message, Method, RoundInfo
from fedcore.rounds.statistics import IntegerSum, KeyedIntegerSum, Statistics, merge, merge_all, values
from fedcore.runs.store import Run
from fedcore.storage import files
from fedcore.storage.arrays import read_values, write_values
from fedcore.storage.files import Place, place

DEFAULT_CACHE_BYTES = 512 * 2**20
DEFAULT_WHOLE_BYTES = 512 * 2**20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
AHEAD_BYTES = 64 * 2**20  # a block that is larger, decoded, is read when it is needed, so that only one is in memory

# A commit flushes files to the disk, which takes longer than a cheap round. Nothing that a run without noise has done
# is lost for good: its rounds come out the same when they are made again.
COMMIT_SECONDS = 0.5


# --- where clients are answered -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Where a worker finds the data of a round: paths and versions, never data.

    memory_in, memory_out: folders or URLs of the clients' memories before and after this round, or None
    cache_bytes: how much of decoded blocks and memories a process may keep
    whole_bytes: a block of dense rows that is larger, decoded, is read while it is used, if the method can do with that
    durable: whether the memories of this round are to be flushed to the disk
    training: names the course of a training in which a process may use what it kept of its own answers
    """

    population: str
    version: int
    memory_in: str | None = None
    memory_out: str | None = None
    cache_bytes: int = DEFAULT_CACHE_BYTES
    whole_bytes: int = DEFAULT_WHOLE_BYTES
    durable: bool = True
    training: str = ""


def peak_memory() -> int:
    """Peak resident bytes of this process."""
    try:  # ru_maxrss of a process that was forked begins with what its parent held
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_populations: dict[tuple[str, int], Population] = {}


def _population(source: Source) -> Population:
    key = (source.population, source.version)
    if key not in _populations:
        _populations[key] = Population.open(source.population, version=source.version)
    return _populations[key]


@cache
def _blas() -> ThreadpoolController:
    """The BLAS of this process; looking for it takes as long as a small block's work, so it is done once."""
    return ThreadpoolController()


@cache
def keep_freed_memory() -> None:
    """glibc hands freed megabytes back to the system, and leaf after leaf, round after round then faults their pages in
    anew, which can take as long as the arithmetic. This process keeps some of it instead.
    """
    with suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, 128 * 2**20)
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)


@contextmanager
def answering(method: Method, index: int) -> Iterator[None]:
    """One BLAS thread, so that results have the same bits everywhere; and in a private run an error that is not one of
    ours is renamed without its text, because a traceback could show what must not be seen.
    """
    keep_freed_memory()
    try:
        with _blas().limit(limits=1):
            yield
    except FedcoreError:
        raise
    except Exception as error:
        if not method.private:
            raise
        raise WorkerFailed(
            f"block {index} failed with {type(error).__name__}; its details are withheld, because the run is private.",
            "Verify the population, then resume.",
        ) from None


def block_for(method: Method, source: Source, population: Population, index: int) -> ClientBlock:
    """Methods that say `streams_rows` take rows of which only parts become arrays; the others get every block whole."""
    if method.streams_rows and population.kind == "rows" and (population.decoded_bytes(index) > source.whole_bytes):
        return population.stream(index)
    key = (population.id, source.version, index)
    return BLOCKS.get(key, partial(AHEAD.take, key, partial(population.read, index)), source.cache_bytes)


@dataclass(frozen=True)
class Answer:
    """What a worker is asked to do with each of its blocks: `answer_block`."""

    method: Method
    source: Source

    def __call__(self, message: Message, index: int) -> Statistics:
        return answer_block(self.method, self.source, message, index)

    def expect(self, index: int) -> None:
        """This block is asked for after the one that comes now; it can be read meanwhile."""
        population = _populations.get((self.source.population, self.source.version))
        if population is None or not waits(population) or population.decoded_bytes(index) > AHEAD_BYTES:
            return
        key = (population.id, self.source.version, index)
        if key not in BLOCKS.blocks:
            AHEAD.expect(key, partial(population.read, index))


def waits(population: Population) -> bool:
    """Whether reading is mostly waiting. Files of this machine are not: reading them ahead takes turns with the work
    for cores and caches, and made rounds a tenth slower.
    """
    return files.is_remote(population.path)


def answer_all(
    function: Callable[[Message, int], Statistics], message: Message, blocks: Iterable[int], then: int | None = None
) -> Iterator[Statistics]:
    """function(message, block) for one block after the other. then: the block that this process is asked for next."""
    blocks, expect = list(blocks), getattr(function, "expect", None)
    for block, following in zip(blocks, [*blocks[1:], then], strict=True):
        if expect is not None and following is not None:
            expect(following)
        yield function(message, block)


def answer_block(method: Method, source: Source, message: Message, index: int) -> Statistics:
    """The statistics of one block: leaf by leaf, in order. Idempotent: a block may be computed twice."""
    with answering(method, index):
        population = _population(source)
        block = block_for(method, source, population, index)
        memory = _memory(source, index, block.clients) if source.memory_in else None
        total, kept = None, []
        for leaf in leaves(block, population.clients_per_leaf):
            start = leaf.first - block.first
            mine = None if memory is None else {k: v[start : start + leaf.clients] for k, v in memory.items()}
            statistics, new = method.client_update(message, leaf, mine)
            total = merge(total, statistics)
            kept.append({} if new is None else new)
        if any(part.keys() != kept[0].keys() for part in kept):
            raise ValueError(f"leaves of block {index} remember different things")
        if source.memory_out and any(kept):
            # In the order that a file gives them back in: other orders have other last bits in products.
            together = {name: np.ascontiguousarray(np.concatenate([part[name] for part in kept])) for name in kept[0]}
            write_values(memory_file(source.memory_out, index), together, durable=source.durable)
            if source.training:
                MEMORIES.keep((source.training, source.memory_out, index), together, source.cache_bytes - BLOCKS.bytes)
        return total


def _memory(source: Source, index: int, clients: int) -> Memory:
    kept = MEMORIES.take((source.training, source.memory_in, index)) if source.training else None
    return read_memory(source.memory_in, index, clients) if kept is None else kept


def memory_file(folder: str | Place, index: int) -> Place:
    """Where the memories of the clients of one block are."""
    return place(folder) / f"{index:06d}.zip"


def read_memory(folder: str | Place, index: int, clients: int) -> Memory:
    """The memories of the clients of one block. Raises RunError that names the block if its file is missing, damaged,
    or holds another number of clients.
    """
    try:
        memory = read_values(memory_file(folder, index))
        wrong = [name for name, array in memory.items() if np.shape(array)[:1] != (clients,)]
        if wrong:
            raise RunError(f"{wrong[0]!r} is not that of {clients} clients.", "Restore this file from a backup.")
    except RunError as error:
        raise RunError(
            f"the memories of the clients of block {index} after round {int(place(folder).name)} are lost: "
            f"{error.message}",
            error.remedy,
        ) from error
    return memory


class Backend(Protocol):
    def map_blocks(
        self,
        function: Callable[[Message, int], Statistics],
        message: Message,
        blocks: Sequence[int],
        sizes: Sequence[float] | None = None,
    ) -> Statistics:
        """function(message, block) for every block, merged in any order. sizes: of the blocks, by which they are shared
        out; None: all alike.
        """

    def memory_of_workers(self) -> list[int]:
        """Peak resident bytes of each process but this one that answers."""


class InProcessBackend:
    """One block after the other in this process."""

    def map_blocks(self, function, message, blocks: Iterable[int], sizes=None) -> Statistics:
        return merge_all(answer_all(function, message, blocks))

    def memory_of_workers(self) -> list[int]:
        """There are none."""
        return []


# --- what a private run needs ---------------------------------------------------------------------------------------


class Publisher(Protocol):
    """Charges, draws, publishes; see `fedcore.training.budget.LedgerPublisher`."""

    def published(self, planned: PlannedRelease) -> np.ndarray | None: ...

    def release(self, planned: PlannedRelease, grid_values: np.ndarray) -> np.ndarray: ...

    def head(self) -> dict: ...


# --- the driver -----------------------------------------------------------------------------------------------------


class Training:
    """A run in progress. `step` makes one round; `answer` and `move` are its two halves.

    Rounds of private runs are committed one by one, others at the latest COMMIT_SECONDS after the last commit, by the
    round that is then being made; the last round in any case.

    publisher: None for a run that is not private. plan: the planned releases of the run. sizes: of the blocks.
    """

    def __init__(
        self,
        method: Method,
        run: Run,
        state: Any,
        source: Source,
        blocks: Sequence[int],
        backend: Backend,
        plan: Sequence[PlannedRelease] = (),
        publisher: Publisher | None = None,
        sizes: Sequence[float] | None = None,
    ):
        self.method = method
        self.run = run
        self.state = state
        self.source = source
        self.blocks = blocks
        self.sizes = sizes
        self.backend = backend
        self.plan = {planned.name: planned for planned in plan}
        self.publisher = publisher
        self.pending: Mapping[str, Any] | None = None  # what `answer` got and `move` has not used yet
        self.seconds: dict[str, float] = {}
        self.marked = self.committed = time.perf_counter()
        self.done = run.round  # rounds made; `run.round` of them are committed
        self.rows: list[dict] = []  # of the metrics, of rounds that are not
        self.durable = True  # whether the memories of the last of them are flushed
        self.token = token_hex(8)

    @property
    def round(self) -> int:
        """The round that comes next, counted from 1."""
        return self.done + 1

    def step(self) -> RoundInfo | None:
        """One whole round; None when the method has finished, and all is committed."""
        return self.move() if self.answer() else None

    def answer(self) -> bool:
        """Get what the server will see: statistics, or published values if the method is private. False: finished.

        In a private run nothing raw outlives this call.
        """
        message = self.method.message(self.state)
        if message is None:
            self.commit()
            return False
        late = time.perf_counter() - self.committed >= COMMIT_SECONDS
        self.durable = self.method.private or late or self.round >= self.method.total_rounds(self.state)
        if not self.method.private:
            self.pending = values(self._timed("clients", self._map, message))
            return True
        planned = [release for release in self.plan.values() if release.round == self.round]
        stored = {release.name: self.publisher.published(release) for release in planned}
        if not planned or any(value is None for value in stored.values()):
            statistics = self._timed("clients", self._map, message)
            stored = self._timed("release", self._publish, message, statistics, planned)
        for name, value in stored.items():
            self.run.keep_release(name, value)
        self.pending = stored
        return True

    def move(self) -> RoundInfo:
        """server_update on what `answer` got, and the commit if it is time."""
        with _blas().limit(limits=1):  # its bits do not depend on the number of cores either
            state, info = self._timed("server", self.method.server_update, self.state, self.pending)
        row = {name: float(value) for name, value in info.scalars.items()}
        now = time.perf_counter()  # a round lasts from mark to mark, whatever the shell does in between
        self.seconds["round"], self.marked = now - self.marked, now
        row |= {f"seconds_{name}": round(value, 4) for name, value in self.seconds.items()}
        self.rows.append({"round": self.round, **row})
        if self.done > self.run.round:
            self.run.drop_memories(self.done)
        self.state, self.pending, self.seconds, self.done = state, None, {}, self.round
        if self.durable:
            self.commit()
        return info

    def commit(self) -> None:
        """Commit the rounds that are not yet."""
        if self.done == self.run.round:
            return
        head = {} if self.publisher is None else {"ledger_head": self.publisher.head()}
        if not self.durable:
            self.run.flush_memories(self.done)
        self.run.commit(self.done, self.state, self.rows, **head)
        self.rows, self.durable, self.committed = [], True, time.perf_counter()

    def _timed(self, name: str, function: Callable, *arguments):
        started = time.perf_counter()
        result = function(*arguments)
        self.seconds[name] = time.perf_counter() - started
        return result

    def _map(self, message: Message) -> Statistics:
        # What an attempt left that was not committed is written again, file by file, to the same values. It is not
        # removed: if another process has gone on with the run meanwhile, these are its clients' memories now.
        before, after = self._memories(), self.run.memory_folder(self.round)
        source = replace(
            self.source,
            memory_in=None if before is None else str(before),
            memory_out=str(after),
            durable=self.durable,
            training=self.token,
        )
        return self.backend.map_blocks(Answer(self.method, source), message, self.blocks, self.sizes)

    def _memories(self) -> Place | None:
        if self.done == self.run.round:
            return self.run.memories()
        folder = self.run.memory_folder(self.done)
        return folder if files.is_folder(folder) else None

    def _publish(self, message, statistics: Statistics, planned: Sequence[PlannedRelease]) -> dict[str, np.ndarray]:
        grid = self._quantise(message, statistics)
        if grid.keys() != {release.name for release in planned}:
            raise UnplannedRelease(
                f"round {self.round} wants to release {sorted(grid)}, the plan has {[p.name for p in planned]}."
            )
        for release in planned:
            value = grid[release.name]
            if not isinstance(value, np.ndarray) or value.dtype != np.int64 or value.shape != release.shape:
                raise SensitivityError(f"release {release.name!r} is not an int64 array of shape {release.shape}.")
        return {release.name: self.publisher.release(release, grid[release.name]) for release in planned}

    def _quantise(self, message, statistics: Statistics) -> dict[str, np.ndarray]:
        inexact = [n for n, s in statistics.items() if not isinstance(s, (IntegerSum, KeyedIntegerSum))]
        if inexact:
            raise SensitivityError(f"a private round may only use exact integer sums; {inexact} are not.")
        try:
            return self.method.release_values(message, statistics)
        except FedcoreError:
            raise
        except Exception as error:
            raise WorkerFailed(
                f"the sums of round {self.round} could not be put on the grid "
                f"({type(error).__name__}); details are withheld, because the run is private."
            ) from None
