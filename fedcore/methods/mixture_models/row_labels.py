"""What a mixture gives each client: the components of its rows, and how often each is there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedcore.population.blocks import RowsBlock


def labelled(
    block: RowsBlock,
    components: int,
    tile: int,
    usable: Callable[[np.ndarray], np.ndarray],
    labels_of: Callable[[np.ndarray], np.ndarray],
) -> dict[str, np.ndarray]:
    """rows_labels: (N,) int32 component of every row, -1 for rows that are not usable; shares: (C, m) float64, of the
    client's labelled rows, NaN without any; component: (C,) int32, the most frequent, -1 without any.

    tile: rows that are labelled at once; usable: (n,) bool of rows (n, d); labels_of: components of usable rows
    """
    n, m = block.x.shape[0], components
    labels = np.full(n, -1, np.int32)
    with np.errstate(all="ignore"):
        for low in range(0, n, tile):
            x = np.asarray(block.x[low : low + tile], np.float64)
            there = usable(x)
            labels[low : low + tile][there] = labels_of(x[there])
    client = np.repeat(np.arange(block.clients), np.diff(block.ptr))
    known = labels >= 0
    counts = np.bincount(client[known] * m + labels[known], minlength=block.clients * m)
    counts = counts.reshape(-1, m).astype(np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    component = np.where(totals[:, 0] > 0, counts.argmax(axis=1), -1).astype(np.int32)
    return {"rows_labels": labels, "shares": shares, "component": component}
