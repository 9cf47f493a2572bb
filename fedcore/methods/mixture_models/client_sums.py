"""Rows in tiles of whole clients, and sums of products by client.

Only `ptr` determines the order of summation. One batched matrix product computes clients of equal size together; in a
ragged leaf, sorting brings them together. A client larger than a tile is streamed.

**A client's bits depend only on its rows.** Dense mixtures use `padded_tiles` and `Workspace`. There the rows of
every client are columns at a multiple of 64 bytes, padded to a multiple of 8, in arrays whose leading dimension does
not depend on what is in them. So each client is computed by the same calls of BLAS, with the same sizes, strides and
alignment, and each of its numbers is in the same lane of a vector, independent of the other clients in the leaf. Its
contribution is a function of its rows only, to the last bit. The sensitivity of a private round depends on this.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np

from fedcore.methods.mixture_models.contract import Rows
from fedcore.population.blocks import segment_sums

Number = TypeVar("Number", int, np.ndarray)

LANES = 8  # float64 numbers in 64 bytes: the widest vectors, and a line of the cache
LONG = 32  # rows of a client from which on BLAS does well without its rows being turned
KEPT_BYTES = 32 * 2**20  # of working memory, for each thread
BUFFER = 64  # numbers; NumPy wants a multiple of 16
TILE_BYTES = 2_000_000  # features and responsibilities of a tile; measured: smaller and larger ones are slower


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
            together = slice(int(ptr[tile.start]), int(ptr[tile.stop]))
            yield Tile(tile, together, ((0, tile.stop - tile.start, each),))
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


# --- clients side by side, none of whose bits depend on the others -------------------------------------------------


class PaddedTile(NamedTuple):
    """Clients with the same number of columns.

    clients: which; each: columns of a client, a multiple of LANES; whole: whether these are all rows of the clients
    rows: which, a slice if every client has `own` of them, else one for every column: in columns that stand for no row
        (`padding`) the client's last row is repeated
    """

    clients: np.ndarray | slice
    rows: np.ndarray | slice
    each: int
    own: int | None
    padding: np.ndarray | None
    whole: bool = True

    def leave_out(self, r: np.ndarray, without: np.ndarray | None) -> np.ndarray | None:
        """Sets r (p, n) to 0 in columns that stand for no row, or for a row that is left out: without, (n,) bool or
        None. Returns how many rows of each client are left out, None for none.
        """
        if self.padding is not None:
            r[:, self.padding] = 0.0
        elif self.own is not None and self.own < self.each:
            r.reshape(len(r), -1, self.each)[:, :, self.own :] = 0.0
        if without is None:
            return None
        r[:, without] = 0.0
        without = without.copy()
        if self.padding is not None:
            without[self.padding] = False  # copies of rows that are counted where they stand
        return np.count_nonzero(without.reshape(-1, self.each), axis=1)

    def weights_of(self, weights: np.ndarray) -> np.ndarray:
        """(n,) of the columns, from those of all rows (N,); 0 in columns that stand for no row."""
        own = weights[self.rows]
        if self.own is None:
            if self.padding is not None:
                own[self.padding] = 0.0
            return own
        columns = np.zeros((len(own) // self.own, self.each))
        columns[:, : self.own] = own.reshape(-1, self.own)
        return columns.ravel()


def client_totals(ptr: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """(C,) float64: the weights (N,) of every client's rows, added up; None: its number of rows."""
    return np.diff(ptr).astype(np.float64) if weights is None else segment_sums(weights, ptr)


def divisors_of(totals: np.ndarray) -> np.ndarray:
    """What sums of this total weight are divided by: 1 where there is none."""
    return np.where(totals > 0, totals, 1.0)


