"""Section 6, sample and aggregate: learn many blocks without privacy, then agree on the results privately.

privacy: none (simulated noise). One record changes one block, and so up to k points of the aggregation's input, while
one-cluster procedures are stated for one point: slip S6. Here a block is the unit. What a block adds to a bin is capped
at one point (boxes), or the budget is divided by k for group privacy (one-cluster calls).

The learners of blocks are spherical EM and Vempala and Wang 2002, without privacy and on many small blocks at once.
Input (m, b, d): rows with a NaN are absent; a block with fewer than k rows gives NaN. Output (means (m, k, d), weights
(m, k)).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from fedcore.papers.private_gmm.theory.mechanisms import (
    Ball,
    clipped,
    clipped_to,
    per_call_budget,
    principal_components_zcdp,
    scale_of_rho,
    within,
    zcdp_rho,
)
from fedcore.papers.private_gmm.theory.one_cluster import locate, outside_of, radius_grid
from scipy.special import ndtri

from fedcore.errors import ConfigError

STARTS = 3
LLOYD, EM = 10, 25  # iterations
FLOOR = 0.1  # of a component's variance, in units of the pooled one: single rows do not become components of their own

Learner = Callable[[np.ndarray, int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def spherical_em(
    blocks: np.ndarray,
    components: int,
    rng: np.random.Generator,
    *,
    starts: int = STARTS,
    lloyd: int = LLOYD,
    iterations: int = EM,
) -> tuple[np.ndarray, np.ndarray]:
    """A spherical mixture of each block: the best of `starts` runs of k-means++ and Lloyd by its cost, then EM."""
    there = np.isfinite(blocks).all(axis=2)
    rows = there.sum(axis=1)
    usable = rows >= components
    origin = np.where(there[:, :, None], blocks, 0).sum(axis=1) / np.maximum(rows, 1)[:, None]
    x = np.where(there[:, :, None], blocks - origin[:, None, :], 0.0)
    best, best_cost = np.zeros((len(x), components, x.shape[2])), np.full(len(x), np.inf)
    for _ in range(starts):
        centres = _plus_plus(x, there, components, rng)
        for _ in range(lloyd):
            member = _one_hot(np.argmin(_squared(x, centres), axis=2), components) * there[:, :, None]
            centres = _means(x, member, centres)
        cost = (_squared(x, centres).min(axis=2) * there).sum(axis=1)
        better = cost < best_cost
        best[better], best_cost[better] = centres[better], cost[better]
    means, weights = _em(x, there, best, iterations)
    means = means + origin[:, None, :]
    means[~usable], weights[~usable] = np.nan, np.nan
    return means, weights


def _squared(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(m, b, k) squared distances."""
    cross = x @ centres.transpose(0, 2, 1)
    squares = (x * x).sum(axis=2)[:, :, None] + (centres * centres).sum(axis=2)[:, None, :] - 2 * cross
    return np.maximum(squares, 0.0)


def _one_hot(labels: np.ndarray, components: int) -> np.ndarray:
    return (labels[:, :, None] == np.arange(components)).astype(np.float64)


def _means(x: np.ndarray, member: np.ndarray, old: np.ndarray) -> np.ndarray:
    total = member.sum(axis=1)
    found = member.transpose(0, 2, 1) @ x / np.maximum(total, 1e-300)[:, :, None]
    return np.where((total > 1e-12)[:, :, None], found, old)


