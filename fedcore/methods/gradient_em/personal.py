"""What each client is given: its own parameters, the labels of its rows, and its distance from the common centres."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.gradient_em import memory as memories
from fedcore.methods.gradient_em import server
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import coordinates_of, rows_of, to_data, to_model, to_standardised
from fedcore.methods.gradient_em.penalty import penalty_of
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.methods.mixture_models.local_steps import (
    Rows,
    e_step,
    expected,
    full_m_step,
    labels_of_clients,
    posteriors,
)
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory, took_no_part

ADAPTED_STEPS = 30


class ClientParameters(NamedTuple):
    """Of C clients, model's units.

    theta: (C, R, p); w: (C, R). distance: (C, R), None without a penalty: how far a client's estimate is from the
    common centre, in units of what the penalty bounds; NaN for components that do not count
    """

    theta: np.ndarray
    w: np.ndarray
    distance: np.ndarray | None = None


def personalise(
    config: GradientEMConfig, state: GradientEMState, block: RowsBlock, memory: Memory | None
) -> ClientOutputs:
    """One row for each client of a leaf.

    centres:  (C, R, p) float64 its parameters in the units of the data; weights: (C, R) float64
    labels:   (C, L) int16 component of each of its rows, -1 beyond them; L: rows of the largest client, at most 10,000
    log_likelihood: (C,) float64 mean over its rows, nats, model's units; NaN without rows
    rows_fitted, rows_residual: (N,) float64, of regressions: the response that is expected of each row by its inputs
              and its client's own parameters, by their weights; and what is left of the response; units of the data
    distance: (C, R) float64, fedgrem: how far its estimate is from the common centre in units of the threshold. NaN for
              components of too few rows
    apart:    (C, R) int8, fedgrem: 1 where the distance is above 1

    Raises RunError before the first round.
    """
    own = parameters(config, state, block, memory)
    rows = rows_of(config, coordinates_of(state), block)
    return outputs_of(config, state, block, rows, own, posteriors(rows, own.theta, own.w))


def outputs_of(
    config: GradientEMConfig, state: GradientEMState, block: RowsBlock, rows: Rows, own: ClientParameters, g: np.ndarray
) -> ClientOutputs:
    """The outputs of `personalise`. rows: of the leaf, model's units; g: (N, R) probabilities of their components."""
    coordinates = coordinates_of(state)
    labels, sizes = labels_of_clients(block.ptr, g, state.largest), np.diff(block.ptr)
    with np.errstate(invalid="ignore"):
        fit = e_step(rows, own.theta, own.w).log_likelihood / np.where(sizes > 0, sizes, np.nan)
    outputs = {
        "centres": to_data(config, coordinates, to_standardised(config, coordinates, own.theta), block),
        "weights": own.w,
        "labels": labels,
        "log_likelihood": fit,
    }
    if config.model == "regression":
        fitted = expected(rows, outputs["centres"], own.w)
        outputs |= {"rows_fitted": fitted, "rows_residual": block.x[:, -1].astype(np.float64) - fitted}
    if own.distance is not None:
        outputs |= {"distance": own.distance, "apart": (own.distance > 1.0).astype(np.int8)}
    return outputs


def known_memory(state: GradientEMState, memory: Memory | None) -> Memory:
    """Raises RunError before the first round, and for clients without memory."""
    if state.round < 1:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    if memory is None:
        raise took_no_part()
    return memory


def parameters(
    config: GradientEMConfig, state: GradientEMState, block: RowsBlock, memory: Memory | None
) -> ClientParameters:
    """The parameters that the clients of a leaf have from the run. Raises RunError before the first round."""
    memory = known_memory(state, memory)
    coordinates, n = coordinates_of(state), np.diff(block.ptr).astype(np.float64)
    v, w = to_model(config, coordinates, state.centres), memory["w"]
    t = to_model(config, coordinates, memory["theta"])
    penalty = memories.last_penalty(
        config,
        memory,
        n,
        v.shape[1],
        strength=state.penalty,
        between=state.spread,
        step_factor=server.step_factor(config, state.round),
    )
    theta = penalty.proximal_step(t, v)
    return ClientParameters(theta, w, penalty.relative_distance(t, theta, v))


def adapted(
    config: GradientEMConfig, state: GradientEMState, rows: Rows, v: np.ndarray, *, move: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """theta (C, R, p), w (C, R) of clients that know the common centres v (R, p) and their own rows, model's units; by
    `ADAPTED_STEPS` EM steps. move: whether centres move as far as the run's penalty allows, or the weights alone."""
    n, p = rows.sizes, v.shape[1]
    w = np.full((len(n), len(v)), 1.0 / len(v))
    theta = np.broadcast_to(v, (*w.shape, p))
    counts = np.broadcast_to(n[:, None], w.shape)
    for _ in range(ADAPTED_STEPS):
        sums = e_step(rows, theta, w, second=config.model == "regression")
        w = np.where(counts > 0, sums.mass / np.maximum(counts, 1.0), w)
        if not move:
            continue
        penalty = penalty_of(config, counts, w, p, strength=state.penalty, between=state.spread)
        theta = penalty.proximal_step(full_m_step(theta, sums), v)
    return theta, w
