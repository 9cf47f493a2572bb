"""What each client is given: its own coefficients, the components of its rows, and its distance from the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.mixed_effects import mixture_rounds, regression_rounds
from fedcore.methods.mixed_effects.config import MixedEffectsConfig
from fedcore.methods.mixed_effects.state import MixedEffectsState
from fedcore.methods.mixture_models.local_steps import (
    Rows,
    e_step,
    expected,
    labels_of_clients,
    posteriors,
    regression_rows,
)
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory, took_no_part


class ClientCoefficients(NamedTuple):
    """Of C clients, in units of the noise. theta: (C, R, p); w: (C, R); distance: (C, R) from the others, 1 where a
    client begins to count less, NaN without rows."""

    theta: np.ndarray
    w: np.ndarray
    distance: np.ndarray


def rows_of(config: MixedEffectsConfig, state: MixedEffectsState, block: RowsBlock) -> Rows:
    """The rows of a leaf, responses in units of the noise."""
    return regression_rows(block, state.noise, config.intercept)


def check_started(state: MixedEffectsState) -> None:
    """Raises RunError before the first round."""
    if state.round < 1:
        raise RunError("the run stopped before its first round.", "Resume it first.")


def coefficients(
    config: MixedEffectsConfig, state: MixedEffectsState, rows: Rows, memory: Memory | None
) -> ClientCoefficients:
    """What the clients of a leaf have from the run. Raises RunError without a memory."""
    if memory is None:
        raise took_no_part()
    if config.components > 1:
        parts, relative = mixture_rounds.of_memory(config, state, rows, memory)
        return ClientCoefficients(parts.coefficients, parts.w, relative)
    found = regression_rounds.of_clients(config, state, rows)
    return ClientCoefficients(found.coefficients[:, None], np.ones((len(rows.sizes), 1)), found.relative[:, None])


def personalise(
    config: MixedEffectsConfig, state: MixedEffectsState, block: RowsBlock, memory: Memory | None
) -> ClientOutputs:
    """One row for each client of a leaf.

    centres:  (C, R, p) float64 its coefficients in the units of the data; weights: (C, R) float64
    labels:   (C, L) int16 component of each of its rows, -1 beyond them; L: rows of the largest client, at most 10,000
    log_likelihood: (C,) float64 mean over its rows, nats, in units of the noise; NaN without rows
    rows_fitted, rows_residual: (N,) float64 response that is expected of each row by its inputs and its client's own
              coefficients; and what is left of the response; units of the data
    distance: (C, R) float64 how far its coefficients or its noise are from the others', 1 where it begins to count less
    apart:    (C, R) int8, 1 where the distance is above 1

    Raises RunError before the first round.
    """
    check_started(state)
    rows = rows_of(config, state, block)
    own = coefficients(config, state, rows, memory)
    sizes = np.diff(block.ptr)
    with np.errstate(invalid="ignore"):
        fit = e_step(rows, own.theta, own.w).log_likelihood / np.where(sizes > 0, sizes, np.nan)
    theta = own.theta * np.sqrt(state.noise)
    fitted = expected(rows, theta, own.w)
    return {
        "centres": theta,
        "weights": own.w,
        "labels": labels_of_clients(block.ptr, posteriors(rows, own.theta, own.w), state.largest),
        "log_likelihood": fit,
        "rows_fitted": fitted,
        "rows_residual": block.x[:, -1].astype(np.float64) - fitted,
        "distance": own.distance,
        "apart": (own.distance > 1.0).astype(np.int8),
    }
