"""Dense rows that are standardised, and cut to a norm, when a tile of them is used: nothing larger than a tile is ever
made, in memory or from a store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedcore.methods.mixture_models import client_sums


@dataclass(frozen=True, eq=False)
class RowView:
    """(x - centre) / scale, float64 (`fedcore.methods.mixture_models.contract.LazyRows`).

    x:      (N, d) float32 or float64: an array, or what gives one by np.asarray of a slice or selection
    centre, scale: (d,) float64; (0,) to leave rows as they are. Where 1 / scale is finite rows are multiplied by it.
    without: a column of x that is none of the rows'; None: all are
    bound:  the L2 norm that `fill` cuts every row to; it leaves out rows that are not finite. None: no bound, and
            nothing is left out. A row with a bound depends on no other row, to the last bit.
    """

    x: Any
    centre: np.ndarray
    scale: np.ndarray
    bound: float | None = None
    without: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[0], self.x.shape[1] - (self.without is not None)

    @property
    def ndim(self) -> int:
        return 2

    def __len__(self) -> int:
        return self.x.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> RowView:
        chosen = self.x.take(rows, axis=0) if _is_numbers(self.x, rows) else self.x[rows]
        return replace(self, x=chosen)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        if self.bound is not None:
            raise TypeError("rows with a bound are used as columns only")
        x = np.asarray(self.x)
        y = (x if self.without is None else np.delete(x, self.without, axis=1)).astype(np.float64)
        if len(self.centre):
            self._standardise(y, self.centre, self.scale)
        return y if dtype is None else y.astype(dtype, copy=False)

    def fill(self, out: np.ndarray, own: int = 1, each: int = 1) -> np.ndarray | None:
        x = np.asarray(self.x)
        if self.without:
            client_sums.fill(x[:, : self.without], out[: self.without], own, each)
        if self.without is None:
            client_sums.fill(x, out, own, each)
        elif self.without < len(out):
            client_sums.fill(x[:, self.without + 1 :], out[self.without :], own, each)
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf and the like: of rows that will be left out
            if len(self.centre):
                self._standardise(out, self.centre[:, None], self.scale[:, None])
            return None if self.bound is None else _cut(out, self.bound)

    @staticmethod
    def _standardise(y: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> None:
        y -= centre
        with np.errstate(over="ignore", divide="ignore"):
            factor = 1.0 / scale
        if np.isfinite(factor).all():
            y *= factor
        else:
            y /= scale


class PartOfRows:
    """Some of the rows, or of their entries, of rows that are read when they are used.

    rows: `fedcore.population.streaming.StoredRows`, say; each: (N,) what is known of each row
    """

    ndim = 2

    def __init__(self, rows: Any, each: np.ndarray):
        self.rows, self.each, self.dtype = rows, each, rows.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.each), self.rows.shape[1]

    @property
    def nbytes(self) -> int:
        return self.each.nbytes + int(self.rows.nbytes)

    def __len__(self) -> int:
        return len(self.each)


def _is_numbers(x: Any, rows: slice | np.ndarray) -> bool:
    return isinstance(x, np.ndarray) and isinstance(rows, np.ndarray) and rows.dtype.kind == "i"


def _cut(columns: np.ndarray, bound: float) -> np.ndarray | None:
    """Cuts every column (d, m) to the norm, in place; those that are not finite become 0 and are returned, (m,) bool.

    Squares are added entry by entry, so that no sum depends on where its column stands.
    """
    squares = columns[0] * columns[0]
    square = np.empty_like(squares)
    for entries in columns[1:]:
        np.multiply(entries, entries, out=square)
        squares += square
    if squares.max(initial=0.0) <= bound * bound:
        return None
    without = ~np.isfinite(columns).all(axis=0)
    norms = np.sqrt(squares)
    columns *= np.minimum(1.0, bound / np.maximum(norms, bound))
    columns[:, without] = 0.0
    return without if without.any() else None
