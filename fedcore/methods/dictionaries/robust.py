"""A client's side of the robust rounds, loss = "huber"; `fedcore.methods.dictionaries.separation` says what is done.

Every client measures the spread of its own residuals: a median over its rows, which the round needs of nobody else. So
what reaches the server is what reaches it in the other rounds, a client's global atoms, and their centre is taken as
ever. A client that is read in tiles has a spread for each tile: one median over all of them would be a sort on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from fedcore.methods.dictionaries import learners
from fedcore.methods.dictionaries.client_groups import Group
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.distances import matched_distances
from fedcore.methods.dictionaries.operators import polar
from fedcore.methods.dictionaries.separation import LAST, RobustCoder, huber, local_parts
from fedcore.methods.dictionaries.sparse_coding import Coder
from fedcore.methods.dictionaries.state import RoundMessage
from fedcore.rounds.method import Memory

Rows = Callable[[], Iterator[np.ndarray]]


class Answer(NamedTuple):
    """Of one client. common: (rg, d) its global atoms; loss: sum of the Huber losses of its samples by the codes that
    it learned from; nonzero: codes; dead: local atoms that no sample used."""

    common: np.ndarray
    loss: float
    nonzero: float
    dead: float


def coders(config: DictionariesConfig) -> tuple[RobustCoder, RobustCoder]:
    """(to learn global atoms from, for codes that are kept)"""
    return RobustCoder(config.cut), RobustCoder(config.cut, LAST.looks, LAST.steps)


def rows_of(group: Group, i: int) -> Rows:
    """The samples of client i of the group, (m, d) tile by tile, without what fills up the stack."""
    size = int(group.sizes[i])

    def tiles() -> Iterator[np.ndarray]:
        for tile in group.tiles():  # more than one only if the client stands alone, and is not filled up
            yield tile[i, : min(size, tile.shape[1])]

    return tiles


def answer(
    config: DictionariesConfig, message: RoundMessage, group: Group, i: int, memory: Memory, coder: Coder
) -> Answer:
    """The round of client i of the group; in the last rounds its local atoms in `memory` move."""
    common, rows, client = message.global_atoms, rows_of(group, i), int(group.clients[i])
    moved, lost = global_atoms(rows, common, coders(config)[0], config.local_steps)
    locals_ = group.rank - len(common)
    if not (message.learn_local and locals_):
        return Answer(moved, lost, 0.0, 0.0)
    local = memory["local"][client, :locals_] if memory["fitted"][client] else None
    rest = left_by(common, rows, coders(config)[1], keep=not group.in_tiles)
    local, used = local_atoms(rest, local, locals_, max(config.refine_steps, 1), coder)
    memory["local"][client, :locals_], memory["fitted"][client] = local, 1
    return Answer(moved, lost, float(used.sum()), float((used == 0).sum()))


def global_atoms(rows: Rows, common: np.ndarray, coder: RobustCoder, steps: int = 1) -> tuple[np.ndarray, float]:
    """((rg, d) a client's global atoms after some steps from the common ones, Huber loss of the last step's codes)."""
    lost = 0.0
    for _ in range(steps):
        xy, lost = np.zeros_like(common), 0.0
        for y in rows():
            codes, cleaned = coder(y, common)
            xy += codes.T @ cleaned
            made = codes @ common
            lost += float(huber(y - made, cleaned - made).sum())
        common = polar(xy, common)
    return common, lost


def left_by(common: np.ndarray, rows: Rows, coder: RobustCoder, keep: bool) -> Rows:
    """What the global atoms leave, (1, m, d) tile by tile. keep: in memory, else it is made anew in every pass."""

    def rest() -> Iterator[np.ndarray]:
        for y in rows():
            yield (y - coder(y, common)[0] @ common)[None]

    if not keep:
        return rest
    kept = list(rest())
    return lambda: iter(kept)


def local_atoms(
    rest: Rows, local: np.ndarray | None, count: int, steps: int, coder: Coder
) -> tuple[np.ndarray, np.ndarray]:
    """((l, d) orthonormal atoms learnt from what the global ones leave, (l,) codes of the last step that used them).

    local: to go on from; None: `count` singular vectors of what is left.
    """
    atoms = learners.singular_start(rest, count) if local is None else local[None]
    for _ in range(steps):
        atoms, sums = learners.step("orthogonal", rest, atoms, coder, loss=False)
    return atoms[0], sums.used[0, 0]


def distance(answers: np.ndarray, common: np.ndarray) -> np.ndarray:
    """(c,) mean distance of clients' global atoms (c, rg, d) from the common ones, atom by atom."""
    return matched_distances(answers, common).mean(-1) if len(common) else np.zeros(len(answers))


def robust_parts(
    config: DictionariesConfig, samples: np.ndarray, common: np.ndarray, local: np.ndarray, coder: Coder
) -> tuple[np.ndarray, np.ndarray]:
    """(global part, local part) of samples (n, d): robust codes of G alone, then the local atoms' of what is left."""
    shared = coders(config)[1](samples, common)[0] @ common
    return shared, local_parts(samples - shared, local, coder)
