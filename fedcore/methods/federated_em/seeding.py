"""k-means++ over the clients: seeds for the components of mixtures, and the clusters around them.

Several initialisations share each pass. Not private: a seed is the row of a client.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.federated_em.messages import ClusterMessage, SeedMessage
from fedcore.methods.mixture_models.initialisation import cluster_sums, draw_row, squared_distances
from fedcore.population.blocks import ClientBlock
from fedcore.rounds.statistics import FloatSum, Statistic, Statistics


def draw_seeds(config: FederatedEMConfig, message: SeedMessage, block: ClientBlock) -> Statistics:
    """row_r: for each initialisation r the leaf's candidate, a row with its client's score (`ArgMax`); the score is
    -inf if no row may be drawn."""
    leaf = rows_of(block, message.scaling, weight_column=config.weight_column)
    restarts, number, _ = message.chosen.shape
    statistics: dict[str, Statistic] = {}
    for restart, chosen in enumerate(message.chosen):
        log_weights = np.zeros(leaf.y.shape[0])
        if number:
            squares = squared_distances(leaf.y, chosen)
            with np.errstate(divide="ignore"):  # a row that was chosen is not drawn again
                log_weights = np.log(squares if message.by_distance else (squares > 0).astype(np.float64))
        if leaf.weights is not None:
            log_weights += np.log(leaf.weights)
        draw = number * restarts + restart
        statistics[f"row_{restart}"] = draw_row(leaf.y, leaf.ptr, block.first, log_weights, message.seed, draw)
    return statistics


def sum_clusters(config: FederatedEMConfig, message: ClusterMessage, block: ClientBlock) -> Statistics:
    """clusters: (R, G, 1 + 2 d) number, sum and sum of squares of the rows nearest to each centre, about it; with gaps
    (R, G, 1 + 3 d), with the entries of each column; rows and entries by the rows' weights."""
    leaf = rows_of(block, message.scaling, weight_column=config.weight_column)
    sums = [cluster_sums(leaf.y, centres, message.gaps, leaf.weights) for centres in message.centres]
    return {"clusters": FloatSum.at(block.leaf, sums)}
