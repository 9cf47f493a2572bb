"""Dense rows of a block that is too large to be held: read from the store when they are used, a window at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

WINDOW_BYTES = 16 * 2**20  # of rows that are kept decoded; at least one stored chunk


class _Window:
    """The last rows that were read, whole chunks of them."""

    def __init__(self, read: Callable[[int, int], np.ndarray], entries: int, length: int):
        self.read = read
        self.entries = entries
        self.length = length
        self.first = 0
        self.rows: np.ndarray | None = None

    def around(self, row: int) -> np.ndarray:
        """The rows of the window that holds this row; `first` is then the number of the window's first row."""
        first = row // self.length * self.length
        if self.rows is None or self.first != first:
            self.rows = None  # so that there are never two of them
            self.rows, self.first = self.read(first, min(first + self.length, self.entries)), first
        return self.rows


class StoredRows:
    """(N, D) rows `start` .. `stop` - 1 of an array in the store, read-only.

    A slice is rows of the same kind, a selection by numbers or by a mask is an array, and np.asarray reads all rows.
    Only a window of rows is held, which all slices share: rows should be used in order. Reading raises what `read`
    raises.

    read: (first, stop) -> rows of the stored array; entries: how many it has; chunk: entries of one stored chunk
    """

    ndim = 2

    def __init__(self, read: Callable[[int, int], np.ndarray], entries: int, features: int, dtype, chunk: int):
        self.dtype = np.dtype(dtype)
        self.start, self.stop, self.features = 0, entries, features
        wanted = WINDOW_BYTES // max(self.dtype.itemsize * features * chunk, 1)
        self._window = _Window(read, entries, max(wanted, 1) * chunk)

    @property
    def shape(self) -> tuple[int, int]:
        return self.stop - self.start, self.features

    @property
    def nbytes(self) -> int:
        """Bytes that may be held, not those of all rows."""
        return self._window.length * self.features * self.dtype.itemsize

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, rows):
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise IndexError("stored rows are sliced without a step")
            part = StoredRows.__new__(StoredRows)
            part.dtype, part.features, part._window = self.dtype, self.features, self._window
            part.start, part.stop = self.start + start, self.start + max(start, stop)
            return part
        rows = np.asarray(rows)
        if rows.ndim != 1 or rows.dtype.kind not in "bi" or (rows.dtype.kind == "b" and len(rows) != len(self)):
            raise IndexError("stored rows are chosen by a slice, by their numbers or by a mask")
        return self._chosen(np.flatnonzero(rows) if rows.dtype.kind == "b" else rows)

    def _chosen(self, rows: np.ndarray) -> np.ndarray:
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError("a row was asked for that is not there")
        out = np.empty((len(rows), self.features), self.dtype)
        order = np.argsort(rows, kind="stable")
        at, done = rows[order] + self.start, 0
        while done < len(at):
            window = self._window.around(int(at[done]))
            stop = int(np.searchsorted(at, self._window.first + len(window)))
            out[order[done:stop]] = window[at[done:stop] - self._window.first]
            done = stop
        return out

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        out = np.empty(self.shape, self.dtype if dtype is None else dtype)
        row = self.start
        while row < self.stop:
            window = self._window.around(row)
            low = row - self._window.first
            part = window[low : low + self.stop - row]
            out[row - self.start : row - self.start + len(part)] = part
            row += len(part)
        return out
