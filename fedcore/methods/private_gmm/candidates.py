"""Candidate centres of terrific balls: the noised means of heavy boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ENOUGH = 0.5  # of t, for the middle of a box to be trusted
NEAR, ALIKE = 0.35, 3.0  # candidates within this share of their width, of widths in this ratio, are one


@dataclass(frozen=True, slots=True)
class Candidates:
    """slot: (M,) of the node; at: (M, q) whole numbers of steps; width: (M,) steps of the box it was found in; count:
    (M,) noised, of units in that box."""

    slot: np.ndarray
    at: np.ndarray
    width: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.slot)

    def of(self, chosen: np.ndarray) -> Candidates:
        return Candidates(self.slot[chosen], self.at[chosen], self.width[chosen], self.count[chosen])


def moved(middle: np.ndarray, offsets: np.ndarray, reach: np.ndarray, weight: int, count: np.ndarray) -> np.ndarray:
    """(M, q) whole numbers of steps: the noised means of what is in the boxes, within reach of their middles.

    middle: (M, q), reach: (M,) steps; offsets: (M, q) published sums, in which a unit's offset of length `reach` has
    the norm `weight`; count: (M,) of units.
    """
    means = offsets * (reach / weight / np.maximum(count, 1.0))[:, None]
    norms = np.maximum(np.linalg.norm(means, axis=1), 1e-300)
    return np.rint(middle + means * np.minimum(1.0, reach / norms)[:, None])


def merged(found: Candidates) -> Candidates:
    """The fullest first; of near ones from boxes of like width, only the one with most rows."""
    kept: list[int] = []
    for i in np.argsort(-found.count, kind="stable"):
        if not any(
            found.slot[i] == found.slot[j]
            and max(found.width[i], found.width[j]) < ALIKE * min(found.width[i], found.width[j])
            and np.linalg.norm(found.at[i] - found.at[j]) < NEAR * min(found.width[i], found.width[j])
            for j in kept
        ):
            kept.append(int(i))
    return found.of(np.array(kept, np.int64))


def affordable(found: Candidates, needed: float, most: int) -> Candidates:
    """At most `most` candidates of each slot, first those of the narrowest boxes that hold a good part of t, because
    narrow boxes have sharp middles."""
    order = np.lexsort((-found.count, found.width, found.count < ENOUGH * needed))
    kept = [i for slot in np.unique(found.slot) for i in order[found.slot[order] == slot][:most]]
    return found.of(np.array(kept, np.int64))
