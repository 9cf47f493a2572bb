"""The rows of a leaf of clients, standardised when they are used, in parts that bound the RAM that they take.

How a leaf is cut depends on its rows alone, not on whether they are in RAM or in the store, so that sums have the same
bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy

from fedcore.methods.federated_em.messages import Scaling
from fedcore.methods.federated_em.row_weights import row_weights
from fedcore.methods.mixture_models.client_sums import client_totals
from fedcore.methods.mixture_models.contract import CurvedEM, Rows, Theta
from fedcore.methods.mixture_models.row_view import RowView
from fedcore.population.blocks import ClientBlock, CountsBlock, segment_sums

PIECE_NUMBERS = 2**20  # numbers in the rows of a piece: arrays as long as the rows are made piece by piece
PORTION_NUMBERS = 2**23  # numbers in the rows of the clients who are answered one by one together: 64 MiB


@dataclass(frozen=True, slots=True)
class LeafRows:
    """The rows of C clients. An observation is a row, or in models of tables the consecutive rows of a table.

    y: (N, d); ptr: (C + 1,), client i owns rows ptr[i] .. ptr[i + 1] - 1
    sizes: (C,) float64, observations of each client, or where rows have weights the sum of these
    rows_per_observation: 1, or the rows of a table
    weights: (N,) float64 >= 0 of the rows; None: all are 1
    """

    y: Rows
    ptr: np.ndarray
    sizes: np.ndarray
    rows_per_observation: int = 1
    weights: np.ndarray | None = None

    @property
    def observation_ptr(self) -> np.ndarray:
        """(C + 1,): client i owns observations observation_ptr[i] .. observation_ptr[i + 1] - 1."""
        return self.ptr // self.rows_per_observation

    def of(self, chosen: np.ndarray) -> LeafRows:
        """The rows of some clients. chosen: (C,) bool."""
        if chosen.all():
            return self
        rows = np.diff(self.ptr)
        ptr, own = np.concatenate([[0], np.cumsum(rows[chosen])]), np.repeat(chosen, rows)
        weights = None if self.weights is None else self.weights[own]
        return LeafRows(self.y[own], ptr, self.sizes[chosen], self.rows_per_observation, weights)

    def batch(self, uniforms: np.ndarray, chosen: np.ndarray) -> LeafRows:
        """b observations of each of the A chosen clients, drawn with replacement; of rows without weights.

        chosen: (C,) bool, clients who have rows. uniforms: (A, b).
        """
        clients, b = uniforms.shape
        sizes, each = self.sizes[chosen, None], self.rows_per_observation
        own = np.minimum((uniforms * sizes).astype(np.int64), sizes.astype(np.int64) - 1)
        at = (self.ptr[:-1][chosen, None] + own * each)[:, :, None] + np.arange(each)
        ptr = np.arange(clients + 1) * (b * each)
        return LeafRows(self.y[at.ravel()], ptr, np.full(clients, float(b)), each)

    def pieces(self) -> Iterator[tuple[slice, Rows]]:
        """(observations, their rows) in order; a piece may cut through a client."""
        each = self.rows_per_observation
        step, last = max(PIECE_NUMBERS // max(each * self.y.shape[1], 1), 1), self.y.shape[0] // each
        for low in range(0, last, step):
            observations = slice(low, min(low + step, last))
            yield observations, self.y[observations.start * each : observations.stop * each]

    def portions(self) -> Iterator[tuple[slice, LeafRows]]:
        """(clients, their rows): consecutive clients who together have at most PORTION_NUMBERS, or one who has more.
        The rows of a portion are read into RAM, but not those of one client who has more.
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
            rows = slice(int(self.ptr[first]), int(self.ptr[last]))
            part = LeafRows(
                self.y[rows],
                self.ptr[first : last + 1] - self.ptr[first],
                self.sizes[first:last],
                self.rows_per_observation,
                None if self.weights is None else self.weights[rows],
            )
            yield slice(first, last), part if alone else part._loaded()
            first = last

    def client_means(self, model: CurvedEM, theta: Theta, chosen: np.ndarray) -> np.ndarray:
        """(A, q) mean statistics of the A chosen clients, chosen: (C,) bool."""
        means = []
        for clients, part in self.portions():
            if chosen[clients].any():
                some = part.of(chosen[clients])
                means.append(model.e_mean(theta, some.y, some.ptr, some.weights))
        if len(means) == 1:
            return means[0]
        return np.concatenate(means) if means else np.zeros((0, model.q))

    def weights_at(self, observations: slice) -> np.ndarray | None:
        """(n,) of these observations; None if rows have no weights."""
        return None if self.weights is None else self.weights[observations]

    def mean_by_client(self, values: np.ndarray) -> np.ndarray:
        """(C, ...) float64: means over the observations of each client of values (observations, ...), by their weights;
        NaN for a client without any."""
        columns = values.reshape(len(values), int(np.prod(values.shape[1:])))
        if self.weights is not None:
            own = self.weights[:, None]
            columns = np.where(own > 0, columns * own, 0.0)
        sums = np.stack([segment_sums(column, self.observation_ptr) for column in columns.T], axis=1)
        with np.errstate(invalid="ignore"):
            means = sums / np.where(self.sizes > 0, self.sizes, np.nan)[:, None]
        return means.reshape(len(self.sizes), *values.shape[1:])

    def _loaded(self) -> LeafRows:
        if not isinstance(self.y, RowView) or isinstance(self.y.x, np.ndarray):
            return self
        return replace(self, y=replace(self.y, x=np.asarray(self.y.x)))


def rows_of(
    block: ClientBlock, scaling: Scaling | None = None, rows_per_observation: int = 1, weight_column: int | None = None
) -> LeafRows:
    """The rows of the clients of a block; a client of a population of counts has one row, its counts.

    scaling: what dense rows are standardised by; None to leave them as they are
    weight_column: see `fedcore.methods.federated_em.row_weights`; None: the rows have no weights

    Raises PopulationError for what is no weight.
    """
    if isinstance(block, CountsBlock):
        ptr = np.arange(block.clients + 1)
        return LeafRows(scipy.sparse.csr_matrix(block.csr, dtype=np.float64), ptr, np.ones(block.clients))
    none = np.zeros(0)
    centre, scale = (none, none) if scaling is None else (scaling.centre, scaling.scale)
    if weight_column is not None:
        found = row_weights(block, weight_column)
        weights = None if (found == 1.0).all() else found  # so that weights of 1 have the bits of no weights
        view = RowView(block.x, centre, scale, without=weight_column)
        return LeafRows(view, block.ptr, client_totals(block.ptr, weights), weights=weights)
    plain = isinstance(block.x, np.ndarray) and block.x.dtype == np.float64 and not len(centre)
    y = block.x if plain else RowView(block.x, centre, scale)
    return LeafRows(y, block.ptr, np.diff(block.ptr) / rows_per_observation, rows_per_observation)
