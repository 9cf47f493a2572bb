"""Scores of a run on held-out data: what a method is given, and what it gives back.

Most methods score rows: the table then has a mean loss for each line, with its standard error. Rows may have weights;
then m below is the sum of a client's, and s that of its losses by them.

The standard error treats a client's rows as one draw, because rows of a client are alike: the ratio estimator over
clients, from sums of the clients' numbers of rows m and summed losses s: m, m^2, s, s^2, s m.

Every line but the run's own is also compared with it on the same rows: what is lost by it and not by the run, with the
standard error of that difference over clients. Clients differ much more than estimates for one client do, so that a
difference may be sure whose two losses have intervals that overlap.
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
MORE_THAN = "more than the run: "  # a line, as above
ERRORS_OF = "squared errors of "  # a line, as above
LOSSES = {  # (title, axis)
    "nll": ("Negative log-likelihood", "negative log-likelihood (nats per row)"),
    "mse": ("Mean squared error", "mean squared error of a number"),
}


class ScoreTable(Protocol):
    """Scores, ready to print."""

    def to_json(self, where: str) -> dict[str, Any]:
        """title; loss: the column of the rows that is compared, lower is better; axis: its name with unit; rows: dicts
        with "method", the loss and "se"; and more values of the method. where: of the population, for the title.

        Of tables with paired differences, difference_to: the row that the others are compared with; and in each row
        "difference", the mean over the same clients of its loss less that one's, and "difference_se"; None in that row.
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
    difference: mean loss of those rows by this line less that by the run, with its standard error; None: there is none
    """

    method: str
    loss: float
    standard_error: float
    clients: int | None = None
    rows: int | None = None
    difference: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """loss: of LOSSES. clients, rows: that were scored. skipped: clients without held-out rows. run: the line with
    which the others are compared.
    """

    loss: str
    lines: tuple[Row, ...]
    clients: int
    rows: int
    skipped: int
    run: str = RUN

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
            **({"difference_to": self.run} if self._compared else {}),
            "rows": [self._line(line) for line in self.lines],
        }

    @property
    def _compared(self) -> bool:
        return any(line.difference is not None for line in self.lines)

    def _line(self, line: Row) -> dict[str, Any]:
        row: dict[str, Any] = {"method": line.method, self.loss: line.loss, "se": line.standard_error}
        if self._compared:
            row["difference"], row["difference_se"] = line.difference or (None, None)
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

    The first line is the run's, with which the others are compared; it is about all clients.
    """
    m = np.asarray(m, np.float64)
    found: dict[str, Statistic] = {"sizes": FloatSum.at(leaf, _sizes(m))}
    if rows is not None:
        found[ROWS] = FloatSum.at(leaf, float(rows))
    run = next(iter(losses))
    own = np.where(m > 0, losses[run], 0.0)
    for name, s in losses.items():
        mine = m if of is None or name not in of else np.where(of[name], m, 0.0)
        s = np.where(mine > 0, s, 0.0)
        found[name] = _loss_sums(leaf, s, mine)
        if name != run:
            found[f"{MORE_THAN}{name}"] = _loss_sums(leaf, np.where(mine > 0, s - own, 0.0), mine)
        if mine is not m:
            found[f"{SIZES_OF}{name}"] = FloatSum.at(leaf, _sizes(mine))
    return found


def _loss_sums(leaf: int, s: np.ndarray, m: np.ndarray) -> FloatSum:
    return FloatSum.at(leaf, [np.sum(s), np.sum(s**2), np.sum(s * m)])


def _sizes(m: np.ndarray) -> list[float]:
    return [np.sum(m > 0), np.sum(m), np.sum(m**2), np.sum(m == 0)]


def table(statistics: Mapping[str, np.ndarray], names: Sequence[str], loss: str = "nll") -> Table:
    """The table from the finished statistics of all leaves, without lines that have no statistics or no clients.

    Raises PopulationError if nothing was held out.
    """
    clients, rows, _, skipped = statistics["sizes"]
    if rows == 0:
        raise PopulationError("no client has held-out rows.", "Ingest the population with a held-out part.")
    lines, shown = [], [name for name in names if name in statistics]
    run = next((name for name in shown if f"{MORE_THAN}{name}" not in statistics), None)
    for name in shown:
        sizes = statistics.get(f"{SIZES_OF}{name}", statistics["sizes"])
        own_clients, own_rows, *_ = sizes
        if own_rows == 0:
            continue
        more = None if run is None else statistics.get(f"{MORE_THAN}{name}")
        difference = None if more is None else _ratio(more, sizes)
        mean, error = _ratio(statistics[name], sizes)
        own = (int(own_clients), int(own_rows)) if own_rows < rows else (None, None)
        lines.append(Row(name, mean, error, own[0], own[1], difference))
    return Table(loss, tuple(lines), int(clients), int(statistics.get(ROWS, rows)), int(skipped), run or RUN)


def _ratio(sums: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    """A mean over rows and its standard error over clients."""
    (total, squares, product), (_, rows, rows_squared, _) = sums, sizes
    mean = total / rows
    spread = max(squares - 2 * mean * product + mean**2 * rows_squared, 0.0)
    return float(mean), float(np.sqrt(spread) / rows)


@dataclass(frozen=True, slots=True)
class WithErrors:
    """A table of mean negative log-likelihoods and mean squared errors, in units of the data, each with the difference
    to that of the run and its standard error."""

    table: Table
    errors: Mapping[str, Row]

    def to_json(self, where: str) -> dict[str, Any]:
        found = self.table.to_json(where)
        return found | {"rows": [row | self._errors(row["method"]) for row in found["rows"]]}

    def _errors(self, line: str) -> dict[str, Any]:
        mine = self.errors[line]
        more, error = mine.difference or (None, None)
        return {"mse": mine.loss, "mse_difference": more, "mse_difference_se": error}


def sums_with_errors(
    leaf: int,
    m: np.ndarray,
    losses: Mapping[str, np.ndarray],
    errors: Mapping[str, np.ndarray],
    of: Mapping[str, np.ndarray] | None = None,
) -> Statistics:
    """`sums` of the losses, and of squared errors by the same lines; empty errors: of the losses alone. A line without
    errors has zeros."""
    found = sums(leaf, m, losses, of)
    if not errors:
        return found
    named = {f"{ERRORS_OF}{name}": errors.get(name, np.zeros(len(m))) for name in losses}
    about = None if of is None else {f"{ERRORS_OF}{name}": whom for name, whom in of.items()}
    return {**found, **sums(leaf, m, named, about)}


def table_with_errors(statistics: Mapping[str, np.ndarray], names: Sequence[str]) -> ScoreTable:
    """The table from the finished statistics of all leaves, with squared errors if there are any. Raises
    PopulationError if nothing was held out."""
    losses = table(statistics, names)
    if f"{ERRORS_OF}{names[0]}" not in statistics:
        return losses
    errors = table(statistics, [f"{ERRORS_OF}{name}" for name in names])
    return WithErrors(losses, {line.method.removeprefix(ERRORS_OF): line for line in errors.lines})


def differences_in_words(table: Mapping[str, Any]) -> str:
    """What the columns "difference" and "difference_se" of a table (as JSON) are; empty if it has none."""
    if not table.get("difference_to"):
        return ""
    return (
        f"difference: the mean of {table['loss']} less that of {table['difference_to']!r} on the same clients, "
        "with its standard error; above 0 the line is worse"
    )
