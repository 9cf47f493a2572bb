"""Groups of components: which neighbours a calibrated test found a valley between."""

from __future__ import annotations

import numpy as np

from fedcore.methods.mixture_models.valleys import connected, spanning_tree, valley_of
from fedcore.methods.mixture_models.whole_rows import ONE, STEP, WholeMap, cut_coordinates, whole_map
from fedcore.methods.private_mixture.clients import PLACE_STEPS
from fedcore.randomness import stream

FAR = 12.0  # of (c_i - c_j)' (S_i + S_j)^-1 (c_i - c_j): five standard deviations between equal components
BESIDE = 2.0


def edges_of(weights: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """(e, 2) int64: a spanning tree of neighbours by (c_i - c_j)' (S_i + S_j)^-1 (c_i - c_j). weights: (k,)."""
    k = len(means)
    distances = np.full((k, k), np.inf)
    for i in range(k):
        for j in range(i + 1, k):
            gap = means[j] - means[i]
            distances[i, j] = distances[j, i] = gap @ np.linalg.solve(covariances[i] + covariances[j], gap)
    return np.array(spanning_tree(distances, weights, FAR, BESIDE), np.int64).reshape(-1, 2)


def along(edges: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> tuple[WholeMap, np.ndarray]:
    """From the coordinates of the components to the Fisher direction of each edge, and the middles of the edges there,
    (e,) whole numbers; a component lies PLACE_STEPS from the middle."""
    d, e = means.shape[1], len(edges)
    directions, middle = np.zeros((d, e)), np.zeros(e)
    for column, (i, j) in enumerate(edges):
        gap = means[j] - means[i]
        fisher = np.linalg.solve(covariances[i] + covariances[j], gap)
        directions[:, column] = fisher * (2.0 / max(float(gap @ fisher), 1e-12))
        middle[column] = directions[:, column] @ (means[i] + means[j]) / 2
    return whole_map(np.zeros(d), directions * (PLACE_STEPS * STEP)), cut_coordinates(middle * PLACE_STEPS)


def tested(histograms: np.ndarray, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """mass, depth and p, (e,) each. histograms: (e, cells) published, in steps, ends included; noise: of a cell."""
    counts, sd = histograms / ONE, noise / ONE
    found = [valley_of(row[1:-1], sd, stream(seed, "valley", number)) for number, row in enumerate(counts)]
    mass = counts.sum(axis=1)
    return mass, np.array([each.depth for each in found]), np.array([each.p for each in found])


def groups_of(k: int, edges: np.ndarray, depth: np.ndarray, p: np.ndarray, alpha: float, deepest: float) -> np.ndarray:
    """(k,) int64: components that stay connected where edges with a valley are cut."""
    cut = (p <= alpha / max(k - 1, 1)) & (depth <= deepest)
    return connected(k, [(int(i), int(j)) for i, j in edges[~cut]])
