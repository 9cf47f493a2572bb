"""Rows as whole numbers, and exact sums of them by unit.

A *unit* is what the budget protects: a record (a row), or a client with all its rows. Everything here is exact, or one
correctly rounded operation on numbers of one row. So a row's numbers do not depend on neighbouring rows, on the order
of a sum, on BLAS or on the processor. A unit's contribution depends only on the unit's rows, to the last bit.

    z = rint((x - c) / g), g = r / 2^16, cut to ||z|| <= 2^16       rows
    y = rint(z V / 2^14), V whole numbers                           projections: the products are exact in float64

g is a *step*, the unit of length of everything that is counted in a node of radius r.

A client of b rows weighs as much as one record: its sums are divided by b and cut towards zero before they are added to
those of others; where squares are summed, its rows are cut to ||z||^2 <= 2^32 / b.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedcore.population.blocks import RowsBlock

BITS = 16
ONE = 2**BITS  # the clip in steps, and the weight of a unit in counts
FAR = 2.0**20  # steps; no coordinate is further out
BASIS_BITS = 14
MOST_FEATURES = 4096  # FAR**2 * features stays below 2**53
TILE_NUMBERS = 2**22  # numbers of 8 bytes that the rows of a group take, unless it is one client
CACHED_NUMBERS = 2**18  # of a tile, so that a pass finds them in the processor's cache
FEWEST_ROWS = 2048  # of a tile of wide rows, so that calls are spread over many
MOST_ROWS = 2**17  # of a tile: sums of products below 2**33 stay below 2**53
SHRINK = 1.0 - 2.0**-40  # more than the rounding of a scaling can add to a norm


@dataclass(frozen=True, slots=True)
class Tile:
    """Consecutive rows of a group.

    x: (n, d) float64, all finite. client: (n,) int64 increasing, the row's client within the group. rows: (n,) int64 b,
    the number of rows of that client, or ones where records are protected.
    """

    x: np.ndarray
    client: np.ndarray
    rows: np.ndarray

    def of(self, chosen: np.ndarray) -> Tile:
        """The chosen rows: a mask, or numbers in increasing order."""
        return Tile(self.x[chosen], self.client[chosen], self.rows[chosen])


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive clients that are answered together. sizes: (C,) int64 rows of each."""

    sizes: np.ndarray
    tiles: Iterator[Tile]


