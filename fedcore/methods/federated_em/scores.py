"""How well the parameters of a federated EM run predict held-out rows: negative log-likelihood, nats per row.

The baseline needs no training beyond moments: every column is normal by itself, with the mean and variance by which the
run standardised. Only runs of models of standardised rows have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.federated_em import models
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.federated_em.row_weights import rows_that_count
from fedcore.methods.federated_em.state import FederatedEMState
from fedcore.population.blocks import ClientBlock, segment_sums
from fedcore.rounds import scores as held_rows
from fedcore.rounds.scores import RUN, Table, held_out
from fedcore.rounds.statistics import Statistics

MOMENTS = "normal columns"


def evaluate_block(config: FederatedEMConfig, state: FederatedEMState, block: ClientBlock) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows; where these have weights, by their weights.

    Raises ValueError if the block has no held-out part, RunError if the run has no parameters yet, PopulationError for
    what is no weight.
    """
    held = rows_that_count(held_out(block), config.weight_column)
    if not len(state.theta):
        raise RunError("the run stopped before it had parameters.", "Resume it first.")
    scaling = state.scaling()
    leaf = rows_of(held, scaling, config.rows_per_observation, config.weight_column)
    model = models.model_of(config, scaling)
    losses = {RUN: models.log_scales(config, scaling, leaf.y) - model.log_likelihood(state.parameters(), leaf.y)}
    if len(state.scale) and config.model.name == "gaussian":
        observed = np.isfinite(leaf.y)
        z = np.where(observed, leaf.y, 0.0)
        columns = 0.5 * (z**2 + observed * math.log(2 * math.pi)) + observed * np.log(state.scale)
        losses[MOMENTS] = columns.sum(axis=1)
    if leaf.weights is not None:
        losses = {name: loss * leaf.weights for name, loss in losses.items()}
    by_client = {name: segment_sums(loss, leaf.observation_ptr) for name, loss in losses.items()}
    rows = None if config.weight_column is None else leaf.y.shape[0]
    return held_rows.sums(block.leaf, leaf.sizes, by_client, rows=rows)


def table(config: FederatedEMConfig, statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return held_rows.table(statistics, (RUN, MOMENTS))
