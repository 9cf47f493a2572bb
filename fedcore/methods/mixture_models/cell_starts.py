"""Where the components of a mixture may start, from released cells: counts and centres of a fine partition of the rows.

Released cells are a small public data set, so that any number of starts on them costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STARTS, STEPS = 30, 25
PRIOR = 2.0  # pseudo-observations, in cells for each dimension, with which a component's matrix leans on the pooled one
FLOOR = 1e-3  # of the mean variance of the cells' centres, which every variance has at least


@dataclass(frozen=True, slots=True)
class CellMixture:
    """weights (k,), means (k, q), covariances (k, q, q) of a mixture of cells; score: its log-likelihood a unit."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    score: float


def spread_points(centres: np.ndarray, counts: np.ndarray, k: int, generator: np.random.Generator) -> np.ndarray:
    """(k, q) by k-means++ on weighted points."""
    chosen = [int(generator.choice(len(counts), p=counts / counts.sum()))]
    nearest = np.full(len(counts), np.inf)
    while len(chosen) < k:
        nearest = np.minimum(nearest, ((centres - centres[chosen[-1]]) ** 2).sum(axis=1))
        chance = nearest * counts
        if not chance.sum() > 0:
            chance = counts
        chosen.append(int(generator.choice(len(counts), p=chance / chance.sum())))
    return centres[chosen]


def mixture_of_cells(
    centres: np.ndarray,
    counts: np.ndarray,
    noise: np.ndarray,
    within: np.ndarray,
    k: int,
    generator: np.random.Generator,
) -> CellMixture:
    """The best of STARTS fits by EM.

    centres: (m, q) of the cells; counts: (m,) positive; noise: (m,) standard deviation of each coordinate of a centre;
    within: (q, q) the mean covariance of rows within a cell. Noisy centres count less, and what noise adds to the
    scatter is taken off.
    """
    k = min(k, len(counts))
    typical = float(np.trace(within)) / len(within)
    counts = counts * typical / (typical + noise**2)
    best: CellMixture | None = None
    for _ in range(STARTS):
        found = _fitted(centres, counts, noise, within, spread_points(centres, counts, k, generator))
        if best is None or found.score > best.score:
            best = found
    assert best is not None
    return best


def _fitted(
    centres: np.ndarray, counts: np.ndarray, noise: np.ndarray, within: np.ndarray, means: np.ndarray
) -> CellMixture:
    (m, q), k, total = centres.shape, len(means), counts.sum()
    weighted = counts / total
    spread = centres - weighted @ centres
    floor = FLOOR * float(np.trace((spread * weighted[:, None]).T @ spread)) / q + 1e-12
    shares = np.zeros((m, k))
    shares[np.arange(m), ((centres[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)] = 1.0
    weights, matrices, score = np.full(k, 1 / k), np.tile(np.eye(q), (k, 1, 1)), -np.inf
    for _ in range(STEPS):
        mass = shares * weighted[:, None]
        weights = np.maximum(mass.sum(axis=0), 1e-9)
        means = np.where(weights[:, None] > 1e-8, (mass.T @ centres) / weights[:, None], means)
        away = centres[None] - means[:, None]
        added = (noise**2 @ mass)[:, None, None] * np.eye(q)
        scatter = _positive(np.swapaxes(away * mass.T[:, :, None], 1, 2) @ away - added)
        pooled = scatter.sum(axis=0) / weights.sum() + within + floor * np.eye(q)
        cells = shares.sum(axis=0)
        lean = (PRIOR * q / (PRIOR * q + cells))[:, None, None]
        own = scatter / weights[:, None, None] + within + floor * np.eye(q)
        matrices = lean * pooled + (1 - lean) * own
        weights = weights / weights.sum()
        joint = _log_joint(away, weights, matrices, within, noise)
        top = joint.max(axis=1)
        parts = np.exp(joint - top[:, None])
        last, score = score, float(weighted @ (top + np.log(parts.sum(axis=1))))
        shares = parts / parts.sum(axis=1, keepdims=True)
        if abs(score - last) < 1e-7:
            break
    return CellMixture(weights, means, matrices, score)


def _log_joint(
    away: np.ndarray, weights: np.ndarray, matrices: np.ndarray, within: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """(m, k) the mean log density of a cell's rows under each component, whose variances the cell's noise adds to."""
    values, vectors = np.linalg.eigh(matrices)
    turned = away @ vectors
    inside = (vectors * (within @ vectors)).sum(axis=1)
    widened = values[:, None] + noise[:, None] ** 2
    joint: np.ndarray = np.log(weights)[:, None] - 0.5 * (
        ((turned**2 + inside[:, None]) / widened).sum(axis=2) + np.log(widened).sum(axis=2)
    )
    return joint.T


def _positive(matrices: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrices)
    rebuilt: np.ndarray = (vectors * np.maximum(values, 0.0)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    return rebuilt
