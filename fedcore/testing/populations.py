"""Small random populations for conformance tests: several leaves and blocks, an empty client, and one with a single
row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from fedcore.population.blocks import ClientBlock, Kind, RowsBlock, counts_block
from fedcore.population.manifest import Halves
from fedcore.rounds.method import Message, Method

LEAF, BLOCK = 3, 6  # clients of each
EMPTY, SINGLE = 4, 7  # these clients have no rows, and a single one
LARGEST_COUNT = 2**50
LARGEST_NUMBER = 1e30  # in float32, with room for its sum


@dataclass(frozen=True)
class SmallPopulation:
    """Clients in memory.

    clients: for each client its (d,) whole counts, or its (n, d) float rows, NaN = missing
    heldout: the same clients' held-out counts or rows
    dtype:   that the rows are stored in, "float32" or "float64"
    leaf, block: clients of a leaf, and of a stored block
    halves:  what is declared to have been split into `clients` and `heldout`; None: nothing
    image:   (height, width) of the picture in a row; None: rows are no pictures
    """

    kind: Kind
    features: int
    clients: tuple[np.ndarray, ...]
    heldout: tuple[np.ndarray, ...]
    dtype: str = "float32"
    leaf: int = LEAF
    block: int = BLOCK
    halves: Halves | None = None
    image: tuple[int, int] | None = None

    @property
    def n_rows(self) -> int:
        """Rows, or tokens of counts, as a manifest says."""
        return sum(int(own.sum()) if self.kind == "counts" else len(own) for own in self.clients)

    def matrix(self, heldout: bool = False) -> Any:
        """What a `PopulationWriter` writes: a CSR matrix of counts, or (ptr, x) of rows."""
        return _matrix(self, self.heldout if heldout else self.clients)

    def leaves(
        self,
        clients: Sequence[np.ndarray] | None = None,
        leaf: int | None = None,
        heldout: Sequence[np.ndarray] | None = None,
    ) -> list[ClientBlock]:
        """These clients (default: those of the population) as leaves of this many clients. heldout: what is held out of
        each of them; None: the leaves have no held-out part.
        """
        found = self.clients if clients is None else tuple(clients)
        size = leaf or self.leaf
        starts = range(0, max(len(found), 1), size)
        return [
            self._leaf(found[at : at + size], None if heldout is None else heldout[at : at + size], at, number)
            for number, at in enumerate(starts)
        ]

    def scored_leaves(self) -> list[ClientBlock]:
        """The population's leaves with their held-out part."""
        return self.leaves(heldout=self.heldout)

    def leaves_for(self, method: Method[Any, Any], message: Message) -> list[ClientBlock]:
        """The population's leaves as the engine gives them to the method in this round."""
        return self.leaves(heldout=self.heldout if method.reads_heldout(message) else None)

    def _leaf(
        self, clients: Sequence[np.ndarray], heldout: Sequence[np.ndarray] | None, first: int, leaf: int
    ) -> ClientBlock:
        if self.kind == "counts":
            return counts_block(
                first, leaf, _matrix(self, clients), None if heldout is None else _matrix(self, heldout)
            )
        ptr, x = _matrix(self, clients)
        if heldout is None:
            return RowsBlock(first, leaf, ptr, x)
        return RowsBlock(first, leaf, ptr, x, RowsBlock(first, leaf, *_matrix(self, heldout)))


def _matrix(population: SmallPopulation, clients: Sequence[np.ndarray]) -> Any:
    """CSR, or (ptr, x)."""
    if population.kind == "counts":
        return scipy.sparse.csr_matrix(np.array(clients, np.int64).reshape(len(clients), population.features))
    ptr = np.concatenate([[0], np.cumsum([len(own) for own in clients])]).astype(np.int64)
    x = np.concatenate([np.zeros((0, population.features)), *clients])
    return ptr, x.astype(population.dtype)


def random_population(kind: Kind, seed: int = 0, clients: int = 22, features: int = 8) -> SmallPopulation:
    """Three sorts of clients; one is empty, one has a single row (or token) and one very much of one feature."""
    generator = np.random.Generator(np.random.Philox(seed))
    draw = _counts if kind == "counts" else _rows
    found, heldout = draw(generator, clients, features)
    return SmallPopulation(kind, features, tuple(found), tuple(heldout))


def _counts(generator: np.random.Generator, clients: int, features: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rates = generator.gamma(0.6, 2.0, (3, features)) + 0.05
    rates = rates[np.arange(clients) % 3] * generator.uniform(1.0, 5.0, (clients, 1))
    found, heldout = generator.poisson(rates), generator.poisson(rates)
    found[EMPTY], found[SINGLE] = 0, np.arange(features) == 0
    found[-1, 0] = 1000
    return list(found), list(heldout)


def _rows(generator: np.random.Generator, clients: int, features: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    centres = 4.0 * generator.normal(size=(3, features))
    shares = generator.dirichlet(np.ones(3), clients)
    sizes = generator.integers(8, 24, clients)
    sizes[EMPTY], sizes[SINGLE] = 0, 1

    def rows(share: np.ndarray, size: int) -> np.ndarray:
        return centres[generator.choice(3, size, p=share)] + generator.normal(size=(size, features))

    found = [rows(share, size) for share, size in zip(shares, sizes, strict=True)]
    heldout = [rows(share, size // 2) for share, size in zip(shares, sizes, strict=True)]
    return found, heldout


def odd_client(population: SmallPopulation, generator: np.random.Generator) -> np.ndarray:
    """A client that is valid and as unlike the others as it can be."""
    d = population.features
    if population.kind == "counts":
        one = np.arange(d) == generator.integers(d)
        return np.array(
            [
                np.zeros(d),
                one,
                one * 2**24 + one,  # beyond what float32 holds exactly
                one * LARGEST_COUNT // 4,
                np.full(d, 7),
                np.full(d, LARGEST_COUNT // (4 * d)),
                generator.integers(0, 500, d) * (generator.random(d) < 0.5),
            ][generator.integers(7)],
            np.int64,
        )
    direction = generator.normal(size=d)
    direction /= np.linalg.norm(direction)
    largest = LARGEST_NUMBER if population.dtype == "float32" else 1e200
    usual = population.clients[generator.integers(len(population.clients))]
    row = [
        np.zeros(d),
        direction * 10.0 ** generator.integers(-6, 9),
        direction * largest,
        np.full(d, largest),
        np.copysign(float(np.finfo(population.dtype).max), direction),
        np.where(generator.random(d) < 0.5, np.nan, direction),
        generator.normal(size=d),
        *usual[:1],
    ][generator.integers(7 + len(usual[:1]))]
    times = int(generator.choice([0, 1, 1, 1, 2, 9, 300, 3000]))
    rows = np.tile(row, (times, 1))
    return rows * np.where(np.arange(times) % 2, -1.0, 1.0)[:, None] if generator.random() < 0.3 else rows
