"""The clients' side of a round, in whichever process answers: a block is read, its leaves answer, memories are written.

A `Source` says where the data of a round are; an `Answer` is the function that a backend maps over blocks.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from ctypes import PyDLL
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.machinery import PathFinder
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import scipy
from threadpoolctl import ThreadpoolController

from fedcore.errors import FedcoreError, MethodError, PopulationError, RunError, WorkerFailed, retired
from fedcore.population import kept_blocks
from fedcore.population.blocks import ClientBlock, CountsBlock, RowsBlock, counts_block, leaves
from fedcore.population.store import Population
from fedcore.rounds.caches import AHEAD, BLOCKS, MEMORIES, Key
from fedcore.rounds.method import AnyMethod, Memory, Message
from fedcore.rounds.statistics import FileDigests, Statistics, merge
from fedcore.storage import files, raw_arrays
from fedcore.storage.arrays import read_values, write_values
from fedcore.storage.files import Place, place
from fedcore.storage.process import keep_freed_memory
from fedcore.storage.ranges import Ranges

DEFAULT_CACHE_BYTES, MOST_CACHE_BYTES = 512 * 2**20, 2**50
DEFAULT_STREAM_ABOVE = 512 * 2**20
WRITTEN = "files of memories"  # name of the digests of what was written, among the statistics of the clients
T = TypeVar("T")
Answering = Callable[[Message, int], Statistics | None]  # of (message, block); None: no client is in the block
MOST_PARTS = 8  # of a leaf that are answered one by one: their overhead is then that of a copy
ZIPPED = ".zip"  # of files of memories of before there were raw arrays, which are not read any more
AHEAD_BYTES = 64 * 2**20  # a block that is larger, decoded, is read when it is needed, so that only one is in memory


@dataclass(frozen=True)
class Source:
    """Where a worker finds the data of a round: paths and versions, never data.

    memory_in, memory_out: folders or URLs of the clients' memories before and after this round, or None
    cache_bytes: how much of decoded blocks and memories a process may keep
    stream_above: a block of dense rows that is larger, decoded, is read while it is used, if the method can
    durable: whether the memories of this round are to be flushed to the disk; their names are when they are committed
    training: name of the training in which a process may use what it kept of earlier answers
    memory_digests: {name: digest} of the files in memory_in; None: not known, so not compared
    ranges: index ranges [first, stop) of the clients who take part, ascending with gaps between them; None: all clients
    manifest: `Population.checksum` of the version that is read; None: not compared
    """

    population: str
    version: int
    memory_in: str | None = None
    memory_out: str | None = None
    cache_bytes: int = DEFAULT_CACHE_BYTES
    stream_above: int = DEFAULT_STREAM_ABOVE
    durable: bool = True
    training: str = ""
    memory_digests: Mapping[str, str] | None = None
    ranges: Ranges | None = None
    manifest: str | None = None

    @classmethod
    def of(cls, population: Population) -> Source:
        """All clients of this version of a population, for one pass that keeps no block."""
        return cls(population.location, population.version, cache_bytes=0, manifest=population.checksum)


def peak_memory() -> int:
    """Peak resident bytes of this process."""
    try:  # ru_maxrss of a process that was forked begins with what its parent held
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


_populations: dict[tuple[str, int, str | None], Population] = {}


def population_of(source: Source) -> Population:
    """The population, opened once in a process. Raises PopulationError if the stored version of this number is not the
    one that the source names."""
    key = (source.population, source.version, source.manifest)
    if key not in _populations:
        population = Population.open(source.population, version=source.version)
        if source.manifest not in (None, population.checksum):
            raise PopulationError(
                f"Version {source.version} of {source.population} is not the one that this run reads: the "
                "population was changed, or branched.",
                "Let all workers see the same folder; restore the population from a backup if it was changed.",
            )
        _populations[key] = population
    return _populations[key]


@cache
def _blas() -> ThreadpoolController:
    """The BLAS of this process, and the other one of SciPy, which is loaded first: only what is there is found. Looking
    for them takes as long as a small block's work, so it is done once.
    """
    calls_it = PathFinder.find_spec("_fblas", [f"{folder}/linalg" for folder in scipy.__path__])
    if calls_it is not None and calls_it.origin is not None:
        PyDLL(calls_it.origin)  # without SciPy's Python modules, which take longer than a small run
    else:  # another SciPy than those that are known
        import_module("scipy.linalg")
    return ThreadpoolController()


_limiting, _limited = Lock(), 0  # how many threads of this process want BLAS to take one


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside it BLAS takes one thread, so that results have the same bits on any number of cores.

    The limit may be one of the whole process or of each thread, as BLAS was built: every thread sets it, and only one
    that leaves no other inside lifts it. In a process that others never left at once it may then stay, which is slower,
    and no bit is another.
    """
    global _limited
    with _limiting:
        limit = _blas().limit(limits=1)
        limit.__enter__()
        _limited += 1
    try:
        yield
    finally:
        with _limiting:
            _limited -= 1
            if not _limited:
                limit.__exit__(None, None, None)


