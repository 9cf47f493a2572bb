"""What each client is given: the components of its own rows, or its rows completed, under the shared parameters."""

from __future__ import annotations

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.federated_em import models as families
from fedcore.methods.federated_em.clients import LeafRows, rows_of
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.server import scaling
from fedcore.methods.federated_em.state import FederatedEMState
from fedcore.population.blocks import ClientBlock, segment_sums
from fedcore.rounds.method import ClientOutputs


def personalise(config: FederatedEMConfig, state: FederatedEMState, block: ClientBlock) -> ClientOutputs:
    """For each client of a leaf, and for its rows.

    log_likelihood: (C,) float64 mean over its rows (tables), nats, in standardised units; NaN without rows
    mixtures:       responsibilities (C, G) float64, the mean over its rows, NaN without rows; component (C,) int32, the
                    largest of them, -1 without rows; and for every row rows_responsibilities (N, G) float32
    other models:   rows_imputed (N, d) float64: every row completed, in the units of the data
    """
    if not len(state.theta):
        raise RunError("the run stopped before it had parameters.", "Resume it first.")
    leaf = rows_of(block, scaling(state), config.unit)
    theta, model = state.parameters(), families.model_of(config, scaling(state))
    filled = leaf.sizes > 0
    outputs = {"log_likelihood": _means(model.log_likelihood(theta, leaf.y), leaf)}
    rows = model.personalise(theta, leaf.y)
    if "responsibilities" in rows:
        every = np.asarray(rows["responsibilities"])
        mean = _means(every, leaf)
        component = np.where(filled, np.nan_to_num(mean).argmax(axis=1), -1)
        outputs |= {"responsibilities": mean, "component": component.astype(np.int32)}
        # A client of counts has one row, which is what the arrays above say of it.
        return outputs if config.kind == "counts" else outputs | {"rows_responsibilities": every.astype(np.float32)}
    imputed = np.asarray(rows["imputed"])
    if len(state.centre):
        imputed = imputed * state.scale + state.centre
    return {**outputs, "rows_imputed": np.where(np.isfinite(block.x), block.x, imputed)}  # what was seen, to the bit


def _means(values: np.ndarray, leaf: LeafRows) -> np.ndarray:
    """(C, ...) mean over the observations of each client; NaN without any."""
    columns, ptr = values.reshape(len(values), int(np.prod(values.shape[1:]))), leaf.ptr // leaf.unit
    sums = np.stack([segment_sums(column, ptr) for column in columns.T], axis=1)
    with np.errstate(invalid="ignore"):
        means = sums / np.where(leaf.sizes > 0, leaf.sizes, np.nan)[:, None]
    return means.reshape(len(leaf.sizes), *values.shape[1:])
