"""The boxes in which candidate centres are looked for: a cube about a node's ball, halved along every axis again and
again, at two random public shifts.

The cube has a side of 2^18 steps, the diameter of the ball is 2^17. A box has a side of 2^(18 - j) steps after j
halvings. It is known by its slot (the number of its node within the level), its shift, j, and its code: its number
along each of the qb axes, below 2^j.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from fedcore.methods.private_gmm.integer_rows import BITS, ONE
from fedcore.methods.private_gmm.plan import SHIFTS
from fedcore.randomness import stream

CUBE_BITS = BITS + 2
SLACK = 2**10  # steps, for the rounding of projections
LARGEST_SHIFT = 2 ** (BITS + 1) - 2 * SLACK
FALSE_BOXES = 0.5  # boxes per pass that noise may be expected to make heavy
FEW = 0.1  # of t: boxes with less are of no use


@dataclass(frozen=True, slots=True)
class Boxes:
    """place: (B, 3) int64 slot, shift and halvings; code: (B, qb) int64; count: (B,) noisy, of units."""

    place: np.ndarray
    code: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.place)

    @property
    def slot(self) -> np.ndarray:
        return self.place[:, 0]

    @property
    def shift(self) -> np.ndarray:
        return self.place[:, 1]

    @property
    def halvings(self) -> np.ndarray:
        return self.place[:, 2]

    def of(self, chosen: np.ndarray) -> Boxes:
        return Boxes(self.place[chosen], self.code[chosen], self.count[chosen])

    def and_also(self, other: Boxes) -> Boxes:
        return Boxes(
            np.concatenate([self.place, other.place]),
            np.concatenate([self.code, other.code]),
            np.concatenate([self.count, other.count]),
        )


def no_boxes(qb: int) -> Boxes:
    return Boxes(np.zeros((0, 3), np.int64), np.zeros((0, qb), np.int64), np.zeros(0))


def whole_cubes(slots: int, qb: int) -> Boxes:
    """The boxes before the first halving: the whole cube of every slot, at each shift."""
    place = np.array([(slot, shift, 0) for slot in range(slots) for shift in range(SHIFTS)], np.int64)
    return Boxes(place, np.zeros((len(place), qb), np.int64), np.zeros(len(place)))


def shifts_of(seed: int, level: int, qb: int) -> np.ndarray:
    """(2, qb) int64 public random shifts, in steps."""
    return stream(seed, "private_gmm/shifts", level).integers(0, LARGEST_SHIFT, (SHIFTS, qb), dtype=np.int64)


def places_in_cube(y: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """(shifts, n, qb) int64 steps from the cube's corner, one place for each shift. y: (n, q) projected rows, q >= qb.

    The leading j of the 18 bits of a place are the code of the box of j halvings that the row is in.
    """
    return y[:, : shifts.shape[1]].astype(np.int64) + shifts[:, None, :] + (ONE + SLACK)


def keys_of(codes: np.ndarray, halvings: int) -> np.ndarray:
    """(n,) int64, one number for each box. codes: (n, qb) int64, below 2**halvings."""
    return codes @ (np.int64(1) << (np.int64(halvings) * np.arange(codes.shape[1], dtype=np.int64)))


def heavy_halves(parents: Boxes, counts: np.ndarray, noise: float, needed: float, most: int) -> Boxes:
    """Of all halves of the parents, at most `most` of those that hold more than noise makes, fullest first.

    counts: (>= B, 2**qb) of units; noise: standard deviation of one of them.
    """
    qb = parents.code.shape[1]
    counts = counts[: len(parents)]
    threshold = max(float(-scipy.special.ndtri(FALSE_BOXES / counts.size)) * noise, FEW * needed)
    parent, half = np.nonzero(counts > threshold)
    found = counts[parent, half]
    order = np.argsort(-found, kind="stable")[:most]
    parent, half = parent[order], half[order]
    place = parents.place[parent] + np.array([0, 0, 1])
    code = 2 * parents.code[parent] + ((half[:, None] >> np.arange(qb)) & 1)
    return Boxes(place, code, found[order])


def fullest(boxes: Boxes, most: int) -> Boxes:
    """At most `most` boxes: those that hold most, as many of every slot, shift and width as fit."""
    ranks = np.zeros(len(boxes), np.int64)
    for key in np.unique(boxes.place, axis=0):
        same = np.flatnonzero((boxes.place == key).all(axis=1))
        ranks[same[np.argsort(-boxes.count[same], kind="stable")]] = np.arange(len(same))
    order = np.lexsort((-boxes.count, ranks))[:most]
    return boxes.of(order[boxes.halvings[order] > 0])


def middles(boxes: Boxes, shifts: np.ndarray, q: int) -> tuple[np.ndarray, np.ndarray]:
    """(B, q) middles in steps, 0 in directions that boxes are not cut in, and (B,) widths in steps."""
    widths = 2.0 ** (CUBE_BITS - boxes.halvings)
    middle = np.zeros((len(widths), q))
    middle[:, : shifts.shape[1]] = np.rint((boxes.code + 0.5) * widths[:, None] - shifts[boxes.shift] - (ONE + SLACK))
    return middle, widths


def reaches(widths: np.ndarray, q: int) -> np.ndarray:
    """(B,) radii that offsets from a middle are cut to: half a diagonal, at most that of the ball."""
    return np.minimum(widths * 0.5 * np.sqrt(q), float(ONE))


def most_boxes_of_a_row(boxes: Boxes) -> int:
    """In how many of the boxes a row can be at once, at most: one for each shift and width."""
    return len(np.unique(boxes.place[:, 1:], axis=0))
