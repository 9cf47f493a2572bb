"""How well the parameters of a federated EM run predict held-out rows: negative log-likelihood, nats per row.

Beside the run stands what needs no learning beyond moments: every column normal by itself, with the mean and variance
that the run standardised by. Only runs of models of rows that were standardised have it. The standard error treats a
client's rows as one draw, because rows of a client are alike: the ratio estimator over clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcore.aggregation import FloatSum, Statistics
from fedcore.errors import PopulationError, RunError
from fedcore.federated_em import families
from fedcore.federated_em.config import FederatedEMConfig
from fedcore.federated_em.leaf import rows_of
from fedcore.federated_em.server import scaling
from fedcore.federated_em.state import FederatedEMState
from fedcore.population.blocks import ClientBlock, segment_sums

RUN, MOMENTS = "this run", "normal columns"


@dataclass(frozen=True, slots=True)
class Row:
    """One line: mean negative log-likelihood of a held-out row in the units of the data, and its standard error."""

    method: str
    nll: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class Table:
    """clients, rows: that were scored. skipped: clients without held-out rows."""

    lines: tuple[Row, ...]
    clients: int
    rows: int
    skipped: int

    def to_json(self, where: str) -> dict:
        """For the run's evaluation. where: of the population, for the title."""
        return {
            "title": f"Negative log-likelihood of {self.rows} held-out rows of {self.clients} clients of {where}",
            "loss": "nll", "axis": "negative log-likelihood (nats per row)", "clients": self.clients,
            "held_out_rows": self.rows, "skipped": self.skipped,
            "rows": [{"method": line.method, "nll": line.nll, "se": line.standard_error} for line in self.lines],
        }  # fmt: skip


def evaluate_block(config: FederatedEMConfig, state: FederatedEMState, block: ClientBlock) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows.

    Raises ValueError if the block has no held-out part, RunError if the run has no parameters yet.
    """
    if block.heldout is None:
        raise ValueError("the block has no held-out rows")
    if not len(state.theta):
        raise RunError("the run stopped before it had parameters.", "Resume it first.")
    standard = scaling(state)
    leaf = rows_of(block.heldout, standard, config.unit)
    model = families.model_of(config, standard)
    losses = {RUN: -model.log_likelihood(state.parameters(), leaf.y)}
    if len(state.scale):
        observed = np.isfinite(leaf.y)
        # Back to the units of the data; a regression is a density of its response, the last column, alone.
        stretched = np.log(state.scale) * (np.arange(len(state.scale)) == len(state.scale) - 1
                                           if config.model == "regression" else 1.0)  # fmt: skip
        losses[RUN] = losses[RUN] + observed @ stretched
        if config.model == "gaussian":
            z = np.where(observed, leaf.y, 0.0)
            columns = 0.5 * (z**2 + observed * math.log(2 * math.pi)) + observed * np.log(state.scale)
            losses[MOMENTS] = columns.sum(axis=1)
    m = leaf.sizes.astype(np.float64)
    sizes = [np.sum(m > 0), np.sum(m), np.sum(m**2), np.sum(m == 0)]
    statistics: Statistics = {"sizes": FloatSum.at(block.leaf, sizes)}
    for name, loss in losses.items():
        s = segment_sums(loss, leaf.ptr // leaf.unit)
        statistics[name] = FloatSum.at(block.leaf, [np.sum(s), np.sum(s**2), np.sum(s * m)])
    return statistics


def table(config: FederatedEMConfig, statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    clients, rows, squares, skipped = statistics["sizes"]
    if rows == 0:
        raise PopulationError("no client has held-out rows.", "Ingest the population with a held-out part.")
    lines = []
    for name in (RUN, MOMENTS):
        if name in statistics:
            total, total_squares, product = statistics[name]
            mean = total / rows
            spread = max(total_squares - 2 * mean * product + mean**2 * squares, 0.0)
            lines.append(Row(name, float(mean), float(np.sqrt(spread) / rows)))
    return Table(tuple(lines), int(clients), int(rows), int(skipped))