def padded(numbers: Number) -> Number:
    """The next multiple of LANES, or for an array the next ones."""
    return -(-numbers // LANES) * LANES


def padded_tiles(ptr: np.ndarray, size: int) -> Iterator[PaddedTile]:
    """Tiles of at most `padded(size)` columns that cover all clients with rows. Only a client larger than that is in
    several, one row of columns after the other."""
    size, ptr = padded(size), np.asarray(ptr, np.int64)
    counts = np.diff(ptr)
    for client in np.flatnonzero(counts > size).tolist():
        for low in range(int(ptr[client]), int(ptr[client + 1]), size):
            high = min(low + size, int(ptr[client + 1]))
            own = high - low
            yield PaddedTile(slice(client, client + 1), slice(low, high), padded(own), own, None, False)
    if len(counts) and 0 < counts[0] <= size and (counts == counts[0]).all():
        own = int(counts[0])
        each = padded(own)
        for tile in row_tiles(len(counts), size // each):
            yield PaddedTile(tile, slice(int(ptr[tile.start]), int(ptr[tile.stop])), each, own, None)
        return
    spans = np.where(counts > size, 0, padded(counts))
    for each in np.unique(spans[spans > 0]).tolist():
        alike = np.flatnonzero(spans == each)
        step = size // each
        for first in range(0, len(alike), step):
            some = alike[first : first + step]
            own = int(counts[some[0]])
            if some[-1] - some[0] == len(some) - 1 and (counts[some] == own).all():
                neighbours = slice(int(some[0]), int(some[-1]) + 1)
                rows = slice(int(ptr[neighbours.start]), int(ptr[neighbours.stop]))
                yield PaddedTile(neighbours, rows, each, own, None)
            else:
                columns, sizes = np.arange(each), counts[some, None]
                scattered = ptr[some, None] + np.minimum(columns, sizes - 1)
                yield PaddedTile(some, scattered.ravel(), each, None, np.flatnonzero(columns >= sizes))


def aligned_array(rows: int, columns: int) -> np.ndarray:
    """(rows, columns) float64, not initialised; the first number is at a multiple of 64 bytes, and so is that of every
    row if `columns` is a multiple of LANES."""
    numbers = np.empty(rows * columns + LANES)
    start = -(numbers.ctypes.data // numbers.itemsize) % LANES
    return numbers[start : start + rows * columns].reshape(rows, columns)


class Workspace:
    """Working memory of one answer: a tile writes over what the tile before left there.

    columns: a multiple of LANES, at least the rows of a tile
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.arrays: dict[tuple[str, int, int], np.ndarray] = {}

    def array(self, name: str, rows: int, columns: int | None = None) -> np.ndarray:
        """(rows, columns), the same memory whenever the same is asked for."""
        key = (name, rows, columns or self.columns)
        if key not in self.arrays:
            self.arrays[key] = aligned_array(rows, columns or self.columns)
        return self.arrays[key]

    def product(self, name: str, left: np.ndarray, z: np.ndarray, each: int | None = None) -> np.ndarray:
        """left @ z, (p, n). each: number of columns of z in one product, so that all products have the same shape;
        None: one product."""
        out = self.array(name, len(left))[:, : z.shape[1]]
        if each is None:
            return np.matmul(left, z, out=out)
        np.matmul(left, columns_of(z, each), out=columns_of(out, each))
        return out

    def client_products(self, name: str, a: np.ndarray, b: np.ndarray, each: int) -> np.ndarray:
        """(c, p, f): the sum of a[:, j] b[:, j]' over the columns j of every client; a: (p, c each), b: (f, c each).

        BLAS wants one of the two with its columns as rows, unless these are many: the smaller one is turned.
        """
        if each < LONG and len(a) < len(b):
            return self._turned_products(name, b, a, each).transpose(0, 2, 1)
        return self._turned_products(name, a, b, each)

    def _turned_products(self, name: str, a: np.ndarray, b: np.ndarray, each: int) -> np.ndarray:
        """`client_products`, where b is turned."""
        (p, n), f, count = a.shape, len(b), a.shape[1] // each
        sums = self.array(name, self.columns // LANES * p, padded(f))[: count * p].reshape(count, p, -1)[:, :, :f]
        if each >= LONG:
            rows = columns_of(b, each).transpose(0, 2, 1)
        else:
            turned = self.array(f"{name}, turned", self.columns, f)[:n]
            np.copyto(turned, b.T)
            rows = turned.reshape(count, each, f)
        return np.matmul(columns_of(a, each), rows, out=sums)


_kept = threading.local()


@contextmanager
def uncopied_broadcasts() -> Iterator[None]:
    """Inside it NumPy uses an operand like (n, 1) or (1, m) as it is. With its usual buffer, which several runs of the
    other operand fit into, it copies it out first, which takes twice as long as the arithmetic."""
    before = np.setbufsize(BUFFER)
    try:
        yield
    finally:
        np.setbufsize(before)


@contextmanager
def workspace(size: int) -> Iterator[Workspace]:
    """Working memory for tiles of `size` rows. A thread keeps its last one, because memory that the system has just
    handed out costs more than the work that is done in it; what it holds means nothing to the next answer."""
    work = getattr(_kept, "work", None)
    if work is None or work.columns != padded(size):
        work = Workspace(padded(size))
    _kept.work = None
    try:
        with uncopied_broadcasts():
            yield work
    finally:
        if sum(array.nbytes for array in work.arrays.values()) <= KEPT_BYTES:
            _kept.work = work


def columns_of(z: np.ndarray, each: int) -> np.ndarray:
    """(c, f, each): the columns of every client of z (f, c each); a view."""
    return z.reshape(len(z), -1, each).transpose(1, 0, 2)


# --- rows by number --------------------------------------------------------------------------------------------------


def fill(y: Rows, out: np.ndarray, own: int = 1, each: int = 1) -> np.ndarray | None:
    """Writes dense rows (n, d) as columns: out (d, m) float64, m = n each / own. Every `own` rows get `each` columns;
    in those that are left stands 0. Returns which columns hold a row that is to be left out, (m,) bool, or None."""
    if not isinstance(y, np.ndarray):
        return y.fill(out, own, each)
    if own == each:
        np.copyto(out, y.T)
        return None
    groups = out.reshape(len(out), -1, each)
    np.copyto(groups[:, :, :own], y.T.reshape(len(out), -1, own))
    groups[:, :, own:] = 0.0
    return None


def take(y: Rows, rows: np.ndarray | slice) -> Rows:
    """Those rows of y; a view for a slice of dense rows."""
    if isinstance(rows, slice) or not isinstance(y, np.ndarray):
        return y[rows]
    return y.take(rows, axis=0)


def take_into(y: Rows, rows: np.ndarray | slice, work: Workspace) -> Rows:
    """Those rows, in working memory if they have to be copied."""
    if isinstance(rows, slice) or not isinstance(y, np.ndarray) or y.dtype != np.float64:
        return take(y, rows)
    copies = work.array("taken", work.columns, y.shape[1])[: len(rows)]
    return np.take(y, rows, axis=0, out=copies, mode="clip")  # "raise" would copy once more
