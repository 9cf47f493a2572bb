"""Candidate centres: boxes that hold many rows, halved width by width, and the means of what is in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from fedcore.methods.private_gmm.schedule import SHIFTS, Sizes
from fedcore.methods.private_gmm.statistics import CUBE_BITS, LARGEST_SHIFT, SLACK
from fedcore.methods.private_gmm.whole import ONE
from fedcore.randomness import stream

FALSE_BOXES = 0.5  # boxes per pass that noise may be expected to make heavy
ENOUGH = 0.5  # of t, for the middle of a box to be trusted
FEW = 0.1  # of t: boxes with less are of no use
NEAR, ALIKE = 0.35, 3.0  # candidates within this share of their width, of widths in this ratio, are one


@dataclass(frozen=True, slots=True)
class Heavy:
    """Boxes: place (B, 3) int64 slot, shift, halvings; code (B, qb) int64; count (B,) noised."""

    place: np.ndarray
    code: np.ndarray
    count: np.ndarray


def shifts_of(seed: int, level: int, qb: int) -> np.ndarray:
    """(2, qb) int64 public random shifts of the boxes, in steps."""
    return stream(seed, "private_gmm/shifts", level).integers(0, LARGEST_SHIFT, (SHIFTS, qb), dtype=np.int64)


def whole_cubes(slots: int, qb: int) -> Heavy:
    """The boxes before the first halving: for each slot and shift the whole cube."""
    place = np.array([(slot, shift, 0) for slot in range(slots) for shift in range(SHIFTS)], np.int64)
    return Heavy(place, np.zeros((len(place), qb), np.int64), np.zeros(len(place)))


def parents_of(heavy: Heavy, halvings: int) -> Heavy:
    """The boxes of the last pass."""
    chosen = heavy.place[:, 2] == halvings
    return Heavy(heavy.place[chosen], heavy.code[chosen], heavy.count[chosen])


def halved(parents: Heavy, counts: np.ndarray, noise: float, needed: float, most: int) -> Heavy:
    """The heavy halves. counts: (>= len(parents), 2**qb) in units; noise: of a cell; most: boxes that may be kept."""
    qb = parents.code.shape[1]
    counts = counts[: len(parents.place)]
    threshold = max(float(-ndtri(FALSE_BOXES / counts.size)) * noise, FEW * needed)
    parent, half = np.nonzero(counts > threshold)
    found = counts[parent, half]
    order = np.argsort(-found, kind="stable")[:most]
    parent, half = parent[order], half[order]
    place = parents.place[parent] + np.array([0, 0, 1])
    code = 2 * parents.code[parent] + ((half[:, None] >> np.arange(qb)) & 1)
    return Heavy(place, code, found[order])


def joined(one: Heavy, other: Heavy) -> Heavy:
    return Heavy(
        np.concatenate([one.place, other.place]),
        np.concatenate([one.code, other.code]),
        np.concatenate([one.count, other.count]),
    )


def chosen(heavy: Heavy, sizes: Sizes, widths: int) -> Heavy:
    """At most `sizes.places` boxes: of every slot, shift and width those that hold most, as many of each as fit."""
    ranks = np.zeros(len(heavy.place), np.int64)
    for key in np.unique(heavy.place, axis=0):
        mine = np.flatnonzero((heavy.place == key).all(axis=1))
        ranks[mine[np.argsort(-heavy.count[mine], kind="stable")]] = np.arange(len(mine))
    order = np.lexsort((-heavy.count, ranks))[: sizes.places]
    order = order[heavy.place[order, 2] > 0]
    return Heavy(heavy.place[order], heavy.code[order], heavy.count[order])


def middles(boxes: Heavy, shifts: np.ndarray, q: int) -> tuple[np.ndarray, np.ndarray]:
    """(M, q) middles in steps, 0 in directions that boxes are not cut in, and (M,) widths."""
    widths = 2.0 ** (CUBE_BITS - boxes.place[:, 2])
    middle = np.zeros((len(widths), q))
    at = (boxes.code + 0.5) * widths[:, None] - shifts[boxes.place[:, 1]] - (ONE + SLACK)
    middle[:, : shifts.shape[1]] = np.rint(at)
    return middle, widths


def reaches(widths: np.ndarray, q: int) -> np.ndarray:
    """(M,) radii that offsets from a middle are cut to: half a diagonal, at most that of the ball."""
    return np.minimum(widths * 0.5 * np.sqrt(q), float(ONE))


def groups_used(boxes: Heavy) -> int:
    """In how many of the boxes a row can be at once, at most: one for each shift and width."""
    return len(np.unique(boxes.place[:, 1:], axis=0))


def affordable(slot: np.ndarray, width: np.ndarray, count: np.ndarray, needed: float, most: int) -> np.ndarray:
    """Numbers of the candidates that stay, by slot: in each at most `most`, first those of the narrowest boxes that
    hold a good part of t. Narrow boxes have sharp middles.
    """
    order = np.lexsort((-count, width, count < ENOUGH * needed))
    kept = [i for place in np.unique(slot) for i in order[slot[order] == place][:most]]
    return np.array(kept, np.int64)


def merged(slot: np.ndarray, at: np.ndarray, width: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Numbers of the candidates that stay, the fullest first: of near ones of like width, the one with most rows."""
    kept: list[int] = []
    for i in np.argsort(-count, kind="stable"):
        if not any(
            slot[i] == slot[j]
            and max(width[i], width[j]) < ALIKE * min(width[i], width[j])
            and np.linalg.norm(at[i] - at[j]) < NEAR * min(width[i], width[j])
            for j in kept
        ):
            kept.append(int(i))
    return np.array(kept, np.int64)
