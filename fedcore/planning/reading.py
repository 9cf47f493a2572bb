"""How long reading takes, and how much memory: blocks of a population are read and forgotten."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from fedcore.population import layout
from fedcore.population.blocks import ClientBlock, RowsBlock, leaves
from fedcore.population.store import TRAIN, Population
from fedcore.rounds.clients import Source, block_for
from fedcore.rounds.method import AnyMethod
from fedcore.storage import files


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """The most memory that was allocated inside beyond what there was before, into the list."""
    measured = [0]
    tracemalloc.start(1)
    try:
        yield measured
    finally:
        measured[0] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def entries_of(block: ClientBlock) -> int:
    """Rows, or stored counts."""
    return len(block.x) if isinstance(block, RowsBlock) else len(block.data)


def read_leaves(method: AnyMethod, population: Population) -> tuple[list[ClientBlock], float, float]:
    """The first leaf of a block with most clients and of that in the middle; seconds and peak memory of reading, for a
    byte. Both are 0 if blocks are read while they are used: the answers' own seconds hold it."""
    source = Source(population.location, population.version, cache_bytes=0)
    taken, seconds, size, peak = [], 0.0, 0, 0.0
    for index in _large_and_middle(population):
        decoded = max(population.decoded_bytes(index), 1)
        started = perf_counter()
        block = block_for(method, source, population, index)
        if not _streams(method, source, population, index):
            seconds, size = seconds + perf_counter() - started, size + decoded
            peak = peak or _peak_of_reading(population, index) / decoded
        taken.append(next(leaves(block, population.clients_per_leaf)))
    return (taken, seconds / size, peak) if size else (taken, 0.0, 0.0)


def stored_share(population: Population) -> float:
    """Stored bytes of the training part for each decoded byte, from a block with most clients."""
    large = _large(population)
    size = files.size(layout.block_folder(population.path, population.blocks[large].slot) / TRAIN)
    return size / max(population.decoded_bytes(large), 1)


def _streams(method: AnyMethod, source: Source, population: Population, index: int) -> bool:
    """Whether the block is read while it is used (`block_for`)."""
    return method.streams_rows and population.kind == "rows" and population.decoded_bytes(index) > source.stream_above


def _peak_of_reading(population: Population, index: int) -> int:
    with peak_bytes() as measured:
        population.read(index)
    return measured[0]


def _large_and_middle(population: Population) -> list[int]:
    middle = int(np.searchsorted(population.blocks.first, population.n_clients // 2, side="right")) - 1
    return list(dict.fromkeys((_large(population), middle)))


def _large(population: Population) -> int:
    """The first of the blocks with most clients: the first blocks of a population may hold few."""
    return int(np.where(population.blocks.void, 0, population.blocks.numbers["clients"]).argmax())
