"""How well a gradient EM run predicts held-out rows of clients: negative log-likelihood, nats per row.

A client adapts the common centres to its own training rows by EM steps with the run's penalty, as a client does that
joins later, and is scored on its held-out rows. Beside it stand the common centres with weights of the client's own
and, on the population that the run was trained on, the centres that a client has from the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from fedcore.errors import ConfigError, RunError
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import coordinates_of, log_scale, rows_of, to_model
from fedcore.methods.gradient_em.local_steps import e_step
from fedcore.methods.gradient_em.personal import adapted, parameters
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.population.blocks import RowsBlock
from fedcore.rounds import scores as held_rows
from fedcore.rounds.scores import RUN, KnownMemories, Table, held_out
from fedcore.rounds.statistics import Statistics

CENTRES, TRAINED = "common centres", "own centres as trained"


def score_block(
    config: GradientEMConfig, state: GradientEMState, block: RowsBlock, memories: KnownMemories | None = None
) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows. memories: what they remember of the training.

    Raises ValueError if the block has no held-out part, RunError if the run has no centres yet, ConfigError for an
    algorithm that has no common centres.
    """
    held_part = cast(RowsBlock, held_out(block))
    if config.local or config.algorithm in ("pooled-em", "fedgmm"):
        raise ConfigError(
            f"runs of algorithm {config.algorithm!r} have no common centres that clients could be scored by.",
            'Score one with algorithm = "fedgrem".',
        )
    if state.round < 1:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    coordinates = coordinates_of(state)
    rows, held = rows_of(config, coordinates, block), rows_of(config, coordinates, held_part, block)
    v = to_model(config, coordinates, state.centres)
    units = log_scale(config, coordinates, block)
    losses = {}
    for name, move in ((RUN, True), (CENTRES, False)):
        theta, w = adapted(config, state, rows, v, move=move)
        losses[name] = held.sizes * units - e_step(held, theta, w).log_likelihood
    known, losses[TRAINED] = np.zeros(block.clients, bool), np.zeros(block.clients)
    if memories is not None and memories.known.any():
        known = memories.known
        with np.errstate(all="ignore"):  # whoever has no memory counts for nothing
            own = parameters(config, state, block, memories.memory)
            losses[TRAINED] = held.sizes * units - e_step(held, own.theta, own.w).log_likelihood
    return held_rows.sums(block.leaf, held.sizes, losses, of={TRAINED: known})


def score_table(statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return held_rows.table(statistics, (RUN, CENTRES, TRAINED))
