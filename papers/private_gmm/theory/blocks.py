"""Non-private learners of blocks, as sample-and-aggregate runs them: spherical EM and Vempala and Wang. privacy: none.

Many small blocks are learnt at once. Input (m, b, d): rows with a NaN are absent; a block with fewer than k rows gives
NaN. Output (means (m, k, d), weights (m, k)).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

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
