"""Rows for the starts of mixtures, and the clusters around them, for several starts in one pass over the clients."""

from __future__ import annotations

import numpy as np

from fedcore.methods.federated_em.clients import rows_of
from fedcore.methods.federated_em.messages import ClusterMessage, PickMessage
from fedcore.methods.mixture_models.initialisation import cluster_sums, nearest_squares, pick_row
from fedcore.population.blocks import ClientBlock
from fedcore.rounds.statistics import FloatSum, Statistics


def pick(message: PickMessage, block: ClientBlock) -> Statistics:
    """row_r: for each start r a row drawn from this leaf, with its client's score; -inf if no row may be drawn."""
    leaf, (starts, number, _) = rows_of(block, message.scaling), message.chosen.shape
    statistics = {}
    for start, chosen in enumerate(message.chosen):
        weights = np.zeros(leaf.y.shape[0])
        if number:
            squares = nearest_squares(leaf.y, chosen)
            with np.errstate(divide="ignore"):  # a row that was chosen is not drawn again
                weights = np.log(squares if message.far else (squares > 0).astype(np.float64))
        draw = number * starts + start
        statistics[f"row_{start}"] = pick_row(leaf.y, leaf.ptr, block.first, weights, message.seed, draw)
    return statistics


def clusters(message: ClusterMessage, block: ClientBlock) -> Statistics:
    """clusters: (R, G, 1 + 2 d) number, sum and sum of squares of the rows nearest to each centre, about it."""
    leaf = rows_of(block, message.scaling)
    return {"clusters": FloatSum.at(block.leaf, [cluster_sums(leaf.y, centres) for centres in message.centres])}
