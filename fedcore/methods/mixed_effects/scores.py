"""How well a run predicts held-out rows of clients: the predictive density, and the squared error of its mean.

A client that has found b and C from its own training rows predicts y at x by sum of w_r N(x.b_r, s2 + x' C_r x); one
that has no rows yet by sum of N(x.m_r, s2 + x' D_r x) / R. "this run" is a client that joins later: it knows what all
share and its own rows. Beside it stand the common coefficients, each client's own least squares with the run's noise
and, on the population of the training, what a client remembers of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from fedcore.methods.mixed_effects import mixture, mixture_rounds, regression, regression_rounds
from fedcore.methods.mixed_effects.config import MixedEffectsConfig
from fedcore.methods.mixed_effects.mixture import Parts
from fedcore.methods.mixed_effects.personal import check_started, rows_of
from fedcore.methods.mixed_effects.state import MixedEffectsState, in_model_units
from fedcore.methods.mixture_models.local_steps import Rows
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory
from fedcore.rounds.scores import RUN, KnownMemories, ScoreTable, held_out, sums_with_errors, table_with_errors
from fedcore.rounds.statistics import Statistics

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
        CENTRES: of_new_clients(state, block.clients),
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
    found = regression_rounds.of_clients(config, state, rows)
    return Parts(np.ones((len(rows.sizes), 1)), found.coefficients[:, None], found.covariances[:, None])


def trained(config: MixedEffectsConfig, state: MixedEffectsState, rows: Rows, memory: Memory) -> Parts:
    """Of clients of the run that remember what they found, and have these rows."""
    if config.components > 1:
        return mixture_rounds.of_memory(config, state, rows, memory)[0]
    return adapted(config, state, rows)


def of_new_clients(state: MixedEffectsState, clients: int) -> Parts:
    return Parts.of_common(in_model_units(state), clients)


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
    return -mixture.log_density(held, parts, 1.0), squares
