"""Local atoms of a client beside the global ones, kept where samples that they were not learnt from are coded better.

A quarter of the samples is held out. The other ones are coded by global and local atoms together, and the local ones
move to their minimum, as global ones do (`descent.descend`). They begin as singular vectors of what the global atoms
leave. They are kept if they lower the held-out squared error, coded with as many atoms a sample, by more than its
standard error; then they go on from there with all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedcore.methods.dictionaries.sums import drawn_sparsity, numbers_of_rows
from fedcore.methods.dictionary_learning.descent import descend
from fedcore.methods.dictionary_learning.matching_pursuit import omp, omp_with_errors
from fedcore.methods.dictionary_learning.operators import normalise

HELD_OUT = 0.25  # share of a client's samples
SAMPLES_PER_ATOM = 4  # that a local atom is learnt from, at least
FEWEST_HELD = 4  # samples, below which nothing is known of an error
ENERGY = 1e-10  # share of the largest, below which a singular vector is rounding
HELD, SPARSITY = "dictionaries/held-out", "dictionaries/local-sparsity"

Rows = Callable[[], Iterator[np.ndarray]]


def local_atoms(
    rows: Rows, size: int, common: np.ndarray, most: int, least: int, longest: int, steps: int, seed: int, client: int
) -> np.ndarray:
    """(l, d) unit atoms of one client, l <= most; l = 0 where they do not pay.

    rows: its samples (m, d), tile by tile, `size` in all; common: (rg, d); least, longest: atoms of the shortest and of
    the longest codes; steps: of learning; client: its number in the population
    """
    part = _Part(rows, least, longest, seed, client)
    count = min(most, int((1 - HELD_OUT) * size) // SAMPLES_PER_ATOM)
    if count < 1 or size * HELD_OUT < FEWEST_HELD:
        return np.zeros((0, common.shape[1]))
    local = _first(part, common, count)
    if not len(local):
        return local
    local = _learnt(part, common, local, steps, held=False)
    gain, squares, held = 0.0, 0.0, 0
    for y, sparsity in part.tiles(held=True):
        without = omp_with_errors(y, common, sparsity)[1]
        gains = without - omp_with_errors(y, np.concatenate([common, local]), sparsity)[1]
        gain, squares, held = gain + float(gains.sum()), squares + float((gains**2).sum()), held + len(y)
    if held < FEWEST_HELD or gain <= np.sqrt(max(squares - gain**2 / held, 0.0) * held / (held - 1)):
        return local[:0]
    return _learnt(part, common, local, max(steps // 2, 1), held=None)


class _Part:
    """Samples of a client with the number of atoms of each one's code: those held out, the others, or all."""

    def __init__(self, rows: Rows, least: int, longest: int, seed: int, client: int):
        self.rows, self.least, self.longest, self.seed, self.client = rows, least, longest, seed, client

    def tiles(self, held: bool | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(samples (m, d), atoms of their codes (m,)). held: None for all."""
        place, me = 0, np.zeros(1, np.int64)
        for tile in self.rows():
            at = place + np.arange(len(tile))
            place += len(tile)
            numbers = numbers_of_rows(self.seed, SPARSITY, 0, self.client, me, at)[0]
            sparsity = drawn_sparsity(numbers, self.least, max(self.longest, self.least))
            if held is None:
                yield tile, sparsity
                continue
            out = numbers_of_rows(self.seed, HELD, 0, self.client, me, at)[0] < HELD_OUT
            mine = out if held else ~out
            yield tile[mine], sparsity[mine]


def _first(part: _Part, common: np.ndarray, count: int) -> np.ndarray:
    """(at most count, d) leading singular vectors of what the global atoms leave, by the smaller matrix of products; of
    the first tile alone where that has fewer samples than features."""
    rests = (y - omp(y, common, sparsity) @ common for y, sparsity in part.tiles(held=False))
    rest = next(rest for rest in rests if len(rest))  # of few wide samples all may be held out
    few = len(rest) < rest.shape[1]
    values, vectors = np.linalg.eigh(rest @ rest.T if few else sum((r.T @ r for r in rests), rest.T @ rest))
    vectors = vectors[:, ::-1][:, :count].T
    atoms = normalise(vectors @ rest if few else vectors)[0]
    return atoms[values[::-1][: len(atoms)] > ENERGY * values[-1]]


def _learnt(part: _Part, common: np.ndarray, local: np.ndarray, steps: int, held: bool | None) -> np.ndarray:
    """Local atoms after some steps from `local`."""
    wanted = len(common)
    for _ in range(steps):
        xx, xy = np.zeros((len(local), len(local))), np.zeros_like(local)
        atoms = np.concatenate([common, local])
        for y, sparsity in part.tiles(held):
            x = omp(y, atoms, sparsity)
            own = x[:, wanted:]
            xx += own.T @ own
            xy += own.T @ (y - x[:, :wanted] @ common)
        local = descend(local, xx, xy)
    return local
