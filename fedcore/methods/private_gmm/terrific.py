"""Terrific balls (Definition 5.2), and the split of a node by them (Algorithm 3, steps 3, 4, 6 and 7).

B(p, r) is terrific if it holds enough rows, leaves enough outside of B(p, c r), and the shell between the two is nearly
empty relative to the fewer of both. The tail of one group has a shell that holds little relative to the group, but not
relative to what is further out. Everything is computed from published profiles, so any number of balls may be tried
without privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.plan import PROFILE_RADII
from fedcore.methods.private_gmm.tree import BALL, GAP, REST, VORONOI

# --- candidate centres ------------------------------------------------------------------------------------------------


ENOUGH = 0.5  # of t, for the middle of a box to be trusted
NEAR, ALIKE = 0.35, 3.0  # candidates within this share of their width, of widths in this ratio, are one


@dataclass(frozen=True, slots=True)
class Candidates:
    """slot: (M,) of the node; at: (M, q) whole numbers of steps; width: (M,) steps of the box it was found in; count:
    (M,) noisy, of units in that box."""

    slot: np.ndarray
    at: np.ndarray
    width: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.slot)

    def of(self, chosen: np.ndarray) -> Candidates:
        return Candidates(self.slot[chosen], self.at[chosen], self.width[chosen], self.count[chosen])


def moved(middle: np.ndarray, offsets: np.ndarray, reach: np.ndarray, weight: int, count: np.ndarray) -> np.ndarray:
    """(M, q) whole numbers of steps: the noisy means of what is in the boxes, within reach of their middles.

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


LAG = 2  # bins of a profile in the shell: the ratio of two radii is sqrt(GAP)
MARGIN = 2.0  # standard deviations
EMPTY = 0.06  # of what the ball holds, and of what is outside: more must not be in the shell
CLEAR = 0.35  # of the same: more must not be in the shell even if noise hides some
OUTSIDE = 0.8  # of t
RADIUS_CLASS = 1.6
RATIO = math.sqrt(GAP)


def profile_radii() -> np.ndarray:
    """(PROFILE_RADII,) in steps, ascending, the largest two radii of the ball of the node."""
    return 2.0 * ONE / RATIO ** np.arange(PROFILE_RADII)[::-1]


@dataclass(frozen=True, slots=True)
class Ball:
    """candidate: number of the one at its centre. radius: in steps. inside: noisy count of units. shell: noisy count
    of units in the shell, as a fraction of it."""

    candidate: int
    radius: float
    inside: float
    shell: float


@dataclass(frozen=True, slots=True)
class Children:
    """Of a node: kinds (m,), balls (m, q) and radii (m,) in steps, counts (m,) noisy. The last is the rest, if there
    is one."""

    kinds: list[int]
    balls: np.ndarray
    radii: np.ndarray
    counts: np.ndarray


def shells_are_clear(noise: float, needed: float) -> bool:
    """Whether noise of this standard deviation in a bin cannot fill a shell by half of what a ball must hold."""
    return MARGIN * noise * math.sqrt(LAG) < needed / 2


def terrific_balls(profiles: np.ndarray, count: float, noise: float, needed: float) -> list[Ball]:
    """All terrific balls of a node of size t.

    profiles: (M, bins) of units around each candidate; count: noisy, of the node; noise: of a bin; needed: t.
    """
    radii, balls = profile_radii(), []
    inside = np.cumsum(profiles, axis=1)
    slack = MARGIN * noise * math.sqrt(LAG)
    if not shells_are_clear(noise, needed):
        return []
    for candidate, row in enumerate(inside):
        for number in range(len(radii) - LAG):
            held, outside = row[number], count - row[number + LAG]
            shell, fewer = row[number + LAG] - held, min(held, outside)
            if (
                held >= needed + MARGIN * noise * math.sqrt(number + 1)
                and outside >= OUTSIDE * needed
                and shell <= EMPTY * fewer + slack
                and shell + slack <= CLEAR * fewer
            ):
                balls.append(Ball(candidate, float(radii[number]), float(held), float(shell / held)))
    return balls


def disjoint(balls: Sequence[Ball], at: np.ndarray, most: int) -> list[Ball]:
    """At most `most` balls that do not meet, small ones first, and of like radius those with the emptiest shells.

    at: (M, q) candidates.
    """
    kept: list[Ball] = []
    smallest = min((ball.radius for ball in balls), default=1.0)
    for ball in sorted(balls, key=lambda b: (round(math.log(b.radius / smallest) / math.log(RADIUS_CLASS)), b.shell)):
        if len(kept) < most and all(
            np.linalg.norm(at[ball.candidate] - at[other.candidate]) > RATIO * (ball.radius + other.radius)
            for other in kept
        ):
            kept.append(ball)
    return kept


def children_of(balls: Sequence[Ball], at: np.ndarray, count: float, needed: float, most: int) -> Children:
    """Parts around all balls if no more may be added, or if nothing is left; else the balls, and the rest.

    at: (M, q) candidates; count: noisy, of the node; needed: t; most: children that the node may have.
    """
    points = at[[ball.candidate for ball in balls]]
    radii, counts = (np.array([getattr(ball, name) for ball in balls]) for name in ("radius", "inside"))
    rest = count - counts.sum()
    if len(balls) >= most or (rest < needed and len(balls) > 1):
        return Children([VORONOI] * len(balls), points, radii, counts)
    return Children(
        [BALL] * len(balls) + [REST],
        np.vstack([points, np.zeros(points.shape[1])]),
        np.append(radii, 1.0),
        np.append(counts, rest),
    )
