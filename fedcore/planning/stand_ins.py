"""Simulated clients in place of those of a population, for plans of private runs.

Such a plan must not depend on people's data. So its trial rounds use clients that follow from public facts: kind,
columns, clients of a leaf, whether counts have two halves, and rows that the method draws from its settings
(`Method.likely_rows`).
The number of clients and the data of each are not public either. A plan uses the numbers that the owner declares, or
that the plan's caller passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import scipy

from fedcore.errors import ConfigError
from fedcore.population.blocks import ClientBlock, CountsBlock, RowsBlock, counts_block
from fedcore.population.manifest import Provenance
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.randomness import stream
from fedcore.rounds.method import AnyMethod, PublicFacts
from fedcore.training.budget import nominal_clients

ASSUMED_ROWS = 1  # of a client, where no number is declared
COUNT_BYTES = 8  # of a stored count with its token, decoded
LARGEST_LEAF = 64 * 2**20  # bytes of stand-ins that answer together, but for a single client
LARGEST_CLIENT = 2**20  # entries of a single one: more take proportionally longer
STORED_BYTES = 8 * 2**20  # of stand-ins that are written and read, decoded, but for a single client
PURPOSE = "planning/stand-ins"


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a population, as a plan takes it.

    clients: how many; entries: of one of them: rows, or stored counts; entry_bytes: of one, decoded
    clients_per_leaf, features: of the schema; dtype: of rows
    """

    clients: int
    entries: float
    entry_bytes: int
    clients_per_leaf: int
    features: int
    dtype: str

    @property
    def client_bytes(self) -> float:
        """Decoded."""
        return self.entries * self.entry_bytes


def public_shape(
    method: AnyMethod, population: Population, clients: int | None = None, rows: int | None = None
) -> Shape:
    """What a plan of a private run takes of the population: its public facts. clients, rows: as if it had this many
    clients, with this many rows each (different tokens, of counts); None: the declared numbers, ASSUMED_ROWS if no
    number of rows is.

    Raises ConfigError if no number of clients is declared.
    """
    nominal = clients or nominal_clients(method, population)
    if nominal is None:
        raise ConfigError(
            f"population {population.path.name!r} has no declared number of clients, and a plan of a private run does "
            "not use the exact one.",
            "Pass --clients N, or declare it at ingest (`--declared-clients N`).",
        )
    manifest = population.manifest
    entries = rows or manifest.nominal_rows or ASSUMED_ROWS
    if manifest.kind == "counts":
        entries = min(entries, manifest.features)
    entry_bytes = np.dtype(manifest.dtype).itemsize * manifest.features if manifest.dtype else COUNT_BYTES
    return Shape(
        nominal, entries, entry_bytes, population.clients_per_leaf, population.features, manifest.dtype or "float32"
    )


def stand_ins(method: AnyMethod, public: PublicFacts, shape: Shape, clients: int, leaf: int = 0) -> ClientBlock:
    """A leaf of simulated clients. The same call returns the same ones; another leaf has others."""
    generator = stream(public.seed, PURPOSE, leaf)
    mean = min(shape.entries, LARGEST_CLIENT)
    if public.kind == "counts":
        mean = min(mean, shape.features / 1.5)
    sizes = np.floor(mean * generator.uniform(0.5, 1.5, clients) + generator.random(clients)).astype(np.int64)
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    first = leaf * shape.clients_per_leaf
    if public.kind == "counts":
        counts = _counts(generator, ptr, shape.features)
        halves = _counts(generator, ptr, shape.features) if public.halves is not None else None
        return counts_block(first, leaf, counts, halves)
    rows = method.likely_rows(public, int(ptr[-1]), generator)
    return RowsBlock(first, leaf, ptr, np.ascontiguousarray(rows, shape.dtype))


@contextmanager
def stored_stand_ins(method: AnyMethod, public: PublicFacts, shape: Shape, clients: int) -> Iterator[Population]:
    """A population of one block of simulated clients in a temporary folder. clients: of a block; fewer where they are
    large."""
    most = max(1, min(clients, int(STORED_BYTES / max(shape.client_bytes, 1.0))))
    block = stand_ins(method, public, shape, most)
    matrix = block.csr if isinstance(block, CountsBlock) else (block.ptr, block.x)
    with TemporaryDirectory() as folder:
        with PopulationWriter(
            Path(folder) / "stand-ins",
            public.kind,
            shape.features,
            dtype=shape.dtype,
            clients_per_leaf=shape.clients_per_leaf,
            clients_per_block=clients,
        ) as writer:
            writer.write([str(number) for number in range(most)], matrix)
            population = writer.commit(Provenance())
        yield population


def most_clients(shape: Shape) -> int:
    """Of a leaf of stand-ins: those of a whole leaf, unless they take too much memory."""
    each = min(shape.entries, LARGEST_CLIENT) * shape.entry_bytes
    return max(1, min(shape.clients_per_leaf, shape.clients, int(LARGEST_LEAF / max(each, 1.0))))


def _counts(generator: np.random.Generator, ptr: np.ndarray, features: int) -> scipy.sparse.csr_matrix:
    """Small counts, most of them of the first tokens, in different places for each client. No client may have more
    than `features` of them."""
    sizes, entries = np.diff(ptr), int(ptr[-1])
    client = np.repeat(np.arange(len(sizes)), sizes)
    draws = generator.random(entries)
    draws = draws[np.lexsort((draws, client))]  # ascending for each client, so that tokens are
    room = (features - sizes)[client]
    tokens = np.arange(entries) - np.repeat(ptr[:-1], sizes) + np.floor((room + 1) * draws**2).astype(np.int64)
    counts = generator.geometric(0.5, entries)
    return scipy.sparse.csr_matrix((counts, tokens.astype(np.int32), ptr), shape=(len(sizes), features))