@contextmanager
def redacted(method: AnyMethod, index: int) -> Iterator[None]:
    """One BLAS thread, so that results have the same bits everywhere; and in a private run an error that is not one of
    ours is renamed without its text, because a traceback could show what must not be seen, and NumPy does not warn:
    whether it would is a fact about rows.
    """
    keep_freed_memory()
    try:
        with one_blas_thread(), np.errstate(all="ignore") if method.private else nullcontext():
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


def block_for(
    method: AnyMethod, source: Source, population: Population, index: int, heldout: bool = False
) -> ClientBlock:
    """Methods that say `streams_rows` take rows of which only parts become arrays; the others get every block whole.

    heldout: with the held-out part of its clients, if any of the population has one.
    """
    if method.streams_rows and population.kind == "rows" and (population.decoded_bytes(index) > source.stream_above):
        return population.stream(index)
    block = read_block(population, index, heldout, source.cache_bytes)
    if not isinstance(block, CountsBlock):
        return block
    key = block_key(population, index, heldout)
    return replace(block, aside=BLOCKS.aside(key, source.training, source.cache_bytes))


def read_block(
    population: Population, index: int, heldout: bool = False, cache_bytes: int | None = None
) -> ClientBlock:
    """Block `index`: one that this process keeps, one that `expect_block` began to read, one that the processes of this
    machine share (`fedcore.population.kept_blocks`), or the stored one, in this order.

    heldout: with the held-out part of its clients, if the population has one.
    cache_bytes: how much of decoded blocks this process may keep; 0: none, nor is a kept one used; None: no more

    Raises what `Population.read` does.
    """
    key, read = _reading(population, index, heldout)
    read = partial(AHEAD.take, key, read)
    if cache_bytes is not None:
        return BLOCKS.get(key, read, cache_bytes)
    return BLOCKS.blocks.get(key) or read()


def expect_block(population: Population, index: int, heldout: bool, spare: bool) -> None:
    """Begin to read block `index`, which `read_block` is called for after the one that comes now. spare: whether a core
    is left for that. Large blocks are not read ahead, nor blocks of files of this machine if no core is left."""
    if population.decoded_bytes(index, heldout) > AHEAD_BYTES:
        return
    if not worth_reading_ahead(files.is_remote(population.path), spare):
        return
    key, read = _reading(population, index, heldout)
    if key not in BLOCKS.blocks:
        AHEAD.expect(key, read)


def _reading(population: Population, index: int, heldout: bool) -> tuple[Key, Callable[[], ClientBlock]]:
    """The name of a decoded block in caches, and what reads it."""
    heldout = heldout and population.has_heldout
    read = partial(population.read, index, True) if heldout else partial(population.read, index)
    return block_key(population, index, heldout), partial(kept_blocks.shared, population, index, heldout, read)


def block_key(population: Population, index: int, heldout: bool = False) -> Key:
    """By which a process keeps a decoded block: what is in its slot, not where it is or which version names it: two
    copies of a population may have versions of one number that differ. heldout: with the held-out part.
    """
    entry = population.blocks[index]
    return population.id, index, entry.first, entry.clients, entry.fingerprint, heldout


