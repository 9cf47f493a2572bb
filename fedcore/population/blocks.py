"""What a block of clients looks like in memory. A block holds whole clients; a leaf is a slice of one.

Two kinds of population that methods read:

    counts   one sparse vector of token counts for each client (CSR): `CountsBlock`
    rows     dense rows for each client, NaN = missing: `RowsBlock`

and one that is encoded first: `words`, counts of words that are in no public list (`fedcore.population.words`).
Blocks of the first two know `first`, the index of their first client in the population, and `leaf`, the index of their
first leaf.
`heldout` is the part of the same clients kept for evaluation; training reads it in the rounds only in which a private
method says so (`Method.reads_heldout`), and protects it with the rest of a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy

from fedcore.population.choices import Kind as Kind

FLOAT32_EXACT = 2**24  # integers up to here are exact in float32


class Aside:
    """Whole numbers below 2**24, one for each entry of a kept block, that are the same in several rounds.

    They are made of the block and a message, and would be made again to the same numbers. Those of one name at a time
    are kept, in single precision.

    charge: takes bytes more (or less), or refuses and returns False
    """

    def __init__(self, charge: Callable[[int], bool]) -> None:
        self.charge = charge
        self.held: dict[tuple[str, int, int], np.ndarray] = {}

    def get(self, name: str, low: int, high: int, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the (high - low,) values of the entries from `low` on: kept ones, or those that `make` returns, which
        are then kept if there is room. name: identifies what the values are computed from."""
        found = self.held.get((name, low, high))
        if found is None:
            found = make()
            for other in [other for other in self.held if other[0] != name]:
                self.charge(-self.held.pop(other).nbytes)
            kept = found.astype(np.float32)
            if self.charge(kept.nbytes):
                self.held[name, low, high] = kept
        return found


@dataclass(frozen=True, slots=True)
class CountsBlock:
    """Token counts of C consecutive clients in CSR form.

    first:   index of the first client in the population
    leaf:    index of the first leaf (first == leaf * clients per leaf)
    indptr:  (C + 1,) int32 or int64, indptr[0] == 0
    indices: (nnz,) int32, increasing within a client
    data:    (nnz,) float32, or float64 when a count exceeds 2**24; whole numbers > 0
    totals:  (C,) float64, tokens of each client (m_u); 0 for an empty client
    features: d, size of the vocabulary
    heldout: the same clients' held-out counts, or None
    aside:   what may be kept of the block from round to round; None: nothing. low: its first entry there
    """

    first: int
    leaf: int
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    totals: np.ndarray
    features: int
    heldout: CountsBlock | None = None
    aside: Aside | None = None
    low: int = 0

    @property
    def clients(self) -> int:
        return len(self.indptr) - 1

    @property
    def nbytes(self) -> int:
        own = self.indptr.nbytes + self.indices.nbytes + self.data.nbytes + self.totals.nbytes
        return own + (self.heldout.nbytes if self.heldout is not None else 0)

    @property
    def csr(self) -> scipy.sparse.csr_matrix:
        """(C, d) view of the counts; shares memory."""
        matrix = scipy.sparse.csr_matrix((self.clients, self.features), dtype=self.data.dtype)
        matrix.data, matrix.indices, matrix.indptr = self.data, self.indices, self.indptr
        return matrix

    def rows_of_entries(self) -> np.ndarray:
        """(nnz,) int32: the client (0 .. C - 1) of every stored entry."""
        return np.repeat(np.arange(self.clients, dtype=np.int32), np.diff(self.indptr))

    def slice(self, start: int, stop: int, leaf: int) -> CountsBlock:
        """Clients start .. stop - 1 of this block."""
        low, high = self.indptr[start], self.indptr[stop]
        return CountsBlock(
            self.first + start,
            leaf,
            self.indptr[start : stop + 1] - low,
            self.indices[low:high],
            self.data[low:high],
            self.totals[start:stop],
            self.features,
            None if self.heldout is None else self.heldout.slice(start, stop, leaf),
            self.aside,
            self.low + int(low),
        )

    def take(self, chosen: np.ndarray) -> CountsBlock:
        """Some clients of this block together, in order, at its place. chosen: (C,) bool."""
        lengths = np.diff(self.indptr)
        kept = np.repeat(chosen, lengths)
        ptr = np.concatenate([[0], np.cumsum(lengths[chosen])]).astype(self.indptr.dtype)
        indices, data = self.indices[kept], self.data[kept]
        heldout = None if self.heldout is None else self.heldout.take(chosen)
        return CountsBlock(self.first, self.leaf, ptr, indices, data, self.totals[chosen], self.features, heldout)


