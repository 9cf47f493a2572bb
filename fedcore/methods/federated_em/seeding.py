"""k-means++ over the clients: seeds for the components of mixtures, and the clusters around them.

Several initialisations share each pass. Not private: a seed is the row of a client.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.differences import tile_clients
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.federated_em.messages import ClusterMessage, SeedMessage
from fedcore.methods.federated_em.natural_codec import Natural
from fedcore.methods.federated_em.resolution import COMPONENT_ERROR
from fedcore.methods.mixture_models.client_sums import divisors_of, row_tiles
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.initialisation import cluster_sums, draw_row, squared_distances, sums_of_clients
from fedcore.methods.mixture_models.natural_units import NaturalUnits
from fedcore.population.blocks import ClientBlock
from fedcore.randomness import ClientDither
from fedcore.rounds.statistics import FloatSum, Statistic, Statistics

CLUSTERS = "federated_em/clusters"
SMALLEST_VARIANCE = 1e-12


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


def coded_clusters(config: FederatedEMConfig, message: ClusterMessage, block: ClientBlock) -> Statistics:
    """clusters: as `sum_clusters`, divided by the rows of the population; each client sends the means over its own rows
    in natural units. costs: (1,) bits sent.

    The units are those of components of equal weights around the centres, with the pooled variances.
    """
    leaf = rows_of(block, message.scaling, weight_column=config.weight_column)
    _, k, d = message.centres.shape
    model = GaussianMixture(k, d, "diag")
    pooled = np.maximum(message.scaling.variance, SMALLEST_VARIANCE)
    theta = {"weights": np.full(k, 1 / k), "means": np.zeros((k, d)), "covariances": np.tile(pooled, (k, 1))}
    codec = Natural(NaturalUnits(model, theta), 1.0, component_step=message.component_step)
    weights, numbers = leaf.sizes / message.rows, block.first + np.arange(block.clients)
    found, bits = [], 0
    for start, centres in enumerate(message.centres):
        total, number = np.zeros(model.q), message.number * len(message.centres) + start
        dither = ClientDither(message.seed, CLUSTERS, number, block.first, model.q, codec.order)
        for clients in row_tiles(block.clients, tile_clients(model.q)):
            ptr, sizes = leaf.ptr[clients.start : clients.stop + 1], leaf.sizes[clients]
            rows = slice(int(ptr[0]), int(ptr[-1]))
            own = None if leaf.weights is None else leaf.weights[rows]
            means = sums_of_clients(leaf.y[rows], ptr - ptr[0], centres, own) / divisors_of(sizes)[:, None, None]
            uniforms = dither.of_next(len(sizes))
            decoded, lengths = codec.transmit(model.layout.pack(means), uniforms, numbers[clients])
            total += weights[clients] @ decoded
            bits += int(lengths[sizes > 0].sum())
        found.append(np.concatenate(model.layout.unpack(total), axis=1))
    return {"clusters": FloatSum.at(block.leaf, found), "costs": FloatSum.at(block.leaf, [bits])}


def decoded_sums(sums: np.ndarray, rows: float, variance: np.ndarray) -> np.ndarray:
    """The sums of `coded_clusters` (R, G, 1 + 2 d) in the form of `lloyd_step` and `parameters_from_clusters`. Clusters
    that the errors cannot distinguish from empty ones are empty, and no variance is below what errors leave of the
    pooled (d,)."""
    sums = sums * rows
    counts, d = sums[..., :1], sums.shape[-1] // 2
    sums = np.where(counts < COMPONENT_ERROR * rows / sums.shape[1], 0.0, sums)
    counts, first = sums[..., :1], sums[..., 1 : 1 + d]
    least = first**2 / divisors_of(counts) + COMPONENT_ERROR * variance * counts
    sums[..., 1 + d :] = np.maximum(sums[..., 1 + d :], least)
    return sums


def sum_clusters(config: FederatedEMConfig, message: ClusterMessage, block: ClientBlock) -> Statistics:
    """`coded_clusters` where the message has a step of a codec; else
    clusters: (R, G, 1 + 2 d) number, sum and sum of squares of the rows nearest to each centre, about it; with gaps
    (R, G, 1 + 3 d), with the entries of each column; rows and entries by the rows' weights."""
    if message.component_step:
        return coded_clusters(config, message, block)
    leaf = rows_of(block, message.scaling, weight_column=config.weight_column)
    sums = [cluster_sums(leaf.y, centres, message.gaps, leaf.weights) for centres in message.centres]
    return {"clusters": FloatSum.at(block.leaf, sums)}
