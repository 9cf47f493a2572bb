"""How well the global atoms of a dictionary run rebuild held-out rows: mean squared error of a number.

Clients' memories are not read here, so local atoms are not those of the run: beside the global atoms alone stands what
a client can add at once, singular vectors of what they leave in its training rows, as many as it has local atoms. The
same number of singular vectors of its training rows stands for a client alone, and zero for no dictionary. All are
coded as the run codes, matching pursuit in place of a plain top-k.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.aggregation import Statistics
from fedcore.dictionaries.config import DictionariesConfig
from fedcore.dictionaries.leaf import coder_of
from fedcore.dictionaries.personal import parts
from fedcore.dictionaries.state import DictionariesState
from fedcore.errors import PopulationError, RunError
from fedcore.evaluation import held_out as held_rows
from fedcore.evaluation.held_out import Table, held_out
from fedcore.population.blocks import RowsBlock

RUN, PERSONAL = "global atoms of this run", "with own singular vectors of the rest"
ALONE, ZERO = "own singular vectors", "no dictionary"
LINES = (RUN, PERSONAL, ALONE, ZERO)


def evaluate_block(config: DictionariesConfig, state: DictionariesState, block: RowsBlock) -> Statistics:
    """Sums over the clients of one leaf that have held-out and training rows.

    Raises ValueError if the block has no held-out part, RunError if the run has no global dictionary yet,
    PopulationError for rows that are not finite.
    """
    held = held_out(block)
    if state.phase == "start":
        raise RunError("the run stopped before it had a global dictionary.", "Resume it first.")
    coder, common, d = coder_of(config), state.common, block.features
    own = max(config.atoms - len(common), 0)
    losses, m = {name: np.zeros(block.clients) for name in LINES}, np.zeros(block.clients)
    for client in range(block.clients):
        rows = _rows(held, client)
        training = _rows(block, client)
        if not len(rows) or not len(training):
            continue
        m[client] = len(rows)
        none = np.zeros((0, d))
        if not (np.isfinite(rows).all() and np.isfinite(training).all()):
            raise PopulationError(f"client number {block.first + client} has rows with missing or infinite values.",
                                  "Dictionaries need complete rows: fill or drop these before ingesting.")
        rest = training - parts(coder, training, common, none)[0] if len(common) else training
        local = _singular(rest, own)
        for name, (shared, mine) in {RUN: (common, none), PERSONAL: (common, local),
                                     ALONE: (none, _singular(training, config.atoms)), ZERO: (none, none)}.items():
            a, b = parts(coder, rows, shared, mine) if len(shared) + len(mine) else (0.0, 0.0)
            losses[name][client] = ((rows - a - b) ** 2).sum() / d
    return held_rows.sums(block.leaf, m, losses)


def _rows(block: RowsBlock, client: int) -> np.ndarray:
    return np.asarray(block.x[int(block.ptr[client]) : int(block.ptr[client + 1])], np.float64)


def _singular(rows: np.ndarray, count: int) -> np.ndarray:
    """(at most count, d) leading right singular vectors with energy."""
    _, values, vectors = np.linalg.svd(rows, full_matrices=False)
    return vectors[: min(count, int((values > 1e-10 * max(values[0], 1e-300)).sum()))]


def table(config: DictionariesConfig, statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return held_rows.table(statistics, LINES, "mse")