@dataclass(frozen=True)
class Answer:
    """What a worker is asked to do with each of its blocks: `answer_block`."""

    method: AnyMethod
    source: Source

    def __call__(self, message: Message, index: int) -> Statistics | None:
        return answer_block(self.method, self.source, message, index)

    def expect(self, message: Message, index: int, spare: bool) -> None:
        """This block is asked for after the one that comes now; it can be read meanwhile. spare: whether a core is left
        for that."""
        population = _populations.get((self.source.population, self.source.version, self.source.manifest))
        if population is not None and not nobody_takes_part(self.source, population, index):
            expect_block(population, index, self.method.reads_heldout(message), spare)


def worth_reading_ahead(remote: bool, spare: bool) -> bool:
    """Whether a thread should read the next block: if reading is mostly waiting, or a core is left for it. Where each
    core answers already, reading files of this machine ahead takes turns with the work, and rounds become slower.
    """
    return remote or spare


def answer_all(
    function: Callable[[Message, int], T],
    message: Message,
    blocks: Iterable[int],
    then: int | None = None,
    spare: bool = False,
) -> Iterator[T]:
    """function(message, block) for one block after the other. then: the block that this process is asked for next;
    spare: whether this machine has more cores than processes that answer.
    """
    blocks, expect = list(blocks), getattr(function, "expect", None)
    try:
        for block, following in zip(blocks, [*blocks[1:], then], strict=True):
            if expect is not None and following is not None:
                expect(message, following, spare)
            yield function(message, block)
    except BaseException:  # no one will ask for what was read ahead
        AHEAD.clear()
        raise


def answer_block(method: AnyMethod, source: Source, message: Message, index: int) -> Statistics | None:
    """The statistics of one block: leaf by leaf, in order. Idempotent: a block may be computed twice."""
    with redacted(method, index):
        population = population_of(source)
        method.check_message(message, population.features)
        block = participants_of(method, source, population, index, method.reads_heldout(message))
        memory = None if source.memory_in is None else _memory(source, source.memory_in, index, block.clients)
        total, remembered, written = None, _Remembered(index, block.clients, source.memory_out is not None), {}
        for leaf in participating(block, population.clients_per_leaf, source.ranges):
            start = leaf.first - block.first
            mine = None if memory is None else {k: v[start : start + leaf.clients] for k, v in memory.items()}
            statistics, new = checked_answer(method, method.client_update(message, leaf, mine))
            total = merge(total, statistics)
            remembered.add({} if new is None else new)
        if source.memory_out and (together := remembered.together()):
            file = memory_file(source.memory_out, index)
            written[file.name] = write_values(file, together, durable=source.durable, name=False)
            if source.training:
                MEMORIES.keep((source.training, source.memory_out, index), together, source.cache_bytes - BLOCKS.bytes)
        return total if total is None or not source.memory_out else {**total, WRITTEN: FileDigests(written)}


class _Remembered:
    """The memories of a block's clients, put together leaf by leaf while each is in the cache, in the order that a file
    gives them back in: other orders have other last bits in products. wanted: whether they will be needed."""

    def __init__(self, block: int, clients: int, wanted: bool) -> None:
        self.block, self.clients, self.wanted = block, clients, wanted
        self.kinds: dict[str, tuple[tuple[int, ...], np.dtype]] | None = None
        self.arrays: dict[str, np.ndarray] = {}
        self.filled = 0

    def add(self, memory: Memory) -> None:
        """Of the next clients. Raises ValueError if they remember other things than those before."""
        kinds = {name: (values.shape[1:], values.dtype) for name, values in memory.items()}
        if self.kinds is None:
            self.kinds = kinds
            if self.wanted:
                self.arrays = {name: np.empty((self.clients, *shape), of) for name, (shape, of) in kinds.items()}
        if kinds != self.kinds:
            raise ValueError(f"leaves of block {self.block} remember different things")
        stop = self.filled
        for name, array in self.arrays.items():
            stop = self.filled + len(memory[name])
            array[self.filled : stop] = memory[name]
        self.filled = stop

    def together(self) -> dict[str, np.ndarray]:
        return {name: array[: self.filled] for name, array in self.arrays.items()}


def nobody_takes_part(source: Source, population: Population, index: int) -> bool:
    """Whether none of the clients of the block does."""
    entry = population.blocks[index]
    return source.ranges is not None and not within(source.ranges, entry.first, entry.first + entry.clients)


