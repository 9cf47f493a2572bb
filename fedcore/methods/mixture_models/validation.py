"""Which rows of a client take no part in training, so that settings can be compared on them.

Of a client with m >= 3 rows every 1 / share of them in order give one: a row drawn uniformly among them (a stratified
sample). A client with one or two rows keeps them for training, and so does whatever is left of a client's last few rows
when the draw falls beyond its last one. Which rows these are is a function of (seed, client, number of the row) alone:
no cut into blocks, leaves or pieces changes it.

Strata suit rows that are streamed: the share is held in every stretch of a client's rows. Folds, and shares of clients
of two rows, are dealt by `held_out`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from fedcore.methods.mixture_models.row_draws import client_words, uniforms_of
from fedcore.methods.mixture_models.row_view import PartOfRows
from fedcore.population.blocks import RowsBlock

PURPOSE = "em/validation rows"
FEWEST = 3  # rows of a client from which on it holds some back
LARGEST_SHARE = 0.5  # so that no client holds back all its rows


@dataclass(frozen=True, slots=True)
class Split:
    """share: of each client's rows that are held back, above 0 and at most LARGEST_SHARE. seed: of the run.

    outer: a split before, whose rows are in neither part of this one; None: there is none
    """

    seed: int
    share: float
    outer: Split | None = None

    @property
    def depth(self) -> int:
        """Number of earlier splits; each has separate draws."""
        return 0 if self.outer is None else self.outer.depth + 1

    def held_back(self, ptr: np.ndarray, first: int) -> np.ndarray:
        """(N,) bool, whether a row takes no part in training, of the rows that the outer split leaves.

        ptr: (C + 1,); client i owns rows ptr[i] .. ptr[i + 1] - 1. first: the population's number of client 0
        """
        sizes = np.diff(ptr)
        strata = np.where(sizes >= FEWEST, np.ceil(sizes * self.share), 0).astype(np.int64)
        words = client_words(self.seed, PURPOSE, self.depth, first, len(sizes))
        number = np.arange(strata.sum()) - np.repeat(np.cumsum(strata) - strata, strata)
        place = ((number + uniforms_of(np.repeat(words, strata), number)) / self.share).astype(np.int64)
        inside = place < np.repeat(sizes, strata)
        held = np.zeros(int(ptr[-1] - ptr[0]), bool)
        held[(np.repeat(ptr[:-1] - ptr[0], strata) + place)[inside]] = True
        return held


def training_part(block: RowsBlock, split: Split | None) -> RowsBlock:
    """The block without the rows that are held back; itself if there is no split."""
    if split is None:
        return block
    block = training_part(block, split.outer)
    return some_rows(block, ~split.held_back(block.ptr, block.first))


def validation_part(block: RowsBlock, split: Split) -> RowsBlock:
    """The rows of the block that are held back, by this split and none before."""
    block = training_part(block, split.outer)
    return some_rows(block, split.held_back(block.ptr, block.first))


def some_rows(block: RowsBlock, chosen: np.ndarray) -> RowsBlock:
    """The chosen rows (N,) bool of all clients; rows that are read when they are used stay so."""
    ptr = np.concatenate([[0], np.cumsum(chosen)])[block.ptr - block.ptr[0]]
    numbers = np.flatnonzero(chosen)
    if isinstance(block.x, np.ndarray):
        return RowsBlock(block.first, block.leaf, ptr, block.x.take(numbers, axis=0))
    return RowsBlock(block.first, block.leaf, ptr, cast(np.ndarray, _Chosen(block.x, numbers)))


class _Chosen(PartOfRows):
    """Some rows of rows that are read when they are used; slices are of the same kind, np.asarray reads them.

    each: (n,) int64, the numbers of the rows
    """

    def __getitem__(self, rows: slice | np.ndarray) -> Any:
        if isinstance(rows, slice):
            return _Chosen(self.rows, self.each[rows])
        return self.rows[self.each[rows]]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        read = self.rows[self.each]
        return read if dtype is None else read.astype(dtype, copy=False)
