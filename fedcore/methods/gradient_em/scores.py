"""How well a gradient EM run predicts held-out rows of clients: negative log-likelihood, nats per row.

A client adapts the common centres to its own training rows by EM steps with the run's penalty, as a client does that
joins later, and is scored on its held-out rows. Beside it stand the common centres with weights of the client's own
and, on the population that the run was trained on, the centres that a client has from the run itself.
Of regressions each line also has the mean squared error of what is expected of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from fedcore.errors import RunError
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import coordinates_of, log_scale, rows_of, to_model
from fedcore.methods.gradient_em.personal import ClientParameters, adapted, parameters
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.methods.mixture_models.local_steps import Rows, e_step, expected
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory
from fedcore.rounds.scores import RUN, KnownMemories, ScoreTable, held_out, sums_with_errors, table_with_errors
from fedcore.rounds.statistics import Statistics

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
        with np.errstate(all="ignore"):  # whoever has no memory counts for nothing
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
