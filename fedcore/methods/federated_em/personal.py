"""What each client is given: the components of its own rows, or its rows completed, under the shared parameters."""

from __future__ import annotations

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.federated_em import models
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.federated_em.state import FederatedEMState
from fedcore.population.blocks import ClientBlock, CountsBlock
from fedcore.rounds.method import ClientOutputs


def personalise(config: FederatedEMConfig, state: FederatedEMState, block: ClientBlock) -> ClientOutputs:
    """For each client of a leaf, and for its rows; means over rows are by their weights, if they have any.

    log_likelihood: (C,) float64 mean over its rows (tables), nats, in standardised units; NaN without rows
    mixtures:       responsibilities (C, G) float64, the mean over its rows, NaN without rows; component (C,) int32, the
                    largest of them, -1 without rows; and for every row rows_responsibilities (N, G) float32
    other models:   rows_imputed (N, d) float64: every row completed, in the units of the data
    rows_log_density: (N,) float64 of every row, nats, in the units of the data; not of tables, which are not rows
    """
    if not len(state.theta):
        raise RunError("the run stopped before it had parameters.", "Resume it first.")
    scaling, theta = state.scaling(), state.parameters()
    leaf = rows_of(block, scaling, config.rows_per_observation, config.weight_column)
    model = models.model_of(config, scaling)
    filled = leaf.sizes > 0
    densities = model.log_likelihood(theta, leaf.y)
    outputs = {"log_likelihood": leaf.mean_by_client(densities)}
    rows = model.personalise(theta, leaf.y)
    if "responsibilities" in rows:
        every = rows["responsibilities"]
        mean = leaf.mean_by_client(every)
        component = np.where(filled, np.nan_to_num(mean).argmax(axis=1), -1)
        outputs |= {"responsibilities": mean, "component": component.astype(np.int32)}
        if isinstance(block, CountsBlock):  # a client has one row, of which the arrays above tell all
            return outputs
        outputs["rows_log_density"] = densities - models.log_scales(config, scaling, leaf.y)
        return outputs | {"rows_responsibilities": every.astype(np.float32)}
    if isinstance(block, CountsBlock):
        raise TypeError("models of incomplete rows do not read counts")
    if config.rows_per_observation == 1:
        outputs["rows_log_density"] = densities - models.log_scales(config, scaling, leaf.y)
    imputed = rows["imputed"]
    if len(state.centre):
        imputed = imputed * state.scale + state.centre
    if config.weight_column is not None:
        imputed = np.insert(imputed, config.weight_column, 0.0, axis=1)  # where all of the population's are there
    return {**outputs, "rows_imputed": np.where(np.isfinite(block.x), block.x, imputed)}  # what was seen, to the bit
