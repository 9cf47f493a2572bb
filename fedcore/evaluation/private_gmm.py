"""How well the mixture of a private_gmm run predicts held-out rows: negative log-likelihood, nats per row.

Beside it stands one normal column by column, with the mean and variance of the released mixture: what the run would say
if it knew nothing of components. The standard error treats a client's rows as one draw: the ratio estimator over
clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcore.aggregation import FloatSum, Statistics
from fedcore.errors import PopulationError, RunError
from fedcore.population.blocks import ClientBlock, segment_sums
from fedcore.private_gmm.config import PrivateGMMConfig
from fedcore.private_gmm.result import PrivateMixture, result_of
from fedcore.private_gmm.start import start_of
from fedcore.private_gmm.state import PrivateGMMState

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


def evaluate_block(config: PrivateGMMConfig, state: PrivateGMMState, block: ClientBlock) -> Statistics:
    """Sums over the clients of one leaf that have held-out rows.

    Raises ValueError if the block has no held-out part, RunError if the run found no mixture, PopulationError for rows
    that are not finite.
    """
    if block.heldout is None:
        raise ValueError("the block has no held-out rows")
    mixture = result_of(config.covariance, state)
    if not mixture.found:
        raise RunError(f"the run found no mixture: {mixture.reason}.", "There is nothing to score.")
    x, ptr = np.asarray(block.heldout.x, np.float64), block.heldout.ptr
    if not np.isfinite(x).all():
        raise PopulationError("held-out rows have missing or infinite entries.", "Score a population without them.")
    losses = {RUN: -mixture.log_likelihood(x), MOMENTS: _columns(config, state, mixture, x)}
    m = np.diff(ptr).astype(np.float64)
    statistics: Statistics = {
        "sizes": FloatSum.at(block.leaf, [np.sum(m > 0), np.sum(m), np.sum(m**2), np.sum(m == 0)])
    }
    for name, loss in losses.items():
        s = segment_sums(loss, ptr)
        statistics[name] = FloatSum.at(block.leaf, [np.sum(s), np.sum(s**2), np.sum(s * m)])
    return statistics


def _columns(config, state, mixture: PrivateMixture, x: np.ndarray) -> np.ndarray:
    """(n,) loss of one normal for each column; the scale of `start_of` is its standard deviation."""
    start = start_of(config.covariance, state)
    z = (x - start["centre"]) / start["scale"]
    return 0.5 * (z * z).sum(axis=1) + float(np.log(start["scale"]).sum()) + 0.5 * x.shape[1] * math.log(2 * math.pi)


def table(config: PrivateGMMConfig, statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    clients, rows, squares, skipped = statistics["sizes"]
    if rows == 0:
        raise PopulationError("no client has held-out rows.", "Ingest the population with a held-out part.")
    lines = []
    for name in (RUN, MOMENTS):
        total, total_squares, product = statistics[name]
        mean = total / rows
        spread = max(total_squares - 2 * mean * product + mean**2 * squares, 0.0)
        lines.append(Row(name, float(mean), float(np.sqrt(spread) / rows)))
    return Table(tuple(lines), int(clients), int(rows), int(skipped))
