"""Ragged clients as a few padded stacks, so that what is done for each client is a batched matrix product.

Clients are sorted by size and cut into stacks in which at most `PADDING` of the rows are padding. A client larger than
a stack is cut into pieces, whose sums add up. The cut depends on the sizes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

PADDING = 0.15
STACK_NUMBERS = 1_000_000  # float64 numbers of a stack


class Stacked(NamedTuple):
    """clients: (c,) int64, each once. rows: (c, m) int64 row numbers, or a slice of rows of equal clients that are
    neighbours. seen: (c, m) bool, False for padding; None: no padding. shape: (c, m)."""

    clients: np.ndarray
    rows: np.ndarray | slice
    seen: np.ndarray | None
    shape: tuple[int, int]

    def take(self, x: np.ndarray) -> np.ndarray:
        """(c, m, ...) of rows x (N, ...); padding repeats a row of the client."""
        if isinstance(self.rows, slice):
            return x[self.rows].reshape(*self.shape, *x.shape[1:])
        return x[self.rows]


def stacks(ptr: np.ndarray, numbers_per_row: int) -> Iterator[Stacked]:
    """All rows of all clients that have any, each row once. ptr: (C + 1,) int64."""
    ptr = np.asarray(ptr, np.int64)
    sizes = np.diff(ptr)
    most = max(STACK_NUMBERS // max(numbers_per_row, 1), 64)  # rows of a stack
    filled = np.flatnonzero(sizes)
    for client in filled[sizes[filled] > most]:
        for low in range(int(ptr[client]), int(ptr[client + 1]), most):
            high = min(low + most, int(ptr[client + 1]))
            yield Stacked(np.array([client]), slice(low, high), None, (1, high - low))
    rest = filled[sizes[filled] <= most]
    order = rest[np.argsort(sizes[rest], kind="stable")]
    start = 0
    for stop, m in _cuts(sizes[order]):
        each = max(1, most // m)
        for low in range(start, stop, each):
            yield _stack(order[low : min(low + each, stop)], ptr, sizes, m)
        start = stop


def _cuts(ordered: np.ndarray) -> Iterator[tuple[int, int]]:
    """(end, rows of the largest) of every run of sorted sizes with little padding."""
    values, counts = np.unique(ordered, return_counts=True)
    done, clients, rows, m = 0, 0, 0, 0
    for size, count in zip(values.tolist(), counts.tolist(), strict=True):
        if clients and size * (clients + count) * (1 - PADDING) > rows + size * count:
            done += clients
            yield done, m
            clients = rows = 0
        clients, rows, m = clients + count, rows + size * count, size
    if clients:
        yield done + clients, m


def _stack(clients: np.ndarray, ptr: np.ndarray, sizes: np.ndarray, m: int) -> Stacked:
    own, shape = sizes[clients], (len(clients), m)
    if (own == m).all():
        if (np.diff(clients) == 1).all() and ptr[clients[-1] + 1] - ptr[clients[0]] == m * len(clients):
            return Stacked(clients, slice(int(ptr[clients[0]]), int(ptr[clients[-1] + 1])), None, shape)
        return Stacked(clients, ptr[clients, None] + np.arange(m), None, shape)
    seen = np.arange(m) < own[:, None]
    return Stacked(clients, ptr[clients, None] + np.where(seen, np.arange(m), 0), seen, shape)


def of_clients(x: np.ndarray, ptr: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and ptr of some clients. chosen: (C,) bool."""
    if chosen.all():
        return x, ptr
    sizes = np.diff(ptr)
    return x[np.repeat(chosen, sizes)], np.concatenate([[0], np.cumsum(sizes[chosen])])
