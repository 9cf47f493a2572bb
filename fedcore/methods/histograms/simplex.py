"""Operations on histograms: smoothing, the metric of the whitened release, shrinkage, merging.

Everything here acts on published or public values; nothing looks at a client. Histograms are rows (k, d) float64.
"""

from __future__ import annotations

import numpy as np


def smooth(p: np.ndarray, e: float) -> np.ndarray:
    """(p + e) / (1 + d e): additive smoothing; p (..., d) with rows that sum to 1."""
    return (p + e) / (1 + p.shape[-1] * e)


def assignment_logs(centres: np.ndarray, e: float) -> np.ndarray:
    """(d, k) float32, contiguous: ln of the smoothed centres, what clients need to find their nearest one."""
    return np.ascontiguousarray(np.log(smooth(centres, e)).T.astype(np.float32))


def project(p: np.ndarray, floor: float) -> np.ndarray:
    """Onto the simplex: every entry at least `floor`, then each row divided by its sum."""
    p = np.maximum(p, floor)
    return p / p.sum(axis=-1, keepdims=True)


def metric(mean: np.ndarray, floor: float, effective_tokens: float) -> np.ndarray:
    """w ~ P sqrt(1/m_eff + P), P = max(mean, floor): (d,) positive, sums to 1.

    A noised sum released in y = q / sqrt(w) costs (C sigma)**2 / (2 N**2) * sum w / P nats, and the norm of y is about
    sqrt(sum E q**2 / w). Their product is smallest at w ~ sqrt(P E q**2), with E q**2 = P (1/m_eff + P).
    """
    p = np.maximum(mean, floor)
    w = p * np.sqrt(1.0 / effective_tokens + p)
    return w / w.sum()


def total_variation(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """(...,) float64: half the sum of |p - q| over the last axis."""
    return 0.5 * np.abs(p - q).sum(axis=-1)


def perturbed(mean: np.ndarray, copies: int, p: float, generator: np.random.Generator) -> np.ndarray:
    """(copies, d): mean * exp(p N(0, 1)), each renormalised."""
    rows = mean * np.exp(p * generator.standard_normal((copies, len(mean))))
    return rows / rows.sum(axis=1, keepdims=True)


def shrink(centres: np.ndarray, mean: np.ndarray, w: np.ndarray, energy: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Positive-part James-Stein shrinkage of every centre towards the mean.

    D = (P - F) / sqrt(w) is scaled by max(least, 1 - energy / ||D||**2).

    centres: (k, d); mean, w: (d,); energy: (k,) expected squared norm of the noise in D, d (C sigma / N)**2.
    """
    difference = centres - mean
    norms = np.sum(difference**2 / w, axis=1)
    kept = np.maximum(least, 1.0 - energy / np.maximum(norms, np.finfo(np.float64).tiny))
    return mean + kept[:, None] * difference


def ward_merge(centres: np.ndarray, counts: np.ndarray, w: np.ndarray, clusters: int) -> list[list[int]]:
    """Merges greedily, always the pair with the least Ward cost, until `clusters` groups are left.

    Cost of a pair: N_i N_j / (N_i + N_j) * sum (P_i - P_j)**2 / w. A tie goes to the pair of lowest numbers.
    counts must be positive. Returns the groups as ascending lists of row numbers, by their lowest member.
    """
    points = centres / np.sqrt(w)
    counts = np.array(counts, np.float64)
    points = np.array(points, np.float64)
    groups = [[i] for i in range(len(points))]
    squares = _squares(points)
    while len(groups) > max(clusters, 1):
        cost = counts[:, None] * counts[None, :] / (counts[:, None] + counts[None, :]) * squares
        cost[np.tril_indices(len(groups))] = np.inf
        i, j = np.unravel_index(np.argmin(cost), cost.shape)
        points[i] = (counts[i] * points[i] + counts[j] * points[j]) / (counts[i] + counts[j])
        counts[i] += counts[j]
        groups[i] = sorted(groups[i] + groups[j])
        del groups[j]
        points, counts = np.delete(points, j, axis=0), np.delete(counts, j)
        squares = np.delete(np.delete(squares, j, axis=0), j, axis=1)
        squares[i] = squares[:, i] = np.sum((points - points[i]) ** 2, axis=1)
    return groups


def _squares(points: np.ndarray) -> np.ndarray:
    """(k, k) squared distances, row by row so that memory stays at one (k, d) array."""
    return np.stack([np.sum((points - point) ** 2, axis=1) for point in points])
