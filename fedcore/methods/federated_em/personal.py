"""Per-client outputs: the components of a client's rows, or its completed rows, under the shared parameters."""

from __future__ import annotations

from typing import cast

import numpy as np

from fedcore.errors import ConfigError, RunError
from fedcore.methods.federated_em import models
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.leaf_rows import rows_of
from fedcore.methods.federated_em.state import FederatedEMState
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputation import Imputation
from fedcore.population.blocks import ClientBlock, CountsBlock, RowsBlock
from fedcore.rounds.method import ClientOutputs


def personalise(config: FederatedEMConfig, state: FederatedEMState, block: ClientBlock) -> ClientOutputs:
    """For each client of a leaf, and for its rows; means over rows are by their weights, if they have any.

    log_likelihood: (C,) float64 mean over its rows (tables), nats, in standardised units; NaN without rows
    mixtures:       responsibilities (C, G) float64, the mean over its rows, NaN without rows; component (C,) int32, the
                    largest of them, -1 without rows; and for every row rows_responsibilities (N, G) float32
    rows_imputed:   (N, d) float64, every row completed, in the units of the data: of mixtures of Gaussians that were
                    trained on rows with gaps, and of models of incomplete rows and tables
    rows_log_density: (N,) float64 of every row, nats, in the units of the data; not of tables, which are not rows
    """
    _check_trained(state)
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
        if isinstance(block, CountsBlock):  # a client has one row, which the arrays above describe fully
            return outputs
        outputs["rows_log_density"] = densities - models.log_scales(config, scaling, leaf.y)
        if config.model.name == "gaussian" and state.gaps:
            x = np.asarray(block.x)
            seen = x if config.weight_column is None else np.delete(x, config.weight_column, axis=1)
            outputs["rows_imputed"] = _completed(config, block, imputation(config, state).means(seen))
        return outputs | {"rows_responsibilities": every.astype(np.float32)}
    if isinstance(block, CountsBlock):
        raise TypeError("models of incomplete rows do not read counts")
    if config.rows_per_observation == 1:
        outputs["rows_log_density"] = densities - models.log_scales(config, scaling, leaf.y)
    imputed = rows["imputed"]
    if len(state.centre):
        imputed = imputed * state.scale + state.centre
    return outputs | {"rows_imputed": _completed(config, block, imputed)}


def imputation(config: FederatedEMConfig, state: FederatedEMState) -> Imputation:
    """What the run says of missing entries of rows, without the column of weights. Raises ConfigError unless it is a
    mixture of Gaussians, RunError before it has parameters."""
    if config.model.name != "gaussian":
        raise ConfigError(f"model {config.model.name!r} does not fill gaps of single rows.", "Use model gaussian.")
    _check_trained(state)
    scaling = state.scaling()
    model = cast(GaussianMixture, models.model_of(config, scaling))
    return Imputation(model.components_of(state.parameters()), scaling.centre, scaling.scale)


def _check_trained(state: FederatedEMState) -> None:
    if not len(state.theta):
        raise RunError("the run stopped before it had parameters.", "Resume it first.")


def _completed(config: FederatedEMConfig, block: RowsBlock, imputed: np.ndarray) -> np.ndarray:
    """(N, d) rows of the population: what was seen, to the bit, and else the imputed entries (N, columns)."""
    if config.weight_column is not None:
        imputed = np.insert(imputed, config.weight_column, 0.0, axis=1)  # where all of the population's are there
    return np.where(np.isfinite(block.x), block.x, imputed)
