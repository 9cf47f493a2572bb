"""What each client is given: components and groups of its own rows, for that client only. Nothing of it is released."""

from __future__ import annotations

import numpy as np

from fedcore.methods.private_mixture.result import PrivateMixtureModel
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ClientOutputs

TILE = 2**14  # rows that are labelled at once


def personalise(model: PrivateMixtureModel, block: RowsBlock) -> ClientOutputs:
    """For each of the C clients of a leaf, and for its N rows.

    rows_labels: (N,) int32 component of every row, -1 for rows whose numbers are not finite; rows_groups: (N,) int32
    group of that component, likewise; shares: (C, k) float64, of the client's labelled rows, NaN without any;
    component: (C,) int32, the most frequent, -1 without any; group: (C,) int32, of that component.
    """
    n, k = block.x.shape[0], model.components
    labels = np.full(n, -1, np.int32)
    with np.errstate(all="ignore"):
        for low in range(0, n, TILE):
            x = np.asarray(block.x[low : low + TILE], np.float64)
            usable = model.usable(x)
            labels[low : low + TILE][usable] = model.labels(x[usable])
    group = np.append(model.group, -1).astype(np.int32)
    client = np.repeat(np.arange(block.clients), np.diff(block.ptr))
    known = labels >= 0
    counts = np.bincount(client[known] * k + labels[known], minlength=block.clients * k)
    counts = counts.reshape(-1, k).astype(np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)
    component = np.where(totals[:, 0] > 0, counts.argmax(axis=1), -1).astype(np.int32)
    return {
        "rows_labels": labels,
        "rows_groups": group[labels],
        "shares": shares,
        "component": component,
        "group": group[component],
    }
