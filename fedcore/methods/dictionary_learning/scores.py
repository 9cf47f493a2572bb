"""How well the atoms of a dictionary run reconstruct held-out rows: mean squared error of a number.

Five lines. The global atoms alone; on the population that the run was trained on, with the clients' own atoms as
trained; on any population, with own atoms that a client can add at once: singular vectors of what the global atoms
leave in its training rows, as many as it has local atoms. A client alone has as many singular vectors of its training
rows as its dictionary has atoms. No dictionary predicts zero. All are coded as the run codes, with matching pursuit in
place of a plain top-k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.dictionary_learning.result import Parts
from fedcore.population.blocks import RowsBlock
from fedcore.rounds import scores as held_rows
from fedcore.rounds.scores import KnownMemories, Table, held_out
from fedcore.rounds.statistics import Statistics

RUN, TRAINED = "global atoms of this run", "with own atoms as trained"
PERSONAL = "with own atoms refitted: singular vectors of the rest"
ALONE, ZERO = "own singular vectors", "no dictionary"
LINES = (RUN, TRAINED, PERSONAL, ALONE, ZERO)


def evaluate_block(
    parts: Parts,
    common: np.ndarray,
    local_atoms: int,
    block: RowsBlock,
    known: KnownMemories | None,
    usable: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Statistics:
    """Sums over the clients of one leaf that have held-out and training rows.

    common: (rg, d); local_atoms: that a client adds at most; known: of the training, "rank" and "local"; usable: (n,)
    bool of rows (n, d) which of them count, of a private run. Raises ValueError if the block has no held-out part,
    PopulationError for rows that are not finite, if all count.
    """
    held = cast(RowsBlock, held_out(block))
    d = block.features
    none = np.zeros((0, d))
    losses, m = {name: np.zeros(block.clients) for name in LINES}, np.zeros(block.clients)
    has_trained = np.zeros(block.clients, bool)
    if known is not None:
        has_trained = known.known & (known.memory["rank"] > 0)
    for client in range(block.clients):
        rows, training = _rows(held, client), _rows(block, client)
        if usable is not None:  # of a private run, which must not reveal whose rows are not finite
            rows, training = rows[usable(rows)], training[usable(training)]
        if not len(rows) or not len(training):
            continue
        m[client] = len(rows)
        if not (np.isfinite(rows).all() and np.isfinite(training).all()):
            raise PopulationError(
                f"client number {block.first + client} has rows with missing or infinite values.",
                "Dictionaries need complete rows: fill or drop these before ingesting.",
            )
        rest = training - parts(training, common, none)[0] if len(common) else training
        lines = {
            RUN: (common, none),
            PERSONAL: (common, _singular_vectors(rest, local_atoms)),
            ALONE: (none, _singular_vectors(training, len(common) + local_atoms)),
            ZERO: (none, none),
        }
        if known is not None and has_trained[client]:
            mine = known.memory
            lines[TRAINED] = (common, mine["local"][client][: int(mine["rank"][client]) - len(common)])
        for name, (shared, own) in lines.items():
            residual = rows
            if len(shared) + len(own):
                global_part, local_part = parts(rows, shared, own)
                residual = rows - global_part - local_part
            losses[name][client] = (residual**2).sum() / d
    return held_rows.sums(block.leaf, m, losses, of={TRAINED: has_trained})


def _rows(block: RowsBlock, client: int) -> np.ndarray:
    return np.asarray(block.x[int(block.ptr[client]) : int(block.ptr[client + 1])], np.float64)


def _singular_vectors(rows: np.ndarray, count: int) -> np.ndarray:
    """(at most count, d) leading right singular vectors with energy."""
    _, values, vectors = np.linalg.svd(rows, full_matrices=False)
    return vectors[: min(count, int((values > 1e-10 * max(values[0], 1e-300)).sum()))]


def table(statistics: Mapping[str, np.ndarray]) -> Table:
    """The table from the finished statistics of all leaves. Raises PopulationError if nothing was held out."""
    return held_rows.table(statistics, LINES, "mse")