def _drawn(chances: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """(m, draws) row numbers, each with chances (m, b) that need not add up to 1."""
    edges = np.cumsum(chances, axis=1)
    u = rng.random((len(chances), draws)) * edges[:, -1:]
    return np.minimum((u[:, :, None] >= edges[:, None, :]).sum(axis=2), chances.shape[1] - 1)


def _plus_plus(x: np.ndarray, there: np.ndarray, components: int, rng: np.random.Generator) -> np.ndarray:
    """(m, k, d): greedy k-means++ (Arthur and Vassilvitskii 2007), the best of 2 + ln k candidates each time."""
    m = np.arange(len(x))
    centres = np.empty((len(x), components, x.shape[2]))
    centres[:, 0] = x[m, _drawn(there.astype(np.float64), 1, rng)[:, 0]]
    nearest = _squared(x, centres[:, :1])[:, :, 0] * there
    for number in range(1, components):
        chances = np.where(nearest.sum(axis=1, keepdims=True) > 0, nearest, there.astype(np.float64))
        drawn = _drawn(chances, 2 + int(math.log(components)), rng)
        candidates = x[m[:, None], drawn]
        left = np.minimum(_squared(x, candidates), nearest[:, :, None]) * there[:, :, None]
        chosen = np.argmin(left.sum(axis=1), axis=1)
        centres[:, number] = candidates[m, chosen]
        nearest = left[m, :, chosen]
    return centres


def _em(x: np.ndarray, there: np.ndarray, means: np.ndarray, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    d, k = x.shape[2], means.shape[1]
    resp = _one_hot(np.argmin(_squared(x, means), axis=2), k) * there[:, :, None]
    rows = np.maximum(there.sum(axis=1), 1)[:, None]
    weights = np.full(means.shape[:2], 1 / k)
    for _ in range(iterations):
        total = resp.sum(axis=1)
        means = _means(x, resp, means)
        weights = np.maximum(total, 1e-9) / np.maximum(total, 1e-9).sum(axis=1, keepdims=True)
        inner = (resp * _squared(x, means)).sum(axis=1)
        pooled = inner.sum(axis=1, keepdims=True) / (rows * d) + 1e-300
        variance = np.maximum(inner / np.maximum(total * d, 1e-9), FLOOR * pooled)
        logs = np.log(weights)[:, None, :] - 0.5 * (
            _squared(x, means) / variance[:, None, :] + d * np.log(variance)[:, None, :]
        )
        logs -= logs.max(axis=2, keepdims=True)
        resp = np.exp(logs)
        resp *= there[:, :, None] / resp.sum(axis=2, keepdims=True)
    return means, weights


def vempala_wang(
    blocks: np.ndarray,
    components: int,
    rng: np.random.Generator,
    *,
    least_weight: float | None = None,
    slack: float = 2.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Vempala and Wang 2002, spherical components: project on the top k right singular vectors; k times, take the row
    with the nearest (w_min b/2)-th neighbour, which lies in the component of least variance, and all rows within
    2 sigma sqrt(k), times `slack` for dimensions where distances do not concentrate. sigma from that neighbour's
    distance, |y - y'|^2 ~ 2 sigma^2 k. least_weight: 1/(2k) by default. rng is not used."""
    m, _, d = blocks.shape
    share = 1 / (2 * components) if least_weight is None else least_weight
    means, weights = np.full((m, components, d), np.nan), np.full((m, components), np.nan)
    for number, block in enumerate(blocks):
        rows = block[np.isfinite(block).all(axis=1)]
        if len(rows) < components:
            continue
        basis = np.linalg.svd(rows, full_matrices=False)[2][:components].T
        y = rows @ basis
        distances = np.linalg.norm(y[:, None] - y[None], axis=2)
        left, neighbour = np.ones(len(rows), bool), max(1, math.floor(share * len(rows) / 2))
        for component in range(components):
            if left.sum() <= neighbour:
                break
            own = np.where(left[:, None] & left[None], distances, np.inf)
            radii = np.partition(own, neighbour, axis=1)[:, neighbour]
            first = int(np.argmin(radii))
            sigma = radii[first] / math.sqrt(2 * components)
            taken = left & (distances[first] <= max(2 * sigma * math.sqrt(components) * slack, radii[first]))
            means[number, component], weights[number, component] = rows[taken].mean(axis=0), taken.mean()
            left &= ~taken
        weights[number] /= np.nansum(weights[number])
    return means, weights


# --- sample and aggregate ---------------------------------------------------------------------------------------------


SHARES = {"bounding": 0.1, "pca": 0.4, "boxes": 0.4, "centres": 0.05, "weights": 0.05}  # of rho
BOUNDING_ROUNDS = 3
GRID = 1.25  # ratio of radii
LARGEST_CALL = 600.0  # epsilon of a one-cluster call whose group privacy can be computed


@dataclass(frozen=True, slots=True)
class Aggregated:
    """means: (k, d); weights: (k,), which add up to 1."""

    means: np.ndarray
    weights: np.ndarray


def cut_into_blocks(rows: np.ndarray, blocks: int, rng: np.random.Generator) -> np.ndarray:
    """(m, ceil(n/m), d): records put at random into blocks by their place; NaN where a block has one less."""
    order = rng.permutation(len(rows))
    size = -(-len(rows) // blocks)
    padded = np.full((blocks * size, rows.shape[1]), np.nan)
    padded[: len(rows)] = rows[order]
    return padded.reshape(size, blocks, -1).transpose(1, 0, 2)


def sample_and_aggregate(
    rows: np.ndarray,
    components: int,
    blocks: int,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    radius: float,
    finest: float,
    learner: Learner = spherical_em,
    weight_bin: float = 0.05,
) -> Aggregated | None:
    """The practical baseline: `learner` on every block, then `aggregate_boxes`. (epsilon, delta)-DP in total."""
    means, weights = learner(cut_into_blocks(rows, blocks, rng), components, rng)
    return aggregate_boxes(means, weights, epsilon, delta, rng, radius=radius, finest=finest, weight_bin=weight_bin)


# --- as published ---------------------------------------------------------------------------------------------------


def aggregate_clusters(
    means: np.ndarray,
    weights: np.ndarray,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    radius: float,
    finest: float,
    share: float = 0.5,
    weight_bin: float = 0.05,
    inflation: float = 1.0,
) -> Aggregated | None:
    """k one-cluster calls, the points of each ball removed; the mean is the centre. None unless k balls are found.

    means: (m, k, d), weights: (m, k) of blocks. share: t = share * m points, a little above m/2 in the paper, so that
    leftovers are fewer. finest: the smallest radius of interest. Group privacy (S6): a call that is (e, D) for blocks
    is run at (e/k, D/(k e^e)) for points. 9/10 of epsilon for the balls, 1/10 for weights. Raises ConfigError where e^e
    overflows.
    """
    m, k, d = means.shape
    each, slack = per_call_budget(0.9 * epsilon, delta / 2, k)
    if each > LARGEST_CALL:
        raise ConfigError(f"Group privacy cannot be had at epsilon {epsilon:g}: e^{each:.0f} overflows.")
    left = np.where(np.isfinite(weights).reshape(-1, 1), means.reshape(-1, d), np.nan)
    left, size = clipped_to(left, radius), max(1, math.ceil(share * m))
    centres, members = [], []
    for _ in range(k):
        ball = locate(
            left,
            size,
            each / k,
            slack / (k * math.exp(each)),
            rng,
            bound=radius,
            sigma_min=4 * finest / math.sqrt(d),
            nominal=m * k,
        )
        if ball is None:
            return None
        ball = Ball(ball.centre, inflation * ball.radius)
        centres.append(ball.centre)
        members.append(within(left, ball).reshape(m, k))
        left = outside_of(left, ball)
    rho = zcdp_rho(0.1 * epsilon, delta / 4)
    return Aggregated(np.array(centres), _agreed_weights(weights, members, rho, delta / 4, weight_bin, rng))


def _agreed_weights(
    weights: np.ndarray, members: list[np.ndarray], rho: float, delta: float, width: float, rng: np.random.Generator
) -> np.ndarray:
    """(k,): for every ball the fullest bin of a histogram of weights, one point a block; normalised. A block is in one
    bin of each of k histograms: sensitivity sqrt(k). 1/k where no bin is heavy."""
    k = len(members)
    scale = scale_of_rho(math.sqrt(k), rho)
    threshold = 1 - scale * float(ndtri(delta / k))
    found = np.full(k, 1 / k)
    for ball, member in enumerate(members):
        some = member.any(axis=1)
        first = weights[some, np.argmax(member[some], axis=1)]
        bins, counts = np.unique(np.floor(first / width), return_counts=True)
        noised = counts + scale * rng.standard_normal(len(counts))
        if len(bins) and noised.max() > threshold:
            found[ball] = (bins[np.argmax(noised)] + 0.5) * width
    return found / found.sum()


# --- with the tools of the practical learner ------------------------------------------------------------------------


def aggregate_boxes(
    means: np.ndarray,
    weights: np.ndarray,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    radius: float,
    finest: float,
    share: float = 0.5,
    shifts: int | None = None,
    weight_bin: float = 0.05,
) -> Aggregated | None:
    """Bounding, private PCA, and box counts at all scales in place of one-cluster calls. None unless k disjoint boxes
    hold share * m blocks each. (epsilon, delta)-DP: Gaussian noise at delta/2, thresholds at delta/2.

    Sensitivities for one block (m blocks are public): centroid of its clipped points r; radius of its farthest point,
    one cell, 1; second moment k r^2; J box histograms, at most one point a bin, hence k bins each, sqrt(J k); centres,
    one point a box, sqrt(k) times half a diagonal. finest: the smallest width of a box; shifts: random positions of
    every grid, k and at least 2 by default: in many dimensions few boxes hold half of a cluster.
    """
    m, k, d = means.shape
    rho = zcdp_rho(epsilon, delta / 2)
    part = {name: rho * value for name, value in SHARES.items()}
    whole = np.isfinite(means).all(axis=(1, 2))
    if m < 2:
        raise ConfigError("Sample and aggregate needs at least 2 blocks.")
    ball = _bounded(means[whole], m, Ball(np.zeros(d), radius), finest, part["bounding"], rng)
    flat = means[whole].reshape(-1, d)
    basis = principal_components_zcdp(flat, ball, k, part["pca"], rng, sensitivity=k * ball.radius**2)
    y = (clipped(flat, ball) @ basis).reshape(-1, k, basis.shape[1])
    found = _boxes(
        y,
        m,
        ball.radius,
        finest,
        share,
        max(2, k) if shifts is None else shifts,
        (part["boxes"], part["centres"]),
        delta / 4,
        rng,
    )
    if len(found) < k:
        return None
    members = [np.zeros((m, k), bool) for _ in found]
    for (_, inside), full in zip(found, members, strict=True):
        full[whole] = inside
    agreed = _agreed_weights(weights, members, part["weights"], delta / 4, weight_bin, rng)
    return Aggregated(ball.centre + np.array([centre for centre, _ in found]) @ basis.T, agreed)


def _bounded(points: np.ndarray, m: int, ball: Ball, finest: float, rho: float, rng: np.random.Generator) -> Ball:
    """A smaller ball with most of the points of most blocks: centroid and radius histogram, some rounds."""
    each, d = rho / (2 * BOUNDING_ROUNDS), points.shape[2]
    for _ in range(BOUNDING_ROUNDS):
        flat = clipped(points.reshape(-1, d), ball).reshape(points.shape)
        noise = scale_of_rho(ball.radius, each) * rng.standard_normal(d)
        centre = ball.centre + (flat.mean(axis=1).sum(axis=0) + noise) / m
        radii = radius_grid(finest, max(2 * ball.radius, finest), GRID)
        farthest = np.linalg.norm(points - centre, axis=2).max(axis=1)
        counts = np.bincount(np.searchsorted(radii, farthest), minlength=len(radii) + 1)[: len(radii)]
        scale = scale_of_rho(1.0, each)
        cumulative = np.cumsum(counts + scale * rng.standard_normal(len(radii)))
        enough = cumulative >= max(0.6 * m, 0.9 * m - 2 * scale * math.sqrt(len(radii)))
        ball = Ball(centre, float(radii[np.argmax(enough)]) if enough.any() else 2 * ball.radius)
    return ball


def _boxes(
    y: np.ndarray,
    m: int,
    radius: float,
    finest: float,
    share: float,
    shifts: int,
    rhos: tuple[float, float],
    delta: float,
    rng: np.random.Generator,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(centre, (m, k) bool members) of up to k boxes with at least share * m blocks, finest first. Points within 0.6
    widths of an accepted box's private centre are its members, and are not looked at any more."""
    k, q = y.shape[1:]
    widths = 2 * radius / 2.0 ** np.arange(max(1, math.floor(math.log2(2 * radius / finest)) + 1))
    histograms = len(widths) * shifts
    scale = scale_of_rho(math.sqrt(histograms * k), rhos[0])
    threshold = max(1 - scale * float(ndtri(delta / (histograms * k))), share * m)
    left, found = np.ones(y.shape[:2], bool), []
    for width in np.repeat(widths[::-1], shifts):
        shift, (block, point) = rng.random(q) * width, np.nonzero(left)
        cells = np.floor((y[block, point] + shift) / width)
        capped = np.unique(np.column_stack([block, cells]), axis=0)[:, 1:]
        boxes, counts = np.unique(capped, axis=0, return_counts=True)
        noised = counts + scale * rng.standard_normal(len(counts))
        for number in np.argsort(-noised)[: np.count_nonzero(noised >= threshold)]:
            centre = _box_centre(y, left, (boxes[number] + 0.5) * width - shift, width, rhos[1], rng)
            own = left & (np.abs(y - centre) <= 0.6 * width).all(axis=2)
            found.append((centre, own))
            left &= ~own
            if len(found) == k:
                return found
    return found


def _box_centre(
    y: np.ndarray, left: np.ndarray, box: np.ndarray, width: float, rho: float, rng: np.random.Generator
) -> np.ndarray:
    """(q,) noisy average of the points in a box, one point a block; a block is in at most k such averages."""
    k, q = y.shape[1:]
    inside = left & (np.abs(y - box) <= width / 2).all(axis=2)
    some = inside.any(axis=1)
    first = y[some, np.argmax(inside[some], axis=1)]
    scale = scale_of_rho(math.sqrt(k), rho / 2)
    count = max(len(first) + scale * rng.standard_normal(), 1.0)
    total = (first - box).sum(axis=0) + scale * width * math.sqrt(q) / 2 * rng.standard_normal(q)
    return box + np.clip(total / count, -width / 2, width / 2)
