"""Rows in tiles of whole clients, and sums of products by client.

The order of summation is fixed by `ptr` alone. Clients of equal size are answered together by one batched matrix
product; in a ragged leaf they are brought together by sorting. A client larger than a tile is streamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedcore.models.contract import Rows

TILE_BYTES = 1_250_000  # features and responsibilities of a tile should stay in the second-level cache


class Tile(NamedTuple):
    """clients: which; rows: which (a slice where they are neighbours); runs: (first client, clients, rows of each)
    counted inside the tile; whole: whether these are all rows of the clients."""

    clients: np.ndarray | slice
    rows: np.ndarray | slice
    runs: tuple[tuple[int, int, int], ...]
    whole: bool = True


def tile_rows(numbers_per_row: int) -> int:
    """Rows of a tile, from the float64 numbers that one row takes. Never a multiple of 16: columns a power of two
    apart would fall on the same few lines of the cache."""
    rows = min(max(TILE_BYTES // (8 * numbers_per_row), 256), 8000)
    return rows // 16 * 16 + 8


def row_tiles(n: int, size: int) -> Iterator[slice]:
    """0 .. n - 1 in fixed tiles."""
    for low in range(0, n, size):
        yield slice(low, min(low + size, n))


def client_tiles(ptr: np.ndarray, size: int) -> Iterator[Tile]:
    """Tiles of about `size` rows that cover all clients with rows. Only a client larger than that is in several."""
    counts = np.diff(ptr)
    filled = np.flatnonzero(counts)
    large = counts[filled] > size
    for client in filled[large]:
        for low in range(int(ptr[client]), int(ptr[client + 1]), size):
            high = min(low + size, int(ptr[client + 1]))
            yield Tile(slice(client, client + 1), slice(low, high), ((0, 1, high - low),), False)
    rest = filled[~large]
    if not len(rest):
        return
    if len(rest) == len(counts) and (counts == counts[0]).all():
        each = int(counts[0])
        for tile in row_tiles(len(rest), max(1, size // each)):
            rows = slice(int(ptr[tile.start]), int(ptr[tile.stop]))
            yield Tile(tile, rows, ((0, tile.stop - tile.start, each),))
        return
    order = rest[np.argsort(counts[rest], kind="stable")]
    ends = np.cumsum(counts[order])
    start = 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + size, "right"))
        clients, inside = order[start:stop], counts[order[start:stop]]
        shift = ptr[clients] - (ends[start:stop] - inside - before)
        rows = np.repeat(shift, inside) + np.arange(int(ends[stop - 1]) - before)
        cuts = np.flatnonzero(np.diff(inside)) + 1
        firsts = [0, *cuts.tolist()]
        lasts = [*cuts.tolist(), len(inside)]
        runs = tuple((a, b - a, int(inside[a])) for a, b in zip(firsts, lasts, strict=True))
        yield Tile(clients, rows, runs)
        start = stop


def products_by_client(a: np.ndarray, b: np.ndarray, runs: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """(c, p, f): the sum of a[:, j] b[j, :] over the rows j of every client of a tile; a: (p, n), b: (n, f)."""
    clients = sum(run[1] for run in runs)
    sums = np.empty((clients, len(a), b.shape[1]))
    low = 0
    for first, count, each in runs:
        high = low + count * each
        left = a[:, low:high].reshape(len(a), count, each).transpose(1, 0, 2)
        np.matmul(left, b[low:high].reshape(count, each, b.shape[1]), out=sums[first : first + count])
        low = high
    return sums


def rows_at(ptr: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers ptr[i] + at[i, :] of the clients that have rows.

    Returns (filled clients (c,), rows (c, b)). Raises IndexError for a row that a client does not have; what stands in
    `at` for a client without rows is ignored.
    """
    counts = np.diff(ptr)
    filled = np.flatnonzero(counts)
    at = np.asarray(at)[filled]
    if ((at < 0) | (at >= counts[filled, None])).any():
        raise IndexError("a client was asked for a row that it does not have")
    return filled, np.asarray(ptr)[filled, None] + at


def take(y: Rows, rows: np.ndarray | slice) -> Rows:
    """Those rows of y; a view for a slice of dense rows."""
    if isinstance(rows, slice) or not isinstance(y, np.ndarray):
        return y[rows]
    return y.take(rows, axis=0)
