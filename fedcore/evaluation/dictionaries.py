"""How well the global atoms of a dictionary run rebuild held-out rows: mean squared error of a number.

Clients' memories are not read here, so local atoms are not those of the run: beside the global atoms alone stands what
a client can add at once, singular vectors of what they leave in its training rows, as many as it has local atoms. The
same number of singular vectors of its training rows stands for a client alone, and zero for no dictionary. All are
coded as the run codes, matching pursuit in place of a plain top-k. The standard error treats a client's rows as one
draw: the ratio estimator over clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcore.aggregation import FloatSum, Statistics
from fedcore.dictionaries.config import DictionariesConfig
from fedcore.dictionaries.leaf import coder_of
from fedcore.dictionaries.personal import parts
from fedcore.dictionaries.state import DictionariesState
from fedcore.errors import PopulationError, RunError
from fedcore.population.blocks import RowsBlock

RUN, PERSONAL = "global atoms of this run", "with own singular vectors of the rest"
ALONE, ZERO = "own singular vectors", "no dictionary"


@dataclass(frozen=True, slots=True)
class Row:
    """One line: mean squared error of a held-out number, in the squared units of the data, and its standard error."""

    method: str
    mse: float
    standard_error: float


@dataclass(frozen=True, slots=True)
class Table:
    """clients, rows: that were scored. skipped: clients without held-out or without training rows."""

    lines: tuple[Row, ...]
    clients: int
    rows: int
    skipped: int

    def to_json(self, where: str) -> dict:
        """For the run's evaluation. where: of the population, for the title."""
        return {
            "title": f"Mean squared error of {self.rows} held-out rows of {self.clients} clients of {where}",
            "loss": "mse", "axis": "mean squared error of a number", "clients": self.clients,
            "held_out_rows": self.rows, "skipped": self.skipped,
            "rows": [{"method": line.method, "mse": line.mse, "se": line.standard_error} for line in self.lines],
        }  # fmt: skip


def evaluate_block(config: DictionariesConfig, state: DictionariesState, block: RowsBlock) -> Statistics:
    """Sums over the clients of one leaf that have held-out and training rows.

    Raises ValueError if the block has no held-out part, RunError if the run has no global dictionary yet,
    PopulationError for rows that are not finite.
    """
    if block.heldout is None:
        raise ValueError("the block has no held-out rows")
    if state.phase == "start":
        raise RunError("the run stopped before it had a global dictionary.", "Resume it first.")
    coder, common, d = coder_of(config), state.common, block.features
    own = max(config.atoms - len(common), 0)
    sums = {name: np.zeros(3) for name in (RUN, PERSONAL, ALONE, ZERO)}
    sizes = np.zeros(4)
    for client in range(block.clients):
        rows = _rows(block.heldout, client)
        training = _rows(block, client)
        if not len(rows) or not len(training):
            sizes[3] += 1
            continue
        m = float(len(rows))
        sizes[:3] += 1.0, m, m**2
        none = np.zeros((0, d))
        if not (np.isfinite(rows).all() and np.isfinite(training).all()):
            raise PopulationError(f"client number {block.first + client} has rows with missing or infinite values.",
                                  "Dictionaries need complete rows: fill or drop these before ingesting.")
        rest = training - parts(coder, training, common, none)[0] if len(common) else training
        local = _singular(rest, own)
        for name, (shared, mine) in {RUN: (common, none), PERSONAL: (common, local),
                                     ALONE: (none, _singular(training, config.atoms)), ZERO: (none, none)}.items():
            a, b = parts(coder, rows, shared, mine) if len(shared) + len(mine) else (0.0, 0.0)
            loss = float(((rows - a - b) ** 2).sum()) / d
            sums[name] += loss, loss**2, loss * m
    return {"sizes": FloatSum.at(block.leaf, sizes), **{name: FloatSum.at(block.leaf, s) for name, s in sums.items()}}


def _rows(block: RowsBlock, client: int) -> np.ndarray:
    return np.asarray(block.x[int(block.ptr[client]) : int(block.ptr[client + 1])], np.float64)


def _singular(rows: np.ndarray, count: int) -> np.ndarray:
    """(at most count, d) leading right singular vectors with energy."""
    _, values, vectors = np.linalg.svd(rows, full_matrices=False)
    return vectors[: min(count, int((values > 1e-10 * max(values[0], 1e-300)).sum()))]


def table(config: DictionariesConfig, statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    clients, rows, squares, skipped = statistics["sizes"]
    if rows == 0:
        raise PopulationError("no client has held-out rows.", "Ingest the population with a held-out part.")
    lines = []
    for name in (RUN, PERSONAL, ALONE, ZERO):
        total, total_squares, product = statistics[name]
        mean = total / rows
        spread = max(total_squares - 2 * mean * product + mean**2 * squares, 0.0)
        lines.append(Row(name, float(mean), float(np.sqrt(spread) / rows)))
    return Table(tuple(lines), int(clients), int(rows), int(skipped))