@dataclass(frozen=True, slots=True)
class RowsBlock:
    """Dense rows of C consecutive clients.

    x:   (N, D) float32 or float64, NaN = missing
    ptr: (C + 1,) int64; client i owns rows ptr[i] .. ptr[i + 1] - 1
    """

    first: int
    leaf: int
    ptr: np.ndarray
    x: np.ndarray
    heldout: RowsBlock | None = None

    @property
    def clients(self) -> int:
        return len(self.ptr) - 1

    @property
    def features(self) -> int:
        return self.x.shape[1]

    @property
    def nbytes(self) -> int:
        return self.ptr.nbytes + self.x.nbytes + (self.heldout.nbytes if self.heldout is not None else 0)

    def slice(self, start: int, stop: int, leaf: int) -> RowsBlock:
        """Clients start .. stop - 1 of this block."""
        low, high = self.ptr[start], self.ptr[stop]
        return RowsBlock(
            self.first + start,
            leaf,
            self.ptr[start : stop + 1] - low,
            self.x[low:high],
            None if self.heldout is None else self.heldout.slice(start, stop, leaf),
        )

    def take(self, chosen: np.ndarray) -> RowsBlock:
        """Some clients of this block together, in order, at its place. chosen: (C,) bool."""
        lengths = np.diff(self.ptr)
        ptr = np.concatenate([[0], np.cumsum(lengths[chosen])])
        heldout = None if self.heldout is None else self.heldout.take(chosen)
        return RowsBlock(self.first, self.leaf, ptr, self.x[np.repeat(chosen, lengths)], heldout)


ClientBlock = CountsBlock | RowsBlock


def leaves(block: ClientBlock, clients_per_leaf: int) -> Iterator[ClientBlock]:
    """The block cut into its leaves, in order."""
    for number, start in enumerate(range(0, block.clients, clients_per_leaf)):
        stop = min(start + clients_per_leaf, block.clients)
        yield block.slice(start, stop, block.leaf + number)


def joined(block: CountsBlock) -> CountsBlock:
    """The same clients with what is held out of them as more of their tokens, and nothing held out. Counts are added up
    in float64, which is exact, whatever the parts are stored in: a client's do not depend on who else is there."""
    if block.heldout is None:
        return block
    parts = [replace(part, data=part.data.astype(np.float64)).csr for part in (block, block.heldout)]
    whole = scipy.sparse.csr_matrix(parts[0] + parts[1])
    whole.sort_indices()
    totals = block.totals + block.heldout.totals
    indices = whole.indices.astype(np.int32, copy=False)
    return CountsBlock(block.first, block.leaf, whole.indptr, indices, whole.data, totals, block.features)


def scored_from(block: ClientBlock, least: int) -> ClientBlock:
    """The block with nothing held out of clients with less than `least` tokens (rows, of a block of rows) in either of
    their two parts."""
    if block.heldout is None or least <= 0:
        return block
    if isinstance(block, CountsBlock):
        counts = block.heldout
        long = np.minimum(block.totals, counts.totals) >= least
        ptr, kept = _without(counts.indptr, long)
        totals = np.where(long, counts.totals, 0.0)
        left = replace(counts, indptr=ptr, indices=counts.indices[kept], data=counts.data[kept], totals=totals)
        return replace(block, heldout=left)
    rows = block.heldout
    long = np.minimum(np.diff(block.ptr), np.diff(rows.ptr)) >= least
    ptr, kept = _without(rows.ptr, long)
    return replace(block, heldout=replace(rows, ptr=ptr, x=rows.x[kept]))


def _without(ptr: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the clients' entries begin if those of others are left out, and (entries,) bool which are kept."""
    sizes = np.diff(ptr)
    return np.concatenate([[0], np.cumsum(sizes * chosen)]).astype(ptr.dtype), np.repeat(chosen, sizes)


def segment_sums(values: np.ndarray, ptr: np.ndarray, dtype=None) -> np.ndarray:
    """(C,) sums of values[ptr[i] : ptr[i + 1]]; 0 for an empty segment. dtype: of the sums; default: that of values."""
    sums = np.zeros(len(ptr) - 1, dtype or values.dtype)
    filled = ptr[1:] > ptr[:-1]
    if filled.any():
        # reduceat yields the *next* entry for an empty segment, hence only segments with entries are given to it
        sums[filled] = np.add.reduceat(values, ptr[:-1][filled], dtype=dtype)
    return sums


def counts_block(
    first: int, leaf: int, matrix: scipy.sparse.csr_matrix, heldout: scipy.sparse.csr_matrix | None = None
) -> CountsBlock:
    """A block from a CSR matrix of whole counts (clients, d)."""
    matrix = scipy.sparse.csr_matrix(matrix)
    matrix.sort_indices()
    largest = float(matrix.data.max()) if matrix.nnz else 0.0
    data = matrix.data.astype(np.float32 if largest < FLOAT32_EXACT else np.float64)
    totals = np.asarray(matrix.sum(axis=1, dtype=np.float64)).ravel()
    return CountsBlock(
        first,
        leaf,
        matrix.indptr,
        matrix.indices.astype(np.int32, copy=False),
        data,
        totals,
        matrix.shape[1],
        None if heldout is None else counts_block(first, leaf, heldout),
    )