def groups(block: RowsBlock, by_client: bool, width: int) -> Iterator[Group]:
    """The block as groups of whole clients, in tiles that may end within a client.

    width: numbers that are kept for each client. Rows that are not finite are left out, and still count in b.
    """
    length = int(min(max(TILE_NUMBERS // max(block.features, 1), 1), MOST_ROWS))
    sizes, ptr = np.diff(block.ptr), block.ptr
    most = max(TILE_NUMBERS // max(width, 1), 1) if by_client else len(sizes)
    first = 0
    while first < len(sizes):
        last = int(np.searchsorted(ptr, ptr[first] + length, side="right")) - 1
        last = min(max(last, first + 1), first + most, len(sizes))
        yield Group(sizes[first:last], _tiles(block, first, last, length, by_client))
        first = last


def _tiles(block: RowsBlock, first: int, last: int, length: int, by_client: bool) -> Iterator[Tile]:
    begin, end = int(block.ptr[first]), int(block.ptr[last])
    length = min(length, max(CACHED_NUMBERS // max(block.features, 1), FEWEST_ROWS))
    for low in range(begin, end, length):
        high = min(low + length, end)
        x = np.asarray(block.x[low:high], np.float64)
        client = np.searchsorted(block.ptr[first + 1 : last + 1], np.arange(low, high), side="right")
        rows = np.diff(block.ptr)[first + client] if by_client else np.ones(high - low, np.int64)
        usable = np.asarray(np.isfinite(x).all(axis=1))
        tile = Tile(x, client.astype(np.int64), rows.astype(np.int64))
        yield tile if usable.all() else tile.of(usable)


# --- rows -----------------------------------------------------------------------------------------------------------


def in_steps(x: np.ndarray, centre: np.ndarray, radius: float, rows: np.ndarray | None = None) -> np.ndarray:
    """(n, d) float64 whole numbers of at most FAR: rows about a centre in steps of radius / ONE, or in sqrt(b) times as
    large ones. rows: (n,) b."""
    with np.errstate(over="ignore"):
        z = x - centre
        z /= radius / ONE
    if rows is not None:
        z /= np.sqrt(rows.astype(np.float64))[:, None]
    np.clip(z, -FAR, FAR, out=z)
    return np.rint(z, out=z)


def clipped(
    x: np.ndarray, centre: np.ndarray, radius: float, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(z, squares): (n, d) float64 whole numbers with sum z**2 <= 2**32 exactly, and (n,) the squared distances from
    the centre in steps before the cut (those above 2**40 are too small, but stay above 2**40).

    rows: (n,) b; then the bound is 2**32 // b, and squares are those of the smaller steps.
    """
    z = in_steps(x, centre, radius, rows)
    squares = np.einsum("ij,ij->i", z, z)  # exact, whatever the order
    allowed = np.full(len(z), float(ONE**2)) if rows is None else (ONE**2 // rows).astype(np.float64)
    long = np.flatnonzero(squares > allowed)
    if len(long):
        z[long] = np.trunc(z[long] * (np.sqrt(allowed[long] / squares[long]) * SHRINK)[:, None])
    return z, squares


def shortened(z: np.ndarray, bound: int) -> np.ndarray:
    """(n, q) whole numbers with sum z**2 <= bound**2 exactly. z: (n, q) of any numbers, changed; rows of NaN are 0."""
    limit = 2.0**24
    np.clip(z, -limit, limit, out=z)
    np.rint(z, out=z)
    squares = np.einsum("ij,ij->i", z, z)
    long = np.flatnonzero(~(squares <= float(bound) ** 2))
    if len(long):
        cut = np.trunc(z[long] * (bound / np.sqrt(squares[long]) * SHRINK)[:, None])
        z[long] = np.where(np.isnan(cut).any(axis=1)[:, None], 0.0, cut)
    return z


def projected(z: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """(n, q) float64 whole numbers. basis: (d, q) float64 whole numbers in steps of 2**-14."""
    return np.rint((z @ basis) * 2.0**-BASIS_BITS)


def squared_distances(y: np.ndarray, points: np.ndarray) -> np.ndarray:
    """(n, m) float64, exact for whole numbers. y: (n, q); points: (m, q)."""
    return np.maximum((y * y).sum(axis=1)[:, None] - 2.0 * (y @ points.T) + (points * points).sum(axis=1), 0.0)


# --- sums by unit ---------------------------------------------------------------------------------------------------


class VectorSum:
    """The exact sum over units of vectors of norm at most 2**16: of rows, or of clients' means over all their rows.

    total: (width,) int64.
    """

    def __init__(self, width: int, by_client: bool):
        self.total = np.zeros(width, np.int64)
        self.by_client = by_client
        self.pending: np.ndarray | None = None  # (C, width) sums of the group's clients

    def add(self, group: Group, tile: Tile, columns: slice, z: np.ndarray) -> None:
        """z: (n, width of the columns) whole numbers, one row for each of the tile; the columns of a row's vector
        differ from call to call, and what a row adds in all calls together has a norm of at most 2**16."""
        if not len(z):
            return
        if not self.by_client:
            self.total[columns] += z.sum(axis=0).astype(np.int64)
            return
        if self.pending is None:
            self.pending = np.zeros((len(group.sizes), len(self.total)), np.int64)
        starts = np.flatnonzero(np.diff(tile.client, prepend=-1))
        self.pending[tile.client[starts], columns] += np.add.reduceat(z, starts, axis=0).astype(np.int64)

    def close(self, group: Group) -> None:
        """The group's clients are complete."""
        if self.pending is not None:
            rows = np.maximum(group.sizes, 1)[:, None]
            self.total += (np.sign(self.pending) * (np.abs(self.pending) // rows)).sum(axis=0)
            self.pending = None


class CountSum:
    """The exact sum over units of counts: a row adds `weight` to a bin, and a client the mean over all its rows.

    total: (bins,) int64.
    """

    def __init__(self, bins: int, weight: int, by_client: bool):
        self.total = np.zeros(bins, np.int64)
        self.weight = int(weight)
        self.by_client = by_client
        self.pending: list[tuple[np.ndarray, np.ndarray]] = []  # (client and bin in one number, rows), by tile

    def add(self, tile: Tile, bins: np.ndarray) -> None:
        """bins: (n,) int64, the bin of each row of the tile, -1: none."""
        counted = bins >= 0
        if not self.by_client:
            self.total += np.bincount(bins[counted], minlength=len(self.total)) * self.weight
        elif counted.any():
            keys = tile.client[counted] * len(self.total) + bins[counted]
            self.pending.append(np.unique(keys, return_counts=True))

    def close(self, group: Group) -> None:
        """The group's clients are complete."""
        if not self.pending:
            return
        keys, where = np.unique(np.concatenate([keys for keys, _ in self.pending]), return_inverse=True)
        counts = np.zeros(len(keys), np.int64)
        np.add.at(counts, where, np.concatenate([counts for _, counts in self.pending]))
        client, bins = np.divmod(keys, len(self.total))
        np.add.at(self.total, bins, counts * self.weight // group.sizes[client])
        self.pending = []
