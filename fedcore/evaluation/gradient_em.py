"""How well a gradient EM run predicts held-out rows of clients: negative log-likelihood, nats per row.

A client adapts the released common centres to its own training rows by EM steps with the run's pull towards them, as a
client does that joins later, and is scored on its held-out rows; memories of the run are not read. Beside it stand the
common centres with weights of the client's own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.aggregation import FloatSum, Statistics
from fedcore.errors import ConfigError, PopulationError, RunError
from fedcore.evaluation.federated_em import RUN, Row, Table
from fedcore.gradient_em import server
from fedcore.gradient_em.config import GradientEMConfig
from fedcore.gradient_em.frame import inward, log_scale, rows_of
from fedcore.gradient_em.local_steps import e_step
from fedcore.gradient_em.personal import adapted
from fedcore.gradient_em.state import GradientEMState
from fedcore.population.blocks import ClientBlock

CENTRES = "common centres"


def evaluate_block(config: GradientEMConfig, state: GradientEMState, block: ClientBlock) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows.

    Raises ValueError if the block has no held-out part, RunError if the run has no centres yet, ConfigError for an
    algorithm that has no common centres.
    """
    if block.heldout is None:
        raise ValueError("the block has no held-out rows")
    if config.local or config.algorithm in ("pooled-em", "fedgmm"):
        raise ConfigError(f"runs of algorithm {config.algorithm!r} have no common centres that clients could be scored "
                          "by.", 'Score one with algorithm = "fedgrem".')  # fmt: skip
    if state.round < 1:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    frame = server.frame(state)
    rows, held = rows_of(config, frame, block), rows_of(config, frame, block.heldout, block)
    v = inward(config, frame, state.centres)
    units = log_scale(config, frame, block)
    m = held.sizes
    statistics: Statistics = {"sizes": FloatSum.at(block.leaf, [np.sum(m > 0), m.sum(), (m**2).sum(), np.sum(m == 0)])}
    for name, pull in ((RUN, True), (CENTRES, False)):
        theta, w = adapted(config, state, rows, v, move=pull)
        loss = m * units - e_step(held, theta, w).log_likelihood
        statistics[name] = FloatSum.at(block.leaf, [loss.sum(), (loss**2).sum(), (loss * m).sum()])
    return statistics


def table(config: GradientEMConfig, statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    clients, rows, squares, skipped = statistics["sizes"]
    if rows == 0:
        raise PopulationError("no client has held-out rows.", "Ingest the population with a held-out part.")
    lines = []
    for name in (RUN, CENTRES):
        total, total_squares, product = statistics[name]
        mean = total / rows
        spread = max(total_squares - 2 * mean * product + mean**2 * squares, 0.0)
        lines.append(Row(name, float(mean), float(np.sqrt(spread) / rows)))
    return Table(tuple(lines), int(clients), int(rows), int(skipped))
