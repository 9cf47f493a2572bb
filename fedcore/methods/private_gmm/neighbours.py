"""Whether neighbouring cells of the partition are separate groups: counts of rows along the line between their means
must have a density dip.

The surroundings of a terrific ball are empty, as far as noise and the search's directions show. That does not
distinguish a group from a piece of one: of a ring, a line, or a heavy tail. So components are reported only if every
edge of a spanning tree of the cells has a dip that the best fit with one peak does not explain. Everything here is a
function of published values and public streams.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.methods.mixture_models.valleys import spanning_tree, valley_of
from fedcore.methods.mixture_models.whole_rows import WholeMap, whole_map
from fedcore.methods.private_gmm import sensitivities
from fedcore.methods.private_gmm.clients import PLACE_STEPS
from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.state import of_cell
from fedcore.randomness import stream

ALPHA = 0.01  # chance of a dip on some edge where there is one peak
DEPTH = 0.6  # of the lower peak, that a dip may have
BESIDE = 2.0  # in squared distances: how much further apart a pair may be than the nearest, if its rows are seen better


@dataclass(frozen=True, slots=True)
class Tested:
    """Edges that were tested. mass: (e,) units that were counted; depth: (e,) dip / lower peak; p: (e,)."""

    mass: np.ndarray
    depth: np.ndarray
    p: np.ndarray

    def parted(self) -> np.ndarray:
        """(e,) bool: whether there is a density dip."""
        found: np.ndarray = (self.p <= ALPHA / max(len(self.p), 1)) & (self.depth <= DEPTH)
        return found


def pairs_of(means: np.ndarray, reach: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(m - 1, 2) int64: a spanning tree of cells by distances relative to their reaches. means: (m, d); reach: (m,)."""
    squares = ((means[:, None] - means[None]) ** 2).sum(axis=2) / (reach[:, None] ** 2 + reach[None] ** 2)
    return np.array(spanning_tree(squares, -squares, weights, 0.0, BESIDE), np.int64).reshape(-1, 2)


def lines(means: np.ndarray, reach: np.ndarray, pairs: np.ndarray) -> tuple[tuple[WholeMap, ...], np.ndarray]:
    """For each cell the map from its rows, in steps of its reach, to places on its own lines, in the order of `pairs`;
    and where the means are on all lines, (m, e). See `ValleysMessage`."""
    (m, d), e = means.shape, len(pairs)
    directions, start = np.zeros((d, e)), np.zeros((m, e))
    for edge, (i, j) in enumerate(pairs):
        gap = means[j] - means[i]
        square = float(gap @ gap)
        if square < 1e-280:
            continue  # one place: no dip
        directions[:, edge] = gap * (2.0 * PLACE_STEPS / ONE / square)
        start[i, edge], start[j, edge] = -PLACE_STEPS, PLACE_STEPS
    maps = [whole_map(np.zeros(d), directions[:, of_cell(pairs, cell)] * float(reach[cell])) for cell in range(m)]
    return tuple(maps), start


def weight_of(pairs: np.ndarray) -> int:
    """What a row adds on each line of its cell: all lines together have the norm of one count, and both ends of a line
    weigh the same."""
    return sensitivities.weight(1, int(np.bincount(pairs.ravel(), minlength=1).max()))


def tested(histograms: np.ndarray, noise: float, weight: int, seed: int) -> Tested:
    """histograms: (e, cells) published, ends included, in which a row counts `weight`; noise: of a cell; seed: of the
    null's draws."""
    counts, sd = histograms / weight, noise / weight
    found = [valley_of(row[1:-1], sd, stream(seed, "private_gmm/valley", number)) for number, row in enumerate(counts)]
    return Tested(counts.sum(axis=1), np.array([one.depth for one in found]), np.array([one.p for one in found]))
