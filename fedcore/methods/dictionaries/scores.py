"""How well the atoms of a dictionary run rebuild held-out rows: mean squared error of a number.

On the population that the run was trained on, clients have their own atoms as trained. Beside them, and alone on any
other population, stands what a client can add at once: own atoms refitted, singular vectors of what the global atoms
leave in its training rows, as many as it has local atoms. The same number of singular vectors of its training rows
stands for a client alone, and zero for no dictionary. All are coded as the run codes, matching pursuit in place of a
plain top-k.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.errors import PopulationError, RunError
from fedcore.methods.dictionaries.clients import coder_of
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.personal import own_atoms, split_parts
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.population.blocks import RowsBlock
from fedcore.rounds import scores as held_rows
from fedcore.rounds.scores import KnownMemories, Table, held_out
from fedcore.rounds.statistics import Statistics

RUN, TRAINED = "global atoms of this run", "with own atoms as trained"
PERSONAL = "with own atoms refitted: singular vectors of the rest"
ALONE, ZERO = "own singular vectors", "no dictionary"
LINES = (RUN, TRAINED, PERSONAL, ALONE, ZERO)


def evaluate_block(
    config: DictionariesConfig, state: DictionariesState, block: RowsBlock, kept: KnownMemories | None = None
) -> Statistics:
    """Sums over the clients of one leaf that have held-out and training rows. kept: what they remember of the training.

    Raises ValueError if the block has no held-out part, RunError if the run has no global dictionary yet,
    PopulationError for rows that are not finite.
    """
    held = held_out(block)
    if state.phase == "start":
        raise RunError("the run stopped before it had a global dictionary.", "Resume it first.")
    coder, common, d = coder_of(config), state.common, block.features
    own = max(config.atoms - len(common), 0)
    losses, m = {name: np.zeros(block.clients) for name in LINES}, np.zeros(block.clients)
    trained = None if kept is None else own_atoms(state, block, kept.memory)
    has = np.zeros(block.clients, bool) if kept is None else kept.known & (trained["rank"] > 0)
    for client in range(block.clients):
        rows = _rows(held, client)
        training = _rows(block, client)
        if not len(rows) or not len(training):
            continue
        m[client] = len(rows)
        none = np.zeros((0, d))
        if not (np.isfinite(rows).all() and np.isfinite(training).all()):
            raise PopulationError(
                f"client number {block.first + client} has rows with missing or infinite values.",
                "Dictionaries need complete rows: fill or drop these before ingesting.",
            )
        rest = training - split_parts(config, coder, training, common, none)[0] if len(common) else training
        local = _singular(rest, own)
        lines = {
            RUN: (common, none),
            PERSONAL: (common, local),
            ALONE: (none, _singular(training, config.atoms)),
            ZERO: (none, none),
        }
        if has[client]:
            lines[TRAINED] = (common, trained["local"][client, : trained["rank"][client] - len(common)])
        for name, (shared, mine) in lines.items():
            a, b = split_parts(config, coder, rows, shared, mine) if len(shared) + len(mine) else (0.0, 0.0)
            losses[name][client] = ((rows - a - b) ** 2).sum() / d
    return held_rows.sums(block.leaf, m, losses, of={TRAINED: has})


def _rows(block: RowsBlock, client: int) -> np.ndarray:
    return np.asarray(block.x[int(block.ptr[client]) : int(block.ptr[client + 1])], np.float64)


def _singular(rows: np.ndarray, count: int) -> np.ndarray:
    """(at most count, d) leading right singular vectors with energy."""
    _, values, vectors = np.linalg.svd(rows, full_matrices=False)
    return vectors[: min(count, int((values > 1e-10 * max(values[0], 1e-300)).sum()))]


def table(config: DictionariesConfig, statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return held_rows.table(statistics, LINES, "mse")
