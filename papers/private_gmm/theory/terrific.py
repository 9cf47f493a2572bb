"""Terrific balls (Section 5.1) and Algorithm 2, PTerrificRadius. privacy: none (simulated noise).

B(p, r) is (c, Gamma)-terrific of size t for X (Definition 5.2) iff it holds at least t rows, at least t rows are
outside of B(p, c r), and at most Gamma rows are in B(p, c r) but not in B(p, r).

Slip S9: t is an argument, for the caller to make from a public nominal number of rows: the exact one is not public
under add/remove. Slip S8: "t distinct points" are t distinct records, which may hold equal values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from fedcore.papers.private_gmm.theory.mechanisms import above_threshold, above_threshold_error, present
from scipy.spatial.distance import cdist

from fedcore.errors import ConfigError

FACTOR = 5.0  # c in RPGMP
TILE = 1 << 22  # distances held at a time
SCORE_SENSITIVITY = 2.0  # of Q and of L: see `mean_of_largest`


def ball_counts(rows: np.ndarray, centres: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """(m, T) int64: how many present rows are in B(centre, radius). By differences: equal rows are at distance 0."""
    data = rows[present(rows)]
    radii = np.asarray(radii, np.float64)
    order = np.argsort(radii, kind="stable")
    found = np.zeros((len(centres), len(radii)), np.int64)
    if not len(data):
        return found
    step = max(1, TILE // len(data))
    bins = len(radii) + 1
    for start in range(0, len(centres), step):
        distances = cdist(centres[start : start + step], data)
        cell = np.searchsorted(radii[order], distances, side="left") + bins * np.arange(len(distances))[:, None]
        counts = np.bincount(cell.ravel(), minlength=bins * len(distances)).reshape(len(distances), bins)
        found[start : start + step, order] = np.cumsum(counts, axis=1)[:, :-1]
    return found


def quality(rows: np.ndarray, centres: np.ndarray, radii: np.ndarray, size: int, factor: float = FACTOR) -> np.ndarray:
    """(m, T) int64, GQ_X(p, r) of equation (4), between 0 and t:

        min{ [|X in B(p, r)|]_t, [|X outside of B(p, c r)|]_t, max(0, t - |X in B(p, c r) \\ B(p, r)|) }

    A minimum of counts that one record changes by at most 1: sensitivity 1. GQ >= t - g makes B(p, r) (c, g)-terrific
    of size t - g.
    """
    radii = np.asarray(radii, np.float64)
    counts = ball_counts(rows, centres, np.concatenate([radii, factor * radii]))
    inside, reach = counts[:, : len(radii)], counts[:, len(radii) :]
    outside = int(present(rows).sum()) - reach
    return np.minimum(
        np.minimum(inside, size), np.minimum(np.minimum(outside, size), np.maximum(0, size - (reach - inside)))
    )


def mean_of_largest(values: np.ndarray, size: int) -> np.ndarray:
    """(T,): (1/t) * the sum of the t largest of each column of (m, T); rows that are lacking count as 0.

    Of values in 0..t that a record changes by at most 1, and of which one row is the record's own, this has sensitivity
    2: among t rows at most one is not shared by the neighbour (t/t = 1), the others move by at most 1 each.
    """
    top = -np.sort(-values, axis=0)[:size]
    return top.sum(axis=0) / size


def terrific_score(rows: np.ndarray, radii: np.ndarray, size: int, factor: float = FACTOR) -> np.ndarray:
    """(T,): Q(r) of equation (5), the mean of the t largest GQ_X(x, r) over records x. Sensitivity 2. O(n^2 d)."""
    return mean_of_largest(quality(rows, rows[present(rows)], radii, size, factor), size)


def radius_grid(low: float, high: float, ratio: float = 2.0) -> np.ndarray:
    """low * ratio^j up to and including the first one that is not below high."""
    if not (0 < low and math.isfinite(high) and ratio > 1):
        raise ConfigError(f"A grid of radii needs 0 < low, a finite high, ratio > 1; not {low!r}, {high!r}, {ratio!r}.")
    steps = max(0, math.ceil(math.log(high / low) / math.log(ratio) - 1e-9)) if high > low else 0
    return low * ratio ** np.arange(steps + 1.0)


@dataclass(frozen=True, slots=True)
class RadiusPlan:
    """The grid, in the order of the visit, and Gamma = 8 Delta (ln T + ln(2/beta))/epsilon, Delta = 2."""

    radii: np.ndarray
    gamma: float


def radius_plan(
    epsilon: float, beta: float, low: float, high: float, *, largest: bool = False, ratio: float = 2.0
) -> RadiusPlan:
    """What PTerrificRadius does before it sees data: Gamma = 16 (ln T + ln(2/beta)) / epsilon."""
    radii = radius_grid(low, high, ratio)
    gamma = above_threshold_error(len(radii), epsilon, beta, SCORE_SENSITIVITY)
    return RadiusPlan(radii[::-1] if largest else radii, gamma)


def terrific_radius(
    rows: np.ndarray,
    size: int,
    epsilon: float,
    rng: np.random.Generator,
    *,
    low: float,
    high: float,
    factor: float = FACTOR,
    largest: bool = False,
    beta: float = 0.05,
    ratio: float = 2.0,
    gamma: float | None = None,
) -> float | None:
    """Algorithm 2, PTerrificRadius: a radius of the grid at which X has a terrific ball of size t, or None. eps-DP.

    A returned radius has a (c, 2 Gamma)-terrific ball with probability 1 - beta (Claim 5.5). If X has a
    (4c + 1)-terrific ball of least radius r0, some radius in [r0, 4 r0] is returned or an earlier one (Claim 5.6).
    largest: the grid is visited from its end. gamma: by default the paper's. The scan is linear since terrific radii
    are not upward closed.
    """
    if size < 1:
        raise ConfigError(f"A terrific ball needs a size of at least 1, not {size!r}.")
    plan = radius_plan(epsilon, beta, low, high, largest=largest, ratio=ratio)
    slack = plan.gamma if gamma is None else gamma
    values = terrific_score(rows, plan.radii, size, factor)
    hit = above_threshold(values, size - slack, epsilon, rng, sensitivity=SCORE_SENSITIVITY)
    return None if hit is None else float(plan.radii[hit])
