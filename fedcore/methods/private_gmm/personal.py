"""What each client is given: the components of its own rows, for that client only. Nothing of it is released."""

from __future__ import annotations

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.private_gmm.result import PrivateMixture
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ClientOutputs

TILE = 2**16  # rows that are labelled at once


def personalise(mixture: PrivateMixture, block: RowsBlock) -> ClientOutputs:
    """For each of the C clients of a leaf, and for its N rows.

    rows_labels: (N,) int32 component of every row, -1 for rows that are not finite; shares: (C, m) float64, of the
    client's labelled rows, NaN without any; component: (C,) int32, the most frequent, -1 without any.

    Raises RunError if the run has found no mixture.
    """
    if not mixture.found:
        raise RunError(f"the run found no mixture: {mixture.reason}.", "There is nothing to personalise.")
    n, m = block.x.shape[0], mixture.components
    labels = np.full(n, -1, np.int32)
    with np.errstate(all="ignore"):
        for low in range(0, n, TILE):
            x = np.asarray(block.x[low : low + TILE], np.float64)
            usable = np.isfinite(x).all(axis=1)
            labels[low : low + TILE][usable] = mixture.labels(x[usable])
    client = np.repeat(np.arange(block.clients), np.diff(block.ptr))
    known = labels >= 0
    counts = np.bincount(client[known] * m + labels[known], minlength=block.clients * m)
    counts = counts.reshape(-1, m).astype(np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    component = np.where(totals[:, 0] > 0, counts.argmax(axis=1), -1).astype(np.int32)
    return {"rows_labels": labels, "shares": shares, "component": component}
