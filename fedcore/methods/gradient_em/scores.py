"""How well a gradient EM run predicts held-out rows of clients: negative log-likelihood, nats per row.

A client adapts the common centres to its own training rows by EM steps with the run's penalty, as a client does that
joins later, and is scored on its held-out rows. Beside it stand the common centres with weights of the client's own
and, on the population that the run was trained on, the centres that a client has from the run itself.
Of regressions each line also has the mean squared error of what is expected of a row. Local baselines, and mixtures of
all rows, have one line: what clients have from the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.gradient_em import mixed_scores, trained_scores
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import coordinates_of, log_scale, rows_of, to_model
from fedcore.methods.gradient_em.local_steps import Rows, e_step
from fedcore.methods.gradient_em.personal import adapted, parameters
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.methods.gradient_em.trained_scores import only_as_trained, squared_errors
from fedcore.population.blocks import RowsBlock
from fedcore.rounds import scores as held_rows
from fedcore.rounds.scores import RUN, KnownMemories, Row, ScoreTable, Table, held_out
from fedcore.rounds.statistics import Statistics

CENTRES, TRAINED, LEAST_SQUARES = "common centres", "own centres as trained", "own least squares"
LINES = (RUN, CENTRES, TRAINED, LEAST_SQUARES)
ERRORS_OF = "squared errors of "  # a line, among the statistics


@dataclass(frozen=True, slots=True)
class WithErrors:
    """A table of mean negative log-likelihoods with mean squared errors beside them, units of the data, each with the
    difference to that of the run and its standard error."""

    table: Table
    errors: Mapping[str, Row]

    def to_json(self, where: str) -> dict[str, Any]:
        found = self.table.to_json(where)
        return found | {"rows": [row | self._errors(row["method"]) for row in found["rows"]]}

    def _errors(self, line: str) -> dict[str, Any]:
        mine = self.errors[line]
        more, error = mine.difference or (None, None)
        return {"mse": mine.loss, "mse_difference": more, "mse_difference_se": error}


def score_block(
    config: GradientEMConfig, state: GradientEMState, block: RowsBlock, memories: KnownMemories | None = None
) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows. memories: what they remember of the training.

    Raises ValueError if the block has no held-out part, RunError if the run has no centres yet, ConfigError for a local
    baseline on another population than that of the training.
    """
    held_part = cast(RowsBlock, held_out(block))
    if state.round < 1:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    if only_as_trained(config):
        scored, nll, squares = trained_scores.losses(config, state, block, held_part, memories)
        found = dict(held_rows.sums(block.leaf, scored, {RUN: nll}))
        if squares is not None:
            found |= held_rows.sums(block.leaf, scored, {f"{ERRORS_OF}{RUN}": squares})
        return found
    coordinates = coordinates_of(state)
    rows, held = rows_of(config, coordinates, block), rows_of(config, coordinates, held_part, block)
    v = to_model(config, coordinates, state.centres)
    units = log_scale(config, coordinates, block)
    if config.mixed:
        return _of_mixed_effects(config, state, block, memories, rows, held)
    parts = {name: adapted(config, state, rows, v, move=move) for name, move in ((RUN, True), (CENTRES, False))}
    known = np.zeros(block.clients, bool)
    if memories is not None and memories.known.any():
        known = memories.known
        with np.errstate(all="ignore"):  # whoever has no memory counts for nothing
            own = parameters(config, state, block, memories.memory)
        parts[TRAINED] = (own.theta, own.w)
    losses, errors = {}, {}
    for name, (theta, w) in parts.items():
        with np.errstate(all="ignore"):
            losses[name] = held.sizes * units - e_step(held, theta, w).log_likelihood
            if config.model == "regression":
                errors[name] = np.exp(2 * units) * squared_errors(held, theta, w)
    losses.setdefault(TRAINED, np.zeros(block.clients))
    return _sums(block.leaf, held, losses, errors, known)


def _sums(
    leaf: int, held: Rows, losses: Mapping[str, np.ndarray], errors: Mapping[str, np.ndarray], known: np.ndarray
) -> Statistics:
    """errors: squared ones, by line; empty where there are none. known: (C,) bool, whom TRAINED is about."""
    found = held_rows.sums(leaf, held.sizes, losses, of={TRAINED: known})
    if not errors:
        return found
    named = {f"{ERRORS_OF}{name}": errors.get(name, np.zeros(len(held.sizes))) for name in losses}
    return {**found, **held_rows.sums(leaf, held.sizes, named, of={f"{ERRORS_OF}{TRAINED}": known})}


def _of_mixed_effects(
    config: GradientEMConfig,
    state: GradientEMState,
    block: RowsBlock,
    memories: KnownMemories | None,
    rows: Rows,
    held: Rows,
) -> Statistics:
    """Also each client's least squares, with the run's noise; and the squared errors of all lines."""
    clients, noise = len(rows.sizes), float(state.covariance[0, 0])
    parts = {
        RUN: mixed_scores.adapted(config, state, rows),
        CENTRES: mixed_scores.of_new_clients(state, clients),
        LEAST_SQUARES: mixed_scores.own_least_squares(rows),
    }
    known = np.zeros(clients, bool)
    if memories is not None and memories.known.any():
        known = memories.known
        with np.errstate(all="ignore"):  # whoever has no memory counts for nothing
            parts[TRAINED] = mixed_scores.trained(config, state, rows, memories.memory)
    losses, errors = {}, {}
    for name, own in parts.items():
        with np.errstate(all="ignore"):
            nll, squares = mixed_scores.losses(own, held)
        losses[name] = nll + held.sizes * 0.5 * np.log(noise)
        errors[name] = noise * squares
    return _sums(block.leaf, held, losses, errors, known)


def score_table(statistics: Mapping[str, np.ndarray]) -> ScoreTable:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    table = held_rows.table(statistics, LINES)
    if f"{ERRORS_OF}{RUN}" not in statistics:
        return table
    of_errors = held_rows.table(statistics, [f"{ERRORS_OF}{name}" for name in LINES])
    return WithErrors(table, {line.method.removeprefix(ERRORS_OF): line for line in of_errors.lines})
