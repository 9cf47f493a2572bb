"""Distances of atoms and of dictionaries that do not depend on signs or on the order of atoms (equations 3 and 4).

Shapes as in `fedcore.methods.dictionary_learning.operators`: one atom a row, dictionaries (..., r, d).

Groups of clients of a leaf whose samples are stacked into one array, and read tile by tile.

Clients of equal rank are sorted by size and put together. Shorter ones are padded with samples of zero, which have
codes of zero and add nothing to any sum. A client that is too large for a stack is a separate group. It is read in
tiles, from memory or from the store. The tiles depend on the sizes only, so the bits do not depend on where the rows
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import scipy  # its parts load at their first use: `scipy.optimize` takes longer than the rest of a small run's start

from fedcore.errors import PopulationError
from fedcore.population.blocks import RowsBlock

ZERO_DISTANCE = 1e-7  # distances below are rounding: sqrt(2 - 2 g) cannot resolve less than about 1.5e-8


def atom_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sign-free distances min(|a_j - b_k|, |a_j + b_k|) of all pairs (equation 4).

    a: (..., r, d), b: (..., s, d); norms need not be 1. Returns (..., r, s). Rounding leaves about 1.5e-8 of unit
    atoms that are equal; see ZERO_DISTANCE and `matched_distances`.
    """
    products = np.abs(a @ np.swapaxes(b, -1, -2))
    squares = (a**2).sum(-1)[..., :, None] + (b**2).sum(-1)[..., None, :]
    return np.sqrt(np.maximum(0.0, squares - 2.0 * products))


def layer_matrices(dictionaries: list[np.ndarray]) -> list[np.ndarray]:
    """Distances between the atoms of consecutive dictionaries (Algorithm 2): N - 1 matrices (r_i, r_{i+1})."""
    return [atom_distances(a, b) for a, b in zip(dictionaries, dictionaries[1:], strict=False)]


def signs(atoms: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """(...,) +1 or -1: sign of the inner products of atoms and reference, both (..., d); +1 where they are 0."""
    return np.where((atoms * reference).sum(-1) < 0, -1.0, 1.0)


def align_signs(atoms: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """atoms (..., d), each flipped to agree with its reference (..., d)."""
    return atoms * signs(atoms, reference)[..., None]


def matched_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """min(|a - b|, |a + b|) of pairs, a and b (..., d), to full precision. Returns (...,)."""
    return np.linalg.norm(a - align_signs(b, a), axis=-1)


@dataclass(frozen=True, slots=True)
class DictionaryDistance:
    """The distance d_{1,2} of two dictionaries, and how it comes about.

    value:    largest distance of matched atoms
    atoms:    (r,) distance of each atom of the first dictionary from its match: d_{2,(j)}
    match:    (r,) which atom of the second it is
    signs:    (r,) +1 or -1 that the match is multiplied with
    spectral: spectral norm of the difference under this match: an upper bound of d_2, which is no assignment problem
    """

    value: float
    atoms: np.ndarray
    match: np.ndarray
    signs: np.ndarray
    spectral: float


def assign(costs: np.ndarray) -> np.ndarray:
    """(r,) columns of a linear assignment of the r rows of costs (r, s), r <= s, least in total."""
    rows, columns = scipy.optimize.linear_sum_assignment(costs)
    return columns[np.argsort(rows)]


def bottleneck_assign(costs: np.ndarray) -> np.ndarray:
    """(r,) columns of an assignment of the rows of costs (r, s), r <= s, whose *largest* cost is least.

    Binary search over the distinct costs, one linear assignment each. Among assignments that reach the least
    bottleneck, one of least total.
    """
    levels = np.unique(costs)
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        blocked = (costs > levels[middle]).astype(np.float64)
        if blocked[np.arange(len(costs)), assign(blocked)].any():
            low = middle + 1
        else:
            high = middle
    # Entries above the bottleneck cost more than any assignment without them.
    forbidden = (1.0 + costs.max()) * (1 + len(costs))
    return assign(np.where(costs > levels[low], forbidden, costs))


def dictionary_distance(a: np.ndarray, b: np.ndarray, exact: bool = False) -> DictionaryDistance:
    """d_{1,2}(a, b): the least largest distance of atoms over signed permutations (equation 3).

    a: (r, d), b: (s, d); the smaller is matched into the larger, and the result is then in terms of the smaller. exact:
    the bottleneck assignment; otherwise the one of least total distance, whose largest distance is an upper bound.
    """
    small, large = (a, b) if len(a) <= len(b) else (b, a)
    if not len(small):
        nothing = np.zeros(0)
        return DictionaryDistance(0.0, nothing, np.zeros(0, np.int64), nothing, 0.0)
    costs = atom_distances(small, large)
    match = bottleneck_assign(costs) if exact else assign(costs)
    matched = large[match]
    flips = signs(matched, small)
    difference = small - matched * flips[:, None]
    each = np.linalg.norm(difference, axis=1)
    return DictionaryDistance(float(each.max()), each, match, flips, float(np.linalg.norm(difference, 2)))


def d12(a: np.ndarray, b: np.ndarray, exact: bool = False) -> float:
    """The value of `dictionary_distance`."""
    return dictionary_distance(a, b, exact).value


PADDING = 0.15  # share of a stack's samples that may be padding
STACK_NUMBERS = 2**18  # float64 numbers in the samples of a stack: what is made of them should stay in the cache
TILE_NUMBERS = 2**20  # float64 numbers in a tile, and in a client that is a separate group and is kept: 8 MiB


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
