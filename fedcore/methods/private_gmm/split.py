"""Terrific balls: balls that hold enough, leave enough outside, and are followed by a shell that is nearly empty.

All of it is computed from released profiles, so that any number of balls may be tried at no price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcore.methods.private_gmm.schedule import PROFILE_CELLS
from fedcore.methods.private_gmm.tree import BALL, GAP, REST, VORONOI
from fedcore.methods.private_gmm.whole import ONE

LAG = 2  # cells of a profile in the shell: the ratio of two radii is sqrt(GAP)
MARGIN = 2.0  # standard deviations
EMPTY = 0.06  # of what the ball holds: more must not be in the shell
OUTSIDE = 0.8  # of t
RADIUS_CLASS = 1.6
RATIO = math.sqrt(GAP)


def profile_edges() -> np.ndarray:
    """(PROFILE_CELLS,) radii in steps, ascending, the largest two radii of the ball of the node."""
    return 2.0 * ONE / RATIO ** np.arange(PROFILE_CELLS)[::-1]


@dataclass(frozen=True, slots=True)
class Ball:
    """place: number of the candidate. radius in steps. inside: noised count; shell: noised share of it beyond."""

    place: int
    radius: float
    inside: float
    shell: float


@dataclass(frozen=True, slots=True)
class Found:
    """Children of a node. kinds (m,), balls (m, q), radii (m,), counts (m,) noised; the last is the rest, if there is
    one."""

    kinds: list[int]
    balls: np.ndarray
    radii: np.ndarray
    counts: np.ndarray


def shells_are_clear(noise: float, needed: float) -> bool:
    """Whether noise of this standard deviation in a cell cannot fill a shell by half of what a ball must hold."""
    return MARGIN * noise * math.sqrt(LAG) < needed / 2


def terrific(profiles: np.ndarray, count: float, noise: float, needed: float) -> list[Ball]:
    """All terrific balls of a node. profiles: (M, cells + 1) in units; count: noised, of the node; noise: of a cell."""
    edges, balls = profile_edges(), []
    inside = np.cumsum(profiles, axis=1)
    slack = MARGIN * noise * math.sqrt(LAG)
    if not shells_are_clear(noise, needed):
        return []
    for place, row in enumerate(inside):
        for cell in range(len(edges) - LAG):
            held = row[cell]
            shell = row[cell + LAG] - held
            if (
                held >= needed + MARGIN * noise * math.sqrt(cell + 1)
                and count - row[cell + LAG] >= OUTSIDE * needed
                and shell <= EMPTY * held + slack
            ):
                balls.append(Ball(place, float(edges[cell]), float(held), float(shell / held)))
    return balls


def disjoint(balls: list[Ball], at: np.ndarray, most: int) -> list[Ball]:
    """Balls that do not meet, small ones first, and of like radius those with the emptiest shells."""
    kept: list[Ball] = []
    smallest = min((ball.radius for ball in balls), default=1.0)
    for ball in sorted(balls, key=lambda b: (round(math.log(b.radius / smallest) / math.log(RADIUS_CLASS)), b.shell)):
        if len(kept) < most and all(
            np.linalg.norm(at[ball.place] - at[other.place]) > RATIO * (ball.radius + other.radius) for other in kept
        ):
            kept.append(ball)
    return kept


def children(balls: list[Ball], at: np.ndarray, count: float, needed: float, most: int) -> Found:
    """Cells around all balls if these are all that may be, or if nothing is left; else the balls, and the rest."""
    points = at[[ball.place for ball in balls]]
    radii, counts = (np.array([getattr(ball, name) for ball in balls]) for name in ("radius", "inside"))
    rest = count - counts.sum()
    if len(balls) >= most or (rest < needed and len(balls) > 1):
        return Found([VORONOI] * len(balls), points, radii, counts)
    return Found(
        [BALL] * len(balls) + [REST],
        np.vstack([points, np.zeros(points.shape[1])]),
        np.append(radii, 1.0),
        np.append(counts, rest),
    )
