"""Per-client outputs: a client's parameters, the labels of its rows, and its distance from the common centres.

How well a gradient EM run predicts held-out rows of clients: negative log-likelihood, nats per row.

A client adapts the common centres to its training rows by EM steps with the run's penalty, as a client does that joins
later, and is scored on its held-out rows. It is compared with the common centres with the client's weights. On the
population that the run was trained on, it is also compared with the centres that the client has from the run.
For regressions each line also has the mean squared error of a row's expected response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.gradient_em import memory as memories
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import (
    coordinates_of,
    log_scale,
    rows_of,
    to_data,
    to_model,
    to_standardised,
)
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
from fedcore.rounds.scores import RUN, KnownMemories, ScoreTable, held_out, sums_with_errors, table_with_errors
from fedcore.rounds.statistics import Statistics

ADAPTED_STEPS = 30


class ClientParameters(NamedTuple):
    """Of C clients, model's units.

    theta: (C, R, p); w: (C, R). distance: (C, R), None without a penalty: how far a client's estimate is from the
    common centre, in units of that beyond which it is apart; NaN for components that do not count
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
    distance: (C, R) float64, fedgrem: how far its estimate is from the common centre, in units of the limit of
              `fedcore.methods.mixture_models.apart`. NaN for components of too few rows
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
    penalty = memories.last_penalty(config, memory, n, v.shape[1], strength=state.penalty, between=state.spread)
    theta = penalty.proximal_step(t, v)
    return ClientParameters(theta, w, penalty.relative_distance(t, theta, v, state.scores))


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
        penalty = config.variant.penalty_of(counts, w, p, strength=state.penalty, between=state.spread)
        theta = penalty.proximal_step(full_m_step(theta, sums), v)
    return theta, w


# --- scores on held-out rows ------------------------------------------------------------------------------------------


CENTRES, TRAINED = "common centres", "own centres as trained"
LINES = (RUN, CENTRES, TRAINED)
OfClients = Callable[[Any, Any, RowsBlock, Memory | None], ClientParameters]


def score_block(
    config: GradientEMConfig,
    state: GradientEMState,
    block: RowsBlock,
    memories: KnownMemories | None = None,
    *,
    of_clients: OfClients = parameters,
    move: bool = True,
) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows.

    memories: what they remember of the training; of_clients: what follows from it; move: whether the centres of a
    client that joins later leave the common ones. Raises ValueError if the block has no held-out part, RunError if the
    run has no centres yet.
    """
    held_part = cast(RowsBlock, held_out(block))
    if state.round < 1:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    coordinates = coordinates_of(state)
    rows, held = rows_of(config, coordinates, block), rows_of(config, coordinates, held_part, block)
    v = to_model(config, coordinates, state.centres)
    units = log_scale(config, coordinates, block)
    parts = {name: adapted(config, state, rows, v, move=moves) for name, moves in ((RUN, move), (CENTRES, False))}
    known = np.zeros(block.clients, bool)
    if memories is not None and memories.known.any():
        known = memories.known
        with np.errstate(all="ignore"):  # clients without memory do not count
            own = of_clients(config, state, block, memories.memory)
        parts[TRAINED] = (own.theta, own.w)
    losses, errors = {}, {}
    for name, (theta, w) in parts.items():
        with np.errstate(all="ignore"):
            losses[name] = held.sizes * units - e_step(held, theta, w).log_likelihood
            if config.model == "regression":
                errors[name] = np.exp(2 * units) * squared_errors(held, theta, w)
    losses.setdefault(TRAINED, np.zeros(block.clients))
    return sums_with_errors(block.leaf, held.sizes, losses, errors, {TRAINED: known})


def score_table(statistics: Mapping[str, np.ndarray]) -> ScoreTable:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return table_with_errors(statistics, LINES)


def squared_errors(held: Rows, theta: np.ndarray, w: np.ndarray) -> np.ndarray:
    """(C,) summed over the held-out rows, of what the mixture expects of them, model's units."""
    return np.bincount(held.owners, (held.responses - expected(held, theta, w)) ** 2, len(held.sizes))
