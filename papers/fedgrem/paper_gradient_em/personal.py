"""The parameters that clients have from a baseline, and the components of their rows."""

from __future__ import annotations

import numpy as np
from fedcore.papers.fedgrem.paper_gradient_em import pooled
from fedcore.papers.fedgrem.paper_gradient_em.config import POOLED, PaperGradientEMConfig
from fedcore.papers.fedgrem.paper_gradient_em.state import PaperGradientEMState

from fedcore.methods.gradient_em import personal
from fedcore.methods.gradient_em.coordinates import coordinates_of, rows_of, to_model
from fedcore.methods.gradient_em.personal import ClientParameters, known_memory
from fedcore.methods.mixture_models.local_steps import Rows, posteriors
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory


def personalise(
    config: PaperGradientEMConfig, state: PaperGradientEMState, block: RowsBlock, memory: Memory | None
) -> ClientOutputs:
    """As `gradient_em`; baselines have no distance."""
    own = parameters(config, state, block, memory)
    rows = rows_of(config, coordinates_of(state), block)
    g = labelling(config, state, block, known_memory(state, memory), own, rows)
    return personal.outputs_of(config, state, block, rows, own, g)


def parameters(
    config: PaperGradientEMConfig, state: PaperGradientEMState, block: RowsBlock, memory: Memory | None
) -> ClientParameters:
    """The parameters that the clients of a leaf have from the run. Raises RunError before the first round."""
    if not config.baseline:
        return personal.parameters(config, state, block, memory)
    memory, coordinates = known_memory(state, memory), coordinates_of(state)
    w = memory["w"]
    if config.algorithm in POOLED:
        w = np.broadcast_to(state.weights, w.shape)
    if config.local:
        return ClientParameters(to_model(config, coordinates, memory["theta"]), w)
    v = to_model(config, coordinates, state.centres)
    return ClientParameters(np.broadcast_to(v, (block.clients, *v.shape)), w)


def labelling(
    config: PaperGradientEMConfig,
    state: PaperGradientEMState,
    block: RowsBlock,
    memory: Memory,
    own: ClientParameters,
    rows: Rows | None = None,
) -> np.ndarray:
    """(N, R) posterior probabilities of the components of the rows of a leaf, which need not be those trained on."""
    rows = rows_of(config, coordinates_of(state), block) if rows is None else rows
    if config.algorithm == "pooled-em":
        y = rows.x if rows.y is None else np.column_stack([rows.x, rows.y])
        model = pooled.model_of(config, state.centres.shape[1])
        return model.personalise(pooled.parameters_of(config, state), y)["responsibilities"]
    theta = own.theta
    if config.algorithm == "local-fit" and rows.y is None:
        white = np.linalg.inv(np.linalg.cholesky(memory["covariance"])).transpose(0, 2, 1)
        theta = np.matmul(theta, white)
        x = np.empty_like(rows.x)
        for client, (low, high) in enumerate(zip(block.ptr[:-1], block.ptr[1:], strict=True)):
            x[low:high] = rows.x[low:high] @ white[client]
        rows = Rows(x, None, rows.ptr)
    return posteriors(rows, theta, own.w)
