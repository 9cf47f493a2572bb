"""Losses of held-out rows as a table: a mean for each row of the table, with its standard error.

The standard error treats a client's rows as one draw, because rows of a client are alike: the ratio estimator over
clients, from sums of the clients' numbers of rows m and summed losses s: m, m^2, s, s^2, s m.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.aggregation import FloatSum, Statistics
from fedcore.errors import PopulationError
from fedcore.population.blocks import ClientBlock

RUN = "this run"
LOSSES = {  # (title, axis)
    "nll": ("Negative log-likelihood", "negative log-likelihood (nats per row)"),
    "mse": ("Mean squared error", "mean squared error of a number"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line: mean loss of a held-out row in the units of the data, and its standard error."""

    method: str
    loss: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class Table:
    """loss: of LOSSES. clients, rows: that were scored. skipped: clients without held-out rows."""

    loss: str
    lines: tuple[Row, ...]
    clients: int
    rows: int
    skipped: int

    def to_json(self, where: str) -> dict:
        """For the run's evaluation. where: of the population, for the title."""
        title, axis = LOSSES[self.loss]
        return {
            "title": f"{title} of {self.rows} held-out rows of {self.clients} clients of {where}",
            "loss": self.loss, "axis": axis, "clients": self.clients, "held_out_rows": self.rows,
            "skipped": self.skipped,
            "rows": [{"method": line.method, self.loss: line.loss, "se": line.standard_error} for line in self.lines],
        }  # fmt: skip


def held_out(block: ClientBlock) -> ClientBlock:
    """The held-out part of the block. Raises ValueError if it has none."""
    if block.heldout is None:
        raise ValueError("the block has no held-out rows")
    return block.heldout


def sums(leaf: int, m: np.ndarray, losses: Mapping[str, np.ndarray]) -> Statistics:
    """Of one leaf. m: (C,) held-out rows of each client that are scored. losses: by line, (C,) their summed losses."""
    m = np.asarray(m, np.float64)
    sizes = [np.sum(m > 0), np.sum(m), np.sum(m**2), np.sum(m == 0)]
    found: Statistics = {"sizes": FloatSum.at(leaf, sizes)}
    for name, s in losses.items():
        found[name] = FloatSum.at(leaf, [np.sum(s), np.sum(s**2), np.sum(s * m)])
    return found


def table(statistics: Mapping[str, np.ndarray], names: Sequence[str], loss: str = "nll") -> Table:
    """The table from the finished statistics of all leaves; lines that nobody summed are left out.

    Raises PopulationError if nothing was held out.
    """
    clients, rows, squares, skipped = statistics["sizes"]
    if rows == 0:
        raise PopulationError("no client has held-out rows.", "Ingest the population with a held-out part.")
    lines = []
    for name in (name for name in names if name in statistics):
        total, total_squares, product = statistics[name]
        mean = total / rows
        spread = max(total_squares - 2 * mean * product + mean**2 * squares, 0.0)
        lines.append(Row(name, float(mean), float(np.sqrt(spread) / rows)))
    return Table(loss, tuple(lines), int(clients), int(rows), int(skipped))
