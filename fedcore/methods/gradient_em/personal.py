"""What each client is given: its own parameters, the labels of its rows, and how far the penalty left it apart."""

from __future__ import annotations

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.gradient_em import central, server, shrinkage
from fedcore.methods.gradient_em import memory as remembered
from fedcore.methods.gradient_em.baselines import pooled_model, pooled_theta
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.frame import in_data_units, inward, outward, rows_of
from fedcore.methods.gradient_em.local_steps import Rows, e_step, full_m_step, posteriors
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory

ADAPTED_STEPS = 30
LABELLED_ROWS = 10_000  # of a client in its outputs


def personalise(
    config: GradientEMConfig, state: GradientEMState, block: RowsBlock, memory: Memory | None
) -> ClientOutputs:
    """One row for each client of a leaf.

    centres:  (C, R, p) float64 its parameters in the units of the data; weights: (C, R) float64
    labels:   (C, L) int16 component of each of its rows, -1 beyond them; L: rows of the largest client, at most 10,000
    log_likelihood: (C,) float64 mean over its rows, nats, model's units; NaN without rows
    distance: (C, R) float64, fedgrem: how far its estimate is from the common centre in units of the threshold; above 1
              the penalty left it apart. NaN for components of too few rows
    apart:    (C, R) int8, fedgrem: 1 where it did

    Raises RunError before the first round.
    """
    own = parameters(config, state, block, memory)
    frame, rows = server.frame(state), rows_of(config, server.frame(state), block)
    theta, w = own["theta"], own["w"]
    g = labelling(config, state, block, memory, own, rows)
    labels = np.full((block.clients, min(max(state.largest, 1), LABELLED_ROWS)), -1, np.int16)
    sizes = np.diff(block.ptr)
    at = np.arange(len(rows.x)) - np.repeat(block.ptr[:-1], sizes)
    kept = at < labels.shape[1]
    labels[np.repeat(np.arange(block.clients), sizes)[kept], at[kept]] = g.argmax(axis=1)[kept]
    with np.errstate(invalid="ignore"):
        fit = e_step(rows, theta, w).log_likelihood / np.where(sizes > 0, sizes, np.nan)
    outputs = {
        "centres": in_data_units(config, frame, outward(config, frame, theta), block),
        "weights": w,
        "labels": labels,
        "log_likelihood": fit,
    }
    if config.algorithm == "fedgrem":
        outputs |= {"distance": own["distance"], "apart": (own["distance"] > 1.0).astype(np.int8)}
    return outputs


def parameters(
    config: GradientEMConfig, state: GradientEMState, block: RowsBlock, memory: Memory | None
) -> dict[str, np.ndarray]:
    """theta (C, R, p) in the model's units, w (C, R); of fedgrem also distance (C, R). Raises RunError."""
    if state.round < 1 or memory is None:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    frame, n = server.frame(state), np.diff(block.ptr).astype(np.float64)
    v, w = inward(config, frame, state.centres), memory["w"]
    if config.algorithm in ("pooled-em", "pooled-grem"):
        w = np.broadcast_to(state.weights, w.shape)
    if config.common:
        return {"theta": np.broadcast_to(v, (len(n), *v.shape)), "w": w}
    if config.local:
        return {"theta": inward(config, frame, memory["theta"]), "w": w}
    counts = remembered.effective_rows(config, n, w, memory["out"])
    if config.estimated:
        shrink = server.shrinkage_of_steps(config, state.round)
        share = remembered.share_of_full_step(config, shrink, w, n, memory)
        by = shrinkage.pull(counts, w, state.spread, share, config.limit, v.shape[1])
        theta = shrinkage.drawn(inward(config, frame, memory["theta"]), v, by)
        ratio = shrinkage.deviations(theta, v, by, v.shape[1]) / config.limit
    else:
        sent = server.penalty_sent(config, state, state.round)
        theta = remembered.after_central_update(config, frame, memory, n, state.centres, sent)
        tau = central.thresholds(sent, counts)
        distance = central.distances(inward(config, frame, memory["theta"]), v)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(counts > 0, distance / np.where(tau > 0, tau, np.nan), np.nan)
    if config.share_weights:
        w = remembered.shared_weights(state.weights, server.weights_penalty(config, state), w, n)
    return {"theta": theta, "w": w, "distance": ratio}


def adapted(
    config: GradientEMConfig, state: GradientEMState, rows: Rows, v: np.ndarray, *, move: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """theta (C, R, p), w (C, R) of clients that know the common centres v (R, p) and their own rows, model's units; by
    `ADAPTED_STEPS` EM steps. move: whether centres move as far as the run's pull allows, or the weights alone."""
    n, p = rows.sizes, v.shape[1]
    w = np.full((len(n), len(v)), 1.0 / len(v))
    theta = np.broadcast_to(v, (*w.shape, p))
    counts = np.broadcast_to(n[:, None], w.shape)
    sent = server.penalty_sent(config, state, state.round)
    for _ in range(ADAPTED_STEPS):
        sums = e_step(rows, theta, w, second=config.model == "regression", clip=config.gradient_clip)
        w = np.where(counts > 0, sums.mass / np.maximum(counts, 1.0), w)
        if not move or config.common:
            continue
        full = full_m_step(theta, sums)
        if config.estimated:
            theta = shrinkage.drawn(full, v, shrinkage.pull(counts, w, state.spread, np.ones(w.shape), config.limit, p))
        else:
            theta = np.where(counts[:, :, None] > 0, central.pulled(full, v, central.thresholds(sent, counts)), v)
    return theta, w


def labelling(
    config: GradientEMConfig,
    state: GradientEMState,
    block: RowsBlock,
    memory: Memory,
    own: dict[str, np.ndarray],
    rows: Rows | None = None,
) -> np.ndarray:
    """(N, R) posterior probabilities of the components of the rows of a leaf, which need not be those trained on."""
    rows = rows_of(config, server.frame(state), block) if rows is None else rows
    if config.algorithm == "pooled-em":
        y = rows.x if rows.y is None else np.column_stack([rows.x, rows.y])
        theta = pooled_theta(config, state)
        return pooled_model(config, state.centres.shape[1]).personalise(theta, y)["responsibilities"]
    theta = own["theta"]
    if config.algorithm == "local-fit" and rows.y is None:
        white = np.linalg.inv(np.linalg.cholesky(memory["covariance"])).transpose(0, 2, 1)
        theta = np.matmul(theta, white)
        x = np.empty_like(rows.x)
        for client, (low, high) in enumerate(zip(block.ptr[:-1], block.ptr[1:], strict=True)):
            x[low:high] = rows.x[low:high] @ white[client]
        rows = Rows(x, None, rows.ptr)
    return posteriors(rows, theta, own["w"])
