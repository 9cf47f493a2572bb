"""Distances of atoms and of dictionaries that do not depend on signs or on the order of atoms (equations 3 and 4).

Shapes as in `fedcore.methods.dictionary_learning.operators`: one atom a row, dictionaries (..., r, d).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

ZERO_DISTANCE = 1e-7  # distances below are rounding: sqrt(2 - 2 g) cannot resolve less than about 1.5e-8


def atom_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sign-free distances min(|a_j - b_k|, |a_j + b_k|) of all pairs (equation 4).

    a: (..., r, d), b: (..., s, d); norms need not be 1. Returns (..., r, s). Rounding leaves about 1.5e-8 of unit
    atoms that are equal; see ZERO_DISTANCE and `matched_distances`.
    """
    products = np.abs(a @ np.swapaxes(b, -1, -2))
    squares = (a**2).sum(-1)[..., :, None] + (b**2).sum(-1)[..., None, :]
    return np.sqrt(np.maximum(0.0, squares - 2.0 * products))


def layer_matrices(dictionaries: list[np.ndarray]) -> list[np.ndarray]:
    """Distances between the atoms of consecutive dictionaries (Algorithm 2): N - 1 matrices (r_i, r_{i+1})."""
    return [atom_distances(a, b) for a, b in zip(dictionaries, dictionaries[1:], strict=False)]


def signs(atoms: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """(...,) +1 or -1: sign of the inner products of atoms and reference, both (..., d); +1 where they are 0."""
    return np.where((atoms * reference).sum(-1) < 0, -1.0, 1.0)


def align_signs(atoms: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """atoms (..., d), each flipped to agree with its reference (..., d)."""
    return atoms * signs(atoms, reference)[..., None]


def matched_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """min(|a - b|, |a + b|) of pairs, a and b (..., d), to full precision. Returns (...,)."""
    return np.linalg.norm(a - align_signs(b, a), axis=-1)


@dataclass(frozen=True, slots=True)
class DictionaryDistance:
    """The distance d_{1,2} of two dictionaries, and how it comes about.

    value:    largest distance of matched atoms
    atoms:    (r,) distance of each atom of the first dictionary from its match: d_{2,(j)}
    match:    (r,) which atom of the second it is
    signs:    (r,) +1 or -1 that the match is multiplied with
    spectral: spectral norm of the difference under this match: an upper bound of d_2, which is no assignment problem
    """

    value: float
    atoms: np.ndarray
    match: np.ndarray
    signs: np.ndarray
    spectral: float


def assign(costs: np.ndarray) -> np.ndarray:
    """(r,) columns of a linear assignment of the r rows of costs (r, s), r <= s, least in total."""
    rows, columns = linear_sum_assignment(costs)
    return columns[np.argsort(rows)]


def bottleneck_assign(costs: np.ndarray) -> np.ndarray:
    """(r,) columns of an assignment of the rows of costs (r, s), r <= s, whose *largest* cost is least.

    Binary search over the distinct costs, one linear assignment each. Among assignments that reach the least
    bottleneck, one of least total.
    """
    levels = np.unique(costs)
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        blocked = (costs > levels[middle]).astype(np.float64)
        if blocked[np.arange(len(costs)), assign(blocked)].any():
            low = middle + 1
        else:
            high = middle
    # Entries above the bottleneck cost more than any assignment without them.
    forbidden = (1.0 + costs.max()) * (1 + len(costs))
    return assign(np.where(costs > levels[low], forbidden, costs))


def dictionary_distance(a: np.ndarray, b: np.ndarray, exact: bool = False) -> DictionaryDistance:
    """d_{1,2}(a, b): the least largest distance of atoms over signed permutations (equation 3).

    a: (r, d), b: (s, d); the smaller is matched into the larger, and the result is then in terms of the smaller. exact:
    the bottleneck assignment; otherwise the one of least total distance, whose largest distance is an upper bound.
    """
    small, large = (a, b) if len(a) <= len(b) else (b, a)
    if not len(small):
        nothing = np.zeros(0)
        return DictionaryDistance(0.0, nothing, np.zeros(0, np.int64), nothing, 0.0)
    costs = atom_distances(small, large)
    match = bottleneck_assign(costs) if exact else assign(costs)
    matched = large[match]
    flips = signs(matched, small)
    difference = small - matched * flips[:, None]
    each = np.linalg.norm(difference, axis=1)
    return DictionaryDistance(float(each.max()), each, match, flips, float(np.linalg.norm(difference, 2)))


def d12(a: np.ndarray, b: np.ndarray, exact: bool = False) -> float:
    """The value of `dictionary_distance`."""
    return dictionary_distance(a, b, exact).value
