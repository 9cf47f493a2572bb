"""How far estimates are from the truth of a simulation, and labels from known ones.

Source: Tian, Weng, Feng 2024, Section 4; every client's components may be matched in their own way, and weights in
another, as in the authors' program.
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

ENUMERATED = 6  # components up to which all matchings are tried


class Errors(NamedTuple):
    """largest: over clients and components, after the matching of each client that has the least such error.
    rms: root mean square over clients and components, after the matching of least squares."""

    largest: float
    rms: float


def errors(found: np.ndarray, truth: np.ndarray, inlier: np.ndarray) -> Errors:
    """found, truth: (K, R, p) centres or (K, R) weights; inlier: (K,) bool, who counts."""
    if found.ndim == 2:
        found, truth = found[:, :, None], truth[:, :, None]
    pairs = [np.linalg.norm(a[:, None] - b[None], axis=2) for a, b in zip(found[inlier], truth[inlier], strict=True)]
    least = [(cost**2)[linear_sum_assignment(cost**2)].mean() for cost in pairs]
    return Errors(max(_bottleneck(cost) for cost in pairs), float(np.sqrt(np.mean(least))))


def _bottleneck(cost: np.ndarray) -> float:
    """The least over matchings of the largest matched entry. cost: (R, R)."""
    components = len(cost)
    if components <= ENUMERATED:
        orders = np.array(list(permutations(range(components))))
        return float(cost[np.arange(components), orders].max(axis=1).min())
    for level in np.unique(cost):
        if (cost > level)[linear_sum_assignment(cost > level)].sum() == 0:
            return float(level)
    return float(cost.max())


def misclustered(found: np.ndarray, truth: np.ndarray, components: int) -> int:
    """Rows whose label is wrong after the best matching of labels found (N,) to true ones (N,), both 0 .. R - 1."""
    table = np.zeros((components, components))
    np.add.at(table, (found, truth), 1)
    rows, columns = linear_sum_assignment(-table)
    return int(len(found) - table[rows, columns].sum())
