"""Weighted means of clients' centres, and the spatial median that comes of repeating them."""

from __future__ import annotations

import numpy as np

SMALLEST_DISTANCE = 1e-12


def distances(t: np.ndarray, v: np.ndarray) -> np.ndarray:
    """(K, R) Euclidean distance of t (K, R, p) from v (R, p)."""
    d = t - v
    return np.sqrt(np.einsum("krp,krp->kr", d, d))


def weighted_sums(t: np.ndarray, a: np.ndarray) -> np.ndarray:
    """(R, p + 1): sum a_k t_k, then sum a_k. A client of weight 0 counts as nothing, whatever its t is."""
    t = np.where((a > 0)[:, :, None], t, 0.0)
    return np.concatenate([np.einsum("kr,krp->rp", a, t), a.sum(axis=0)[:, None]], axis=1)


def moved_centre(v: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """(R, p) the next centre from the two sums; a component without weight keeps its centre."""
    some = sums[:, -1:] > 0
    return np.where(some, sums[:, :-1] / np.where(some, sums[:, -1:], 1.0), v)


def spatial_median(t: np.ndarray, steps: int = 50) -> np.ndarray:
    """(R, p) the point of least summed distance to t (K, R, p), by Weiszfeld's reweighting from the medians."""
    v = np.median(t, axis=0)
    for _ in range(steps):
        v = moved_centre(v, weighted_sums(t, 1.0 / np.maximum(distances(t, v), SMALLEST_DISTANCE)))
    return v