def participants_of(
    method: AnyMethod, source: Source, population: Population, index: int, heldout: bool = False
) -> ClientBlock:
    """The block; or, if no client in it takes part, one without clients at its place, for which nothing is read."""
    if not nobody_takes_part(source, population, index):
        return block_for(method, source, population, index, heldout)
    entry = population.blocks[index]
    leaf = entry.first // population.clients_per_leaf
    if population.kind == "counts":
        return counts_block(entry.first, leaf, scipy.sparse.csr_matrix((0, population.features)))
    return RowsBlock(
        entry.first, leaf, np.zeros(1, np.int64), np.empty((0, population.features), population.manifest.dtype)
    )


def participating(block: ClientBlock, clients_per_leaf: int, ranges: Ranges | None) -> Iterator[ClientBlock]:
    """The leaves of the block, cut at the ranges of the clients who take part. Every part of a leaf keeps its place. A
    block without clients is one part, so that the answer of no client has statistics too.

    If a leaf would fall into many parts, the clients who take part are put together instead, which takes a copy. Exact
    sums are the same.
    """
    if block.clients == 0:
        yield block
    for leaf in leaves(block, clients_per_leaf):
        if ranges is None:
            yield leaf
            continue
        parts = within(ranges, leaf.first, leaf.first + leaf.clients)
        if len(parts) <= MOST_PARTS or (isinstance(leaf, RowsBlock) and not isinstance(leaf.x, np.ndarray)):
            for first, stop in parts:
                yield leaf.slice(first - leaf.first, stop - leaf.first, leaf.leaf)
            continue
        chosen = np.zeros(leaf.clients, bool)
        for first, stop in parts:
            chosen[first - leaf.first : stop - leaf.first] = True
        yield leaf.take(chosen)


def within(ranges: Ranges, first: int, stop: int) -> Ranges:
    """The parts of the index ranges [low, high) that are in [first, stop)."""
    return tuple((max(low, first), min(high, stop)) for low, high in ranges if low < stop and first < high)


def checked_answer(method: AnyMethod, answer: Any) -> tuple[Statistics, Memory | None]:
    """What `client_update` returned. Raises MethodError if it is not (statistics by name, memory or None), or if a
    private method returns a memory.
    """
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise MethodError(f"client_update of method {method.name!r} does not return two values: statistics and memory.")
    statistics, memory = answer
    if not isinstance(statistics, dict) or not all(hasattr(value, "merge") for value in statistics.values()):
        raise MethodError(
            f"client_update of method {method.name!r} does not return statistics by name.",
            "Each is one of fedcore.rounds.statistics, such as FloatSum.at(block.leaf, array).",
        )
    if memory is not None and not isinstance(memory, dict):
        raise MethodError(f"client_update of method {method.name!r} returns a memory that is neither a dict nor None.")
    if method.private and memory:
        raise MethodError(
            f"client_update of method {method.name!r}, which is private, lets clients remember something.",
            "Memories are exact values of clients in the folder of the run, and the run's head and the ledger would "
            "hold digests of them. A private method has none.",
        )
    return statistics, memory


def _memory(source: Source, folder: str, index: int, clients: int) -> Memory:
    kept = MEMORIES.take((source.training, folder, index)) if source.training else None
    return read_memory(folder, index, clients, source.memory_digests) if kept is None else kept


def memory_file(folder: str | Place, index: int, suffix: str = raw_arrays.SUFFIX) -> Place:
    """Where the memories of the clients of one block are."""
    return place(folder) / f"{index:06d}{suffix}"


def read_memory(folder: str | Place, index: int, clients: int, digests: Mapping[str, str] | None) -> Memory:
    """The memories of the clients of one block. Raises RunError that names the block if its file is missing, damaged,
    another one, or holds another number of clients.

    digests: as `Run.memory_digests` gives them; None: they are not known
    """
    file, zipped = memory_file(folder, index), memory_file(folder, index, ZIPPED)
    if files.is_file(zipped) if digests is None else zipped.name in digests:
        raise RunError(*retired(f"the file {zipped.name!r} of clients' memories", "a zip file"))
    try:
        memory = read_values(file, None if digests is None else digests.get(file.name, "none"))
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
