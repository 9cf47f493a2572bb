"""How well a gradient EM run predicts held-out rows of clients: negative log-likelihood, nats per row.

A client adapts the released common centres to its own training rows by EM steps with the run's pull towards them, as a
client does that joins later, and is scored on its held-out rows. Beside it stand the common centres with weights of the
client's own and, on the population that the run was trained on, the centres that a client has from the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.errors import ConfigError, RunError
from fedcore.methods.gradient_em import server
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.frame import inward, log_scale, rows_of
from fedcore.methods.gradient_em.local_steps import e_step
from fedcore.methods.gradient_em.personal import adapted, parameters
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.population.blocks import ClientBlock
from fedcore.rounds import scores as held_rows
from fedcore.rounds.scores import RUN, KnownMemories, Table, held_out
from fedcore.rounds.statistics import Statistics

CENTRES, TRAINED = "common centres", "own centres as trained"


def evaluate_block(
    config: GradientEMConfig, state: GradientEMState, block: ClientBlock, kept: KnownMemories | None = None
) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows. kept: what they remember of the training.

    Raises ValueError if the block has no held-out part, RunError if the run has no centres yet, ConfigError for an
    algorithm that has no common centres.
    """
    held_part = held_out(block)
    if config.local or config.algorithm in ("pooled-em", "fedgmm"):
        raise ConfigError(
            f"runs of algorithm {config.algorithm!r} have no common centres that clients could be scored by.",
            'Score one with algorithm = "fedgrem".',
        )
    if state.round < 1:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    frame = server.frame(state)
    rows, held = rows_of(config, frame, block), rows_of(config, frame, held_part, block)
    v = inward(config, frame, state.centres)
    units = log_scale(config, frame, block)
    losses = {}
    for name, pull in ((RUN, True), (CENTRES, False)):
        theta, w = adapted(config, state, rows, v, move=pull)
        losses[name] = held.sizes * units - e_step(held, theta, w).log_likelihood
    known = np.zeros(block.clients, bool) if kept is None else kept.known
    if known.any():
        with np.errstate(all="ignore"):  # whoever has no memory counts for nothing
            own = parameters(config, state, block, kept.memory)
            losses[TRAINED] = held.sizes * units - e_step(held, own["theta"], own["w"]).log_likelihood
    else:
        losses[TRAINED] = np.zeros(block.clients)
    return held_rows.sums(block.leaf, held.sizes, losses, of={TRAINED: known})


def table(config: GradientEMConfig, statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return held_rows.table(statistics, (RUN, CENTRES, TRAINED))
