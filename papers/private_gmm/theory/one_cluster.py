"""Terrific balls (Section 5.1), Algorithm 2 PTerrificRadius, GoodRadius, GoodCenter, Algorithm 5 PGLoc.

privacy: none (simulated noise).

GoodRadius and GoodCenter are those of Nissim, Stemmer, Vadhan 2016 and Nissim, Stemmer 2018, with three differences:
AboveThreshold over a geometric grid stands for RecConcave (ln T for 9^(log* T)); a hash by random projections (Datar,
Immorlica, Indyk, Mirrokni 2004) for the ball-cutting one; and every heavy bucket of the hash yields a candidate, since
buckets are disjoint. Slip S10: the halves of PTerrificBall's budget are not settled by the text; here (epsilon, delta)
is its total, half for the radius and half for the centre.

B(p, r) is (c, Gamma)-terrific of size t for X (Definition 5.2) iff it holds at least t rows, at least t rows are
outside of B(p, c r), and at most Gamma rows are in B(p, c r) but not in B(p, r).

Slip S9: t is an argument, for the caller to make from a public nominal number of rows: the exact one is not public
under add/remove. Slip S8: "t distinct points" are t distinct records, which may hold equal values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from fedcore.papers.private_gmm.theory.mechanisms import (
    Ball,
    above_threshold,
    above_threshold_error,
    advanced_epsilon,
    clipped,
    clipped_to,
    gaussian_scale,
    only,
    present,
    stability_histogram,
    stability_threshold,
    within,
)
from scipy.spatial.distance import cdist
from scipy.special import ndtr

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


EXPONENT = 0.1  # a of the hash: buckets hold n^-a of a cluster
JL_CONSTANT = 46.0  # of the projected dimension 46 ln(2n/beta)
BUCKET_SHARE = 1 / 16  # a bucket is asked for t n^-a / 16 rows
AXIS_CONSTANT = 10.0  # epsilon of an axis: epsilon / (10 sqrt(d ln(8/delta)))
AXIS_WIDTH = 4.0  # intervals of 4 b r sqrt(ln(dn/beta)/d)
SLACK_RADIUS = 1.1  # PTerrificBall returns (1 + 1/10) r
CANDIDATES = 16  # heavy buckets looked at


def good_radius(
    rows: np.ndarray,
    size: int,
    epsilon: float,
    rng: np.random.Generator,
    *,
    low: float,
    high: float,
    beta: float = 0.05,
    ratio: float = 2.0,
) -> float | None:
    """The first radius r of the grid with L(r) >= t - Gamma, noised; L(r) = (1/t) * the sum of the t largest
    min(|X in B(x, r)|, t) over records x, sensitivity 2, growing in r. eps-DP. None if no radius of the grid has it."""
    radii = radius_grid(low, high, ratio)
    gamma = above_threshold_error(len(radii), epsilon, beta, SCORE_SENSITIVITY)
    values = mean_of_largest(np.minimum(ball_counts(rows, rows[present(rows)], radii), size), size)
    hit = above_threshold(values, size - gamma, epsilon, rng, sensitivity=SCORE_SENSITIVITY)
    return None if hit is None else float(radii[hit])


# --- hash -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HashPlan:
    """functions: how many are joined; width: of their steps, in units of r; reach: b, such that rows at distance r
    collide with probability n^-a or more and rows at distance b r with n^-(2 + a) or less; exponent: a."""

    functions: int
    width: float
    reach: float
    exponent: float


def collision(steps: np.ndarray) -> np.ndarray:
    """Probability that floor((<g, x> + u)/w) is the same for two rows at distance w / steps, g Gaussian, u uniform."""
    steps = np.asarray(steps, np.float64)
    tail = 2 / (math.sqrt(2 * math.pi) * steps) * -np.expm1(-(steps**2) / 2)
    return np.clip(1 - 2 * ndtr(-steps) - tail, 0.0, 1.0)


@lru_cache(maxsize=256)
def hash_plan(nominal: int, exponent: float = EXPONENT) -> HashPlan:
    """The hash with the least reach among those of this exponent, for a public nominal number of rows."""
    log_n = math.log(max(nominal, 3))
    table = np.geomspace(1e-3, 1e3, 20_001)
    probabilities = np.log(np.maximum(collision(table), 1e-300))
    best = None
    for width in np.geomspace(0.25, 400, 120):
        functions = math.floor(exponent * log_n / -math.log(float(collision(width))))
        if functions >= 1:
            steps = float(np.interp(-(2 + exponent) * log_n / functions, probabilities, table))
            plan = HashPlan(functions, float(width), float(width) / steps, exponent)
            best = plan if best is None or plan.reach < best.reach else best
    if best is None:  # one function of the widest step: any hash is better than none at tiny n
        return HashPlan(1, 400.0, 400.0 / table[0], exponent)
    return best


def narrow_hash(nominal: int, reach: float) -> HashPlan:
    """The hash of the smallest exponent, in twentieths from 0.1 to 1, whose reach is at most this; else the last."""
    for exponent in np.arange(2, 21) / 20:
        plan = hash_plan(nominal, float(exponent))
        if plan.reach <= reach:
            return plan
    return plan


def bucket_keys(rows: np.ndarray, plan: HashPlan, radius: float, rng: np.random.Generator) -> np.ndarray:
    """(n,) uint64: the bucket of each row (m, d) under one draw of the hash; public, and of the row alone."""
    directions = rng.standard_normal((rows.shape[1], plan.functions))
    step = plan.width * radius
    cells = np.floor((rows @ directions + rng.random(plan.functions) * step) / step).astype(np.int64).view(np.uint64)
    odd = rng.integers(0, 2**63, plan.functions, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (cells * odd).sum(axis=1, dtype=np.uint64)


# --- GoodCenter -----------------------------------------------------------------------------------------------------


def good_centres(
    rows: np.ndarray,
    size: int,
    radius: float,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    nominal: int,
    beta: float = 0.05,
    plan: HashPlan | None = None,
    jl_constant: float = JL_CONSTANT,
    bucket_share: float = BUCKET_SHARE,
    axis_constant: float = AXIS_CONSTANT,
    axis_width: float = AXIS_WIDTH,
) -> list[np.ndarray]:
    """Centres (d,) of about t rows within O(b) radius, the fullest bucket's first; [] if none. (epsilon, delta)-DP.

    Four quarters of epsilon: AboveThreshold on the fullest bucket of each hash, a stability histogram of the buckets of
    the first good hash, an interval on every axis of a random rotation, a noisy average of the rows in that box.
    nominal: a public number of rows.
    """
    plan = hash_plan(nominal) if plan is None else plan
    quarter, slice_ = epsilon / 4, delta / 4
    records = np.flatnonzero(present(rows))
    data = rows[records]
    log_rows = math.log(2 * max(nominal, 2) / beta)
    reduced = _projected(data, math.ceil(jl_constant * log_rows), rng)
    rounds = math.ceil(max(nominal, 2) ** plan.exponent * math.log(1 / beta))
    threshold = max(
        size * max(nominal, 2) ** -plan.exponent * bucket_share,
        stability_threshold(quarter, slice_) + math.log(1 / beta) / quarter,
    )
    draws: list[np.ndarray] = []

    def fullest() -> Iterator[float]:
        for _ in range(rounds):
            draws[:] = [bucket_keys(reduced, plan, radius, rng)]
            yield float(np.unique(draws[0], return_counts=True)[1].max(initial=0))

    if above_threshold(fullest(), threshold, quarter, rng) is None:
        return []
    heavy, _ = stability_histogram(draws[0], quarter, slice_, rng)
    spread = plan.reach * radius
    d = rows.shape[1]
    width = min(axis_width * spread * math.sqrt(math.log(d * max(nominal, 2) / beta) / d), spread)
    rotation = np.linalg.qr(rng.standard_normal((d, d)))[0]
    found = []
    for bucket in heavy[:CANDIDATES]:
        box = _box(data[draws[0] == bucket] @ rotation, width, quarter, slice_, axis_constant, epsilon, delta, rng)
        if box is not None:
            average = _noisy_average(data[draws[0] == bucket] @ rotation, box, 1.5 * width, quarter, slice_, rng)
            if average is not None:
                found.append(rotation @ average)
    return found


def _projected(data: np.ndarray, dimension: int, rng: np.random.Generator) -> np.ndarray:
    """Johnson-Lindenstrauss, public; the rows themselves where that would not shorten them."""
    if dimension >= data.shape[1]:
        return data
    return data @ rng.standard_normal((data.shape[1], dimension)) / math.sqrt(dimension)


def axis_epsilon(epsilon: float, delta: float, d: int, share: float, constant: float = AXIS_CONSTANT) -> float:
    """epsilon of each of d axes: the published epsilon/(10 sqrt(d ln(8/delta))) where its advanced composition, with
    delta/8 of slack, stays within the share of epsilon; at least the share by basic composition."""
    published = epsilon / (constant * math.sqrt(d * math.log(8 / delta)))
    if advanced_epsilon(published, d, delta / 8) > share:
        published = 0.0
    return max(published, share / d)


def _box(
    rotated: np.ndarray,
    width: float,
    share: float,
    slice_: float,
    constant: float,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
) -> np.ndarray | None:
    """(d,) centre of the heaviest interval of every axis; None if an axis has no heavy one. delta/8 of slack and
    delta/(8 d) an axis are together the slice."""
    d = rotated.shape[1]
    each = axis_epsilon(epsilon, delta, d, share, constant)
    centre = np.empty(d)
    for axis in range(d):
        shift = rng.random() * width
        keys = np.floor((rotated[:, axis] - shift) / width)
        heavy, _ = stability_histogram(keys, each, slice_ / (2 * d), rng)
        if not len(heavy):
            return None
        centre[axis] = (heavy[0] + 0.5) * width + shift
    return centre


def _noisy_average(
    rotated: np.ndarray, box: np.ndarray, half: float, share: float, slice_: float, rng: np.random.Generator
) -> np.ndarray | None:
    """(d,) average of the rows in the box of this half side; None if the noised count is below 1."""
    inside = rotated[(np.abs(rotated - box) <= half).all(axis=1)]
    ball = Ball(box, half * math.sqrt(len(box)))
    count = len(inside) + rng.laplace(scale=2 / share)
    total = clipped(inside, ball).sum(axis=0)
    total = total + gaussian_scale(ball.radius, share / 2, slice_) * rng.standard_normal(len(box))
    return box + total / count if count >= 1 else None


# --- balls ----------------------------------------------------------------------------------------------------------


def terrific_ball(
    rows: np.ndarray,
    size: int,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    low: float,
    high: float,
    nominal: int,
    factor: float = FACTOR,
    largest: bool = False,
    beta: float = 0.05,
    gamma: float | None = None,
) -> Ball | None:
    """PTerrificBall (Lemma 5.7): a terrific ball of size t, of radius 1.1 r for the r of Algorithm 2; None if there is
    none. (epsilon, delta)-DP in total.

    Half of epsilon for the radius, three eighths for candidate centres, one eighth for AboveThreshold on their GQ,
    whose sensitivity is 1 because centres are already private. The hash reaches no farther than the factor c, so the
    rows that are averaged lie in the terrific ball (Remark 5.3).
    """
    radius = terrific_radius(
        rows, size, epsilon / 2, rng, low=low, high=high, factor=factor, largest=largest, beta=beta, gamma=gamma
    )
    if radius is None:
        return None
    centres = good_centres(
        rows, size, radius, 3 * epsilon / 8, delta, rng, nominal=nominal, beta=beta, plan=narrow_hash(nominal, factor)
    )
    if not centres:
        return None
    slack = radius_plan(epsilon / 2, beta, low, high).gamma if gamma is None else gamma
    threshold = size - 2 * slack - above_threshold_error(len(centres), epsilon / 8, beta)
    values = quality(rows, np.array(centres), np.array([SLACK_RADIUS * radius]), size, factor)[:, 0]
    hit = above_threshold(values, threshold, epsilon / 8, rng)
    return None if hit is None else Ball(centres[hit], SLACK_RADIUS * radius)


def locate(
    rows: np.ndarray,
    size: int,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    bound: float,
    sigma_min: float,
    nominal: int,
    beta: float = 0.05,
    exponent: float = EXPONENT,
    refine: bool = True,
) -> Ball | None:
    """Algorithm 5, PGLoc: a ball of at least t/2 rows that is not much larger than the smallest one of t rows; None if
    none is found. (epsilon, delta)-DP in total.

    bound: every row is clipped to B(0, bound), the published R + sigma_max sqrt(d + ...). Radii start at the published
    floor, sigma_min sqrt(d) / 4. Rounding rows to a grid served RecConcave only and is left out. refine: a third of
    epsilon finds the smallest ball about the private centre that holds t rows (counts, sensitivity 1); otherwise the
    radius is that of the hash, (b + 1) r, as published.
    """
    data = clipped_to(rows, bound)
    low, high = sigma_min * math.sqrt(rows.shape[1]) / 4, 2 * bound
    parts = 3 if refine else 2
    radius = good_radius(data, size, epsilon / parts, rng, low=low, high=high, beta=beta)
    if radius is None:
        return None
    plan = hash_plan(nominal, exponent)
    centres = good_centres(data, size, radius, epsilon / parts, delta, rng, nominal=nominal, beta=beta, plan=plan)
    if not centres:
        return None
    if not refine:
        return Ball(centres[0], (plan.reach + 1) * radius)
    radii = radius_grid(low, max(2 * high, low), 2**0.5)
    slack = above_threshold_error(len(radii), epsilon / 3, beta)
    counts = ball_counts(data, centres[0][None, :], radii)[0]
    hit = above_threshold(counts, size - slack, epsilon / 3, rng)
    return None if hit is None else Ball(centres[0], float(radii[hit]))


def outside_of(rows: np.ndarray, ball: Ball, factor: float = 1.0) -> np.ndarray:
    """The records outside of B(centre, factor radius); the others absent."""
    return only(rows, present(rows) & ~within(rows, ball, factor))
