"""The result of a run as tables: the common coefficients, and how much clients differ from them.

Per-client outputs: the client's coefficients, the components of its rows, and its distance from the others.

How well a run predicts held-out rows of clients: the predictive density, and the squared error of its mean.

A client that has found b and C from its own training rows predicts y at x by sum of w_r N(x.b_r, s2 + x' C_r x); one
that has no rows yet by sum of N(x.m_r, s2 + x' D_r x) / R. "this run" is a client that joins later: it knows the
common model and its own rows. It is compared with the common coefficients, with each client's own least squares with
the run's noise and, on the population of the training, with what a client remembers of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.mixed_effects import mixture_rounds, regression, regression_rounds
from fedcore.methods.mixed_effects.config import MixedEffectsConfig
from fedcore.methods.mixed_effects.mixture_rounds import Parts
from fedcore.methods.mixed_effects.state import MixedEffectsState, in_model_units
from fedcore.methods.mixture_models.local_steps import (
    Rows,
    e_step,
    expected,
    labels_of_clients,
    posteriors,
    regression_rows,
)
from fedcore.methods.mixture_models.tables import component_columns, of_inputs
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory, took_no_part
from fedcore.rounds.results import Column, Features, Result, Table
from fedcore.rounds.scores import RUN, KnownMemories, ScoreTable, held_out, sums_with_errors, table_with_errors
from fedcore.rounds.statistics import Statistics


def result_of(config: MixedEffectsConfig, state: MixedEffectsState, features: Features) -> Result:
    """Tables; the last two have a row for each input. Empty before the first round.

    components:  a row for each component: the standard deviation of the noise, and how many clients are left apart
    centres:     the common coefficients, in the units of the data
    differences: standard deviations of the clients' coefficients around the common ones
    """
    if state.round < 1:
        return Result()
    names = [f"component {r}" for r in range(len(state.centres))]
    of = of_inputs(features, config.intercept)
    deviations = np.sqrt(np.maximum(np.diagonal(state.between, axis1=1, axis2=2), 0.0))
    components = (
        Column("component", list(range(len(names)))),
        Column("noise", [float(np.sqrt(state.noise))] * len(names), features.unit(features.count - 1)),
        Column("clients left apart", [state.left_apart] * len(names)),
    )
    scatter = "Standard deviations of clients' coefficients around the common ones"
    return Result(
        (
            Table("components", "Components", components),
            Table("centres", "Common coefficients", (*of, *component_columns(names, state.centres))),
            Table("differences", scatter, (*of, *component_columns(names, deviations))),
        )
    )


# --- for each client --------------------------------------------------------------------------------------------------


class ClientCoefficients(NamedTuple):
    """Of C clients, in units of the noise. theta: (C, R, p); w: (C, R); distance: (C, R) of
    `regression.relative_distances`."""

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
    typical = state.rows / (state.clients * config.components)
    if config.components > 1:
        parts, last = mixture_rounds.of_memory(config, state, rows, memory)
        distance = regression.relative_distances(last.own, last.found, state.scores, typical)
        return ClientCoefficients(parts.coefficients, parts.w, distance)
    own, found = regression_rounds.of_clients(config, state, rows)
    distance = regression.relative_distances([own], [found], state.scores, typical)
    return ClientCoefficients(found.coefficients[:, None], np.ones((len(rows.sizes), 1)), distance)


def personalise(
    config: MixedEffectsConfig, state: MixedEffectsState, block: RowsBlock, memory: Memory | None
) -> ClientOutputs:
    """One row for each client of a leaf.

    centres:  (C, R, p) float64 its coefficients in the units of the data; weights: (C, R) float64
    labels:   (C, L) int16 component of each of its rows, -1 beyond them; L: rows of the largest client, at most 10,000
    log_likelihood: (C,) float64 mean over its rows, nats, in units of the noise; NaN without rows
    rows_fitted, rows_residual: (N,) float64 response that is expected of each row by its inputs and its client's own
              coefficients; and what is left of the response; units of the data
    distance: (C, R) float64 how far its coefficients or its noise are from the others', 1 where it begins to be apart
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


# --- scores on held-out rows ------------------------------------------------------------------------------------------


CENTRES, TRAINED, LEAST_SQUARES = "common centres", "own centres as trained", "own least squares"
LINES = (RUN, CENTRES, TRAINED, LEAST_SQUARES)


def score_block(
    config: MixedEffectsConfig, state: MixedEffectsState, block: RowsBlock, memories: KnownMemories | None = None
) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows. memories: what they remember of the training.

    Raises ValueError if the block has no held-out part, RunError if the run has no coefficients yet.
    """
    held_part = cast(RowsBlock, held_out(block))
    check_started(state)
    rows, held = rows_of(config, state, block), rows_of(config, state, held_part)
    parts = {
        RUN: adapted(config, state, rows),
        CENTRES: Parts.of_common(in_model_units(state), block.clients),
        LEAST_SQUARES: own_least_squares(rows),
    }
    known = np.zeros(block.clients, bool)
    if memories is not None and memories.known.any():
        known = memories.known
        with np.errstate(all="ignore"):  # a client without memory counts for nothing
            parts[TRAINED] = trained(config, state, rows, memories.memory)
    found, errors = {}, {}
    for name, own in parts.items():
        with np.errstate(all="ignore"):
            nll, squares = losses(own, held)
        found[name] = nll + held.sizes * 0.5 * np.log(state.noise)
        errors[name] = state.noise * squares
    return sums_with_errors(block.leaf, held.sizes, found, errors, {TRAINED: known})


def score_table(statistics: Mapping[str, np.ndarray]) -> ScoreTable:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return table_with_errors(statistics, LINES)


def adapted(config: MixedEffectsConfig, state: MixedEffectsState, rows: Rows) -> Parts:
    """Of clients that know the common coefficients and these rows of theirs, model's units."""
    if config.components > 1:
        return mixture_rounds.adapted(config, state, rows)
    _, found = regression_rounds.of_clients(config, state, rows)
    return Parts(np.ones((len(rows.sizes), 1)), found.coefficients[:, None], found.covariances[:, None])


def trained(config: MixedEffectsConfig, state: MixedEffectsState, rows: Rows, memory: Memory) -> Parts:
    """Of clients of the run that remember what they found, and have these rows."""
    if config.components > 1:
        return mixture_rounds.of_memory(config, state, rows, memory)[0]
    return adapted(config, state, rows)


def own_least_squares(rows: Rows) -> Parts:
    """Each client's least squares, with a ridge that is negligible unless its rows leave a direction open."""
    coefficients = regression.own_fits(regression.systems(rows)).coefficients[:, None]
    p = coefficients.shape[2]
    return Parts(np.ones((len(coefficients), 1)), coefficients, np.zeros((len(coefficients), 1, p, p)))


def losses(parts: Parts, held: Rows) -> tuple[np.ndarray, np.ndarray]:
    """(C,) summed negative log-densities of the held-out rows, and (C,) summed squared errors; model's units."""
    means = np.einsum("cr,crp->cp", parts.w, parts.coefficients)
    left = held.responses - np.einsum("ij,ij->i", held.x, means[held.owners])
    squares = np.bincount(held.owners, left**2, len(held.sizes))
    return -mixture_rounds.log_density(held, parts, 1.0), squares
