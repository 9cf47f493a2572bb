"""Scores of a run on held-out data: what a method is given, and what it gives back.

Most methods score rows: the table then has a mean loss for each line, with its standard error. Rows may have weights;
then m below is the sum of a client's, and s that of its losses by them.

The standard error treats a client's rows as one draw, because rows of a client are alike: the ratio estimator over
clients, from sums of the clients' numbers of rows m and summed losses s: m, m^2, s, s^2, s m.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedcore.errors import PopulationError
from fedcore.population.blocks import ClientBlock
from fedcore.rounds.statistics import FloatSum, Statistic, Statistics

RUN = "this run"
ROWS = "rows"  # how many they are, where sizes are sums of weights
SIZES_OF = "sizes of "  # a line, among the statistics
LOSSES = {  # (title, axis)
    "nll": ("Negative log-likelihood", "negative log-likelihood (nats per row)"),
    "mse": ("Mean squared error", "mean squared error of a number"),
}


class ScoreTable(Protocol):
    """Scores, ready to print."""

    def to_json(self, where: str) -> dict[str, Any]:
        """title; loss: the column of the rows that is compared, lower is better; axis: its name with unit; rows: dicts
        with "method", the loss and "se"; and what else the method tells. where: of the population, for the title.
        """


@dataclass(frozen=True, slots=True)
class KnownMemories:
    """What clients remember of the training. memory: of some clients in a row, zeros for those who have none; known:
    (C,) bool, who has one."""

    memory: dict[str, np.ndarray]
    known: np.ndarray

    def part(self, start: int, clients: int) -> KnownMemories:
        at = slice(start, start + clients)
        return KnownMemories({name: values[at] for name, values in self.memory.items()}, self.known[at])


@dataclass(frozen=True, slots=True)
class Row:
    """One line: mean loss of a held-out row in the units of the data, and its standard error.

    clients, rows: that this line is about; None: all that were scored
    """

    method: str
    loss: float
    standard_error: float
    clients: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """loss: of LOSSES. clients, rows: that were scored. skipped: clients without held-out rows."""

    loss: str
    lines: tuple[Row, ...]
    clients: int
    rows: int
    skipped: int

    def to_json(self, where: str) -> dict[str, Any]:
        """For the run's evaluation. where: of the population, for the title."""
        title, axis = LOSSES[self.loss]
        return {
            "title": f"{title} of {self.rows} held-out rows of {self.clients} clients of {where}",
            "loss": self.loss,
            "axis": axis,
            "clients": self.clients,
            "held_out_rows": self.rows,
            "skipped": self.skipped,
            "rows": [self._line(line) for line in self.lines],
        }

    def _line(self, line: Row) -> dict[str, Any]:
        row = {"method": line.method, self.loss: line.loss, "se": line.standard_error}
        if all(each.clients is None for each in self.lines):
            return row
        return row | {
            "clients": self.clients if line.clients is None else line.clients,
            "held-out rows": self.rows if line.rows is None else line.rows,
        }


def held_out(block: ClientBlock) -> ClientBlock:
    """The held-out part of the block. Raises ValueError if it has none."""
    if block.heldout is None:
        raise ValueError("the block has no held-out rows")
    return block.heldout


def sums(
    leaf: int,
    m: np.ndarray,
    losses: Mapping[str, np.ndarray],
    of: Mapping[str, np.ndarray] | None = None,
    rows: int | None = None,
) -> Statistics:
    """Of one leaf. m: (C,) held-out rows of each client that are scored, or the sums of their weights. losses: by line,
    (C,) their summed losses, by the same weights. of: by line, (C,) bool, the only clients that the line is about.
    rows: of the leaf, where m does not say how many they are; None: it does. The same in all leaves.
    """
    m = np.asarray(m, np.float64)
    found: dict[str, Statistic] = {"sizes": FloatSum.at(leaf, _sizes(m))}
    if rows is not None:
        found[ROWS] = FloatSum.at(leaf, float(rows))
    for name, s in losses.items():
        mine = m if of is None or name not in of else np.where(of[name], m, 0.0)
        s = np.where(mine > 0, s, 0.0)
        found[name] = FloatSum.at(leaf, [np.sum(s), np.sum(s**2), np.sum(s * mine)])
        if mine is not m:
            found[f"{SIZES_OF}{name}"] = FloatSum.at(leaf, _sizes(mine))
    return found


def _sizes(m: np.ndarray) -> list[float]:
    return [np.sum(m > 0), np.sum(m), np.sum(m**2), np.sum(m == 0)]


def table(statistics: Mapping[str, np.ndarray], names: Sequence[str], loss: str = "nll") -> Table:
    """The table from the finished statistics of all leaves, without lines that nobody summed or that are about nobody.

    Raises PopulationError if nothing was held out.
    """
    clients, rows, _, skipped = statistics["sizes"]
    if rows == 0:
        raise PopulationError("no client has held-out rows.", "Ingest the population with a held-out part.")
    lines = []
    for name in (name for name in names if name in statistics):
        total, total_squares, product = statistics[name]
        own_clients, own_rows, own_squares, _ = statistics.get(f"{SIZES_OF}{name}", statistics["sizes"])
        if own_rows == 0:
            continue
        mean = total / own_rows
        spread = max(total_squares - 2 * mean * product + mean**2 * own_squares, 0.0)
        some = (int(own_clients), int(own_rows)) if own_rows < rows else (None, None)
        lines.append(Row(name, float(mean), float(np.sqrt(spread) / own_rows), *some))
    return Table(loss, tuple(lines), int(clients), int(statistics.get(ROWS, rows)), int(skipped))
