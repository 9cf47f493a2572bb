"""The rows of a leaf of clients: standardised when they are used, in pieces that bound what is made of them at a time.

How a leaf is cut depends on its rows alone, not on whether they are in memory or in the store: the bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from fedcore.methods.federated_em.messages import Scaling
from fedcore.methods.mixture_models.contract import CurvedEM, Rows
from fedcore.methods.mixture_models.row_view import RowView
from fedcore.population.blocks import ClientBlock, CountsBlock

PIECE_NUMBERS = 2**20  # in the rows of a piece: what is as long as the rows is made piece by piece
PORTION_NUMBERS = 2**23  # float64 numbers in the rows of the clients that are told apart at a time, 64 MiB


@dataclass(frozen=True, slots=True)
class LeafRows:
    """The rows of C clients. y: (N, d); ptr: (C + 1,); sizes: (C,) float64 observations of each client.

    unit: rows of an observation: 1, or those of a table.
    """

    y: Rows
    ptr: np.ndarray
    sizes: np.ndarray
    unit: int = 1

    def of(self, chosen: np.ndarray) -> LeafRows:
        """The rows of some clients. chosen: (C,) bool."""
        if chosen.all():
            return self
        rows = np.diff(self.ptr)
        ptr = np.concatenate([[0], np.cumsum(rows[chosen])])
        return LeafRows(self.y[np.repeat(chosen, rows)], ptr, self.sizes[chosen], self.unit)

    def batch(self, uniforms: np.ndarray, chosen: np.ndarray) -> LeafRows:
        """b observations of each of the chosen clients (C,) bool, drawn with replacement. uniforms: (chosen, b); none
        of them may be without rows."""
        clients, b = uniforms.shape
        sizes = self.sizes[chosen, None]
        own = np.minimum((uniforms * sizes).astype(np.int64), sizes.astype(np.int64) - 1)
        at = (self.ptr[:-1][chosen, None] + own * self.unit)[:, :, None] + np.arange(self.unit)
        ptr = np.arange(clients + 1) * (b * self.unit)
        return LeafRows(self.y[at.ravel()], ptr, np.full(clients, float(b)), self.unit)

    def pieces(self) -> Iterator[tuple[slice, Rows]]:
        """(observations, their rows) in order."""
        rows = max(PIECE_NUMBERS // max(self.unit * self.y.shape[1], 1), 1)
        for low in range(0, self.y.shape[0] // self.unit, rows):
            observations = slice(low, min(low + rows, self.y.shape[0] // self.unit))
            yield observations, self.y[observations.start * self.unit : observations.stop * self.unit]

    def portions(self) -> Iterator[tuple[slice, LeafRows]]:
        """(clients, their rows): consecutive clients who together have at most PORTION_NUMBERS, or one who has more.
        Rows that are not in memory are read, but for that one.
        """
        limit, clients = max(PORTION_NUMBERS // max(self.y.shape[1], 1), 1), len(self.sizes)
        if self.y.shape[0] <= limit:
            yield slice(0, clients), self._loaded()
            return
        first = 0
        while first < clients:
            last = int(np.searchsorted(self.ptr, self.ptr[first] + limit, "right")) - 1
            alone = last <= first
            last = first + 1 if alone else min(last, clients)
            part = LeafRows(
                self.y[int(self.ptr[first]) : int(self.ptr[last])],
                self.ptr[first : last + 1] - self.ptr[first],
                self.sizes[first:last],
                self.unit,
            )
            yield slice(first, last), part if alone else part._loaded()
            first = last

    def _loaded(self) -> LeafRows:
        if not isinstance(self.y, RowView) or isinstance(self.y.x, np.ndarray):
            return self
        return replace(self, y=replace(self.y, x=np.asarray(self.y.x)))


def rows_of(block: ClientBlock, scaling: Scaling | None = None, unit: int = 1) -> LeafRows:
    """A client of a population of counts has one row: its counts."""
    if isinstance(block, CountsBlock):
        ptr = np.arange(block.clients + 1)
        return LeafRows(sp.csr_matrix(block.csr, dtype=np.float64), ptr, np.ones(block.clients))
    none = np.zeros(0)
    centre, scale = (none, none) if scaling is None else (scaling.centre, scaling.scale)
    plain = isinstance(block.x, np.ndarray) and block.x.dtype == np.float64 and not len(centre)
    return LeafRows(block.x if plain else RowView(block.x, centre, scale), block.ptr, np.diff(block.ptr) / unit, unit)


def client_means(model: CurvedEM, theta, leaf: LeafRows, chosen: np.ndarray) -> np.ndarray:
    """(chosen, q) mean statistics of some clients of the leaf. chosen: (C,) bool."""
    means = []
    for clients, part in leaf.portions():
        if chosen[clients].any():
            some = part.of(chosen[clients])
            means.append(model.e_mean(theta, some.y, some.ptr))
    if len(means) == 1:
        return means[0]
    return np.concatenate(means) if means else np.zeros((0, model.q))
