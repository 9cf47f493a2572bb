"""Groups of clients of a leaf whose samples are stacked into one array, and read tile by tile.

Clients of equal rank are sorted by size and put together; shorter ones are padded with samples of zero, which have
codes of zero and add nothing to any sum. A client that is too large for a stack is a group of its own and is read in
tiles, from memory or from the store alike: the tiles depend on the sizes only, so the bits do not depend on where the
rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from fedcore.errors import PopulationError
from fedcore.population.blocks import RowsBlock

PADDING = 0.15  # share of a stack's samples that may be padding
STACK_NUMBERS = 2**18  # float64 numbers in the samples of a stack: what is made of them should stay in the cache
TILE_NUMBERS = 2**20  # float64 numbers in a tile, and in a client that is a group of its own and is kept: 8 MiB


@dataclass(slots=True)
class Group:
    """Clients that are treated together.

    clients: (c,) int64 their places in the leaf
    sizes:   (c,) float64 samples of each
    rank:    atoms of each
    rows:    samples of the largest of them, to which the others are padded
    """

    block: RowsBlock
    clients: np.ndarray
    sizes: np.ndarray
    rank: int
    rows: int
    _kept: np.ndarray | None = field(default=None, repr=False)

    @property
    def in_tiles(self) -> bool:
        """Whether this is one large client, which is read one tile after the other."""
        return self.rows * self.block.x.shape[1] > TILE_NUMBERS

    def tiles(self) -> Iterator[np.ndarray]:
        """(c, m, d) float64 samples, in order; together all samples of these clients. The next tile overwrites the one
        before it. Raises PopulationError for values that are not finite, naming the client's number."""
        if self._kept is not None:
            yield self._kept
            return
        if self.in_tiles:
            client = int(self.clients[0])
            low, high = int(self.block.ptr[client]), int(self.block.ptr[client + 1])
            step = tile_rows(self.block.x.shape[1])
            room = np.empty((1, step, self.block.x.shape[1]))  # for one tile after the other
            for first in range(low, high, step):
                rows = room[:, : min(step, high - first)]
                rows[0] = self.block.x[first : first + rows.shape[1]]
                self._check(rows)
                yield rows
            return
        self._kept = self._stacked()
        self._check(self._kept)
        yield self._kept

    def rows_of(self, i: int) -> Callable[[], Iterator[np.ndarray]]:
        """The samples of client i of the group, (m, d) tile by tile, without the padding of the stack."""
        size = int(self.sizes[i])

        def tiles() -> Iterator[np.ndarray]:
            for tile in self.tiles():  # more than one only if the client is alone in its group, which has no padding
                yield tile[i, : min(size, tile.shape[1])]

        return tiles

    def _stacked(self) -> np.ndarray:
        shape = (len(self.clients), self.rows, self.block.x.shape[1])
        first, last = int(self.block.ptr[self.clients[0]]), int(self.block.ptr[self.clients[-1] + 1])
        if last - first == shape[0] * shape[1] and (np.diff(self.clients) == 1).all():
            return np.asarray(self.block.x[first:last], np.float64).reshape(shape)  # neighbours of equal sizes: a view
        out = np.zeros(shape)
        for i, client in enumerate(self.clients):
            low, high = int(self.block.ptr[client]), int(self.block.ptr[client + 1])
            out[i, : high - low] = self.block.x[low:high]
        return out

    def _check(self, rows: np.ndarray) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(rows.sum()):
                return
        fine = np.isfinite(rows).all(axis=(1, 2))
        if not fine.all():
            client = self.block.first + int(self.clients[np.argmin(fine)])
            raise PopulationError(
                f"client number {client} has missing or infinite values.",
                "Dictionaries need complete samples: fill or drop these first.",
            )


def tile_rows(features: int) -> int:
    """Samples in a tile of a client that is read in tiles."""
    return max(TILE_NUMBERS // max(features, 1), 1)


def groups(
    block: RowsBlock, ranks: np.ndarray, chosen: np.ndarray | None = None, numbers: int = STACK_NUMBERS
) -> Iterator[Group]:
    """All clients of the leaf with rank > 0 and samples, each once. ranks: (C,) int. chosen: (C,) bool, only these.
    numbers: float64 numbers in the samples of a stack of several, about."""
    sizes, d = np.diff(block.ptr), block.x.shape[1]
    limit = min(numbers, TILE_NUMBERS)  # a stack of several is never read in tiles
    wanted = (sizes > 0) & (ranks > 0)
    if chosen is not None:
        wanted &= chosen
    places = np.flatnonzero(wanted)
    order = places[np.lexsort((places, sizes[places], ranks[places]))]
    start = 0
    while start < len(order):
        rank, stop, rows, total = int(ranks[order[start]]), start, 0, 0
        while stop < len(order) and ranks[order[stop]] == rank:
            size = int(sizes[order[stop]])
            count, filled = stop + 1 - start, total + size
            # sorted by size, so that the newest is the longest
            if stop > start and (size * count * d > limit or filled < (1 - PADDING) * size * count):
                break
            rows, total, stop = size, filled, stop + 1
        mine = order[start:stop]
        yield Group(block, mine, sizes[mine].astype(np.float64), rank, rows)
        start = stop
