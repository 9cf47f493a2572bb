"""Which observed cells of incomplete rows take no part in training, so that settings can be compared on them.

Every cell is held back with the same probability, independently of all others; what it holds does not matter. Which
cells these are is a function of (seed, client, number of the row, column) alone: no cut into blocks, leaves or pieces
changes it. In the part for training they are missing, in the other part all others are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from fedcore.methods.mixture_models.row_draws import client_words, mixed_words, uniforms_of
from fedcore.methods.mixture_models.row_view import PartOfRows
from fedcore.population.blocks import RowsBlock

PURPOSE = "em/validation cells"


@dataclass(frozen=True, slots=True)
class HiddenCells:
    """share: of the cells that are held back, above 0 and below 1. seed: of the run."""

    seed: int
    share: float

    def row_words(self, ptr: np.ndarray, first: int) -> np.ndarray:
        """(N,) uint64, from which the draws of each row's cells follow.

        ptr: (C + 1,); client i owns rows ptr[i] .. ptr[i + 1] - 1. first: the population's number of client 0
        """
        sizes = np.diff(ptr)
        number = np.arange(ptr[-1] - ptr[0]) - np.repeat(ptr[:-1] - ptr[0], sizes)
        return mixed_words(np.repeat(client_words(self.seed, PURPOSE, 0, first, len(sizes)), sizes), number)


def without_hidden(block: RowsBlock, cells: HiddenCells) -> RowsBlock:
    """The block with NaN in the cells that are held back."""
    return _part(block, cells, hidden=False)


def hidden_only(block: RowsBlock, cells: HiddenCells) -> RowsBlock:
    """The block with NaN in all cells but those that are held back."""
    return _part(block, cells, hidden=True)


def _part(block: RowsBlock, cells: HiddenCells, hidden: bool) -> RowsBlock:
    rows = _Masked(block.x, cells.row_words(block.ptr, block.first), cells.share, hidden)
    x = np.asarray(rows) if isinstance(block.x, np.ndarray) else cast(np.ndarray, rows)
    return replace(block, x=x, heldout=None)


class _Masked(PartOfRows):
    """Rows of which some cells are NaN, read when they are used; slices are of the same kind, np.asarray reads them.

    each: (N,) uint64, the words of the rows
    """

    def __init__(self, rows: Any, words: np.ndarray, share: float, hidden: bool):
        super().__init__(rows, words)
        self.share, self.hidden = share, hidden

    def __getitem__(self, rows: slice | np.ndarray) -> Any:
        part = _Masked(self.rows[rows], self.each[rows], self.share, self.hidden)
        return part if isinstance(rows, slice) else np.asarray(part)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        x = np.array(self.rows)
        held_back = uniforms_of(self.each[:, None], np.arange(x.shape[1])) < self.share
        x[~held_back if self.hidden else held_back] = np.nan
        return x if dtype is None else x.astype(dtype, copy=False)
