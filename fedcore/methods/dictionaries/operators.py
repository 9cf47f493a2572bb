"""Operators on dictionaries: thresholds, polar factors, sign-free distances of atoms.

Layout of this room, the transpose of the paper's (samples of a population are rows):

    samples       y      (..., n, d)   one sample a row
    dictionary    atoms  (..., r, d)   one atom a row
    codes         x      (..., n, r)   y is about x @ atoms

Leading axes, where allowed, are clients: one call serves all clients of equal shape. All results are float64.

Source: Liang, Shi, Al Kontar, Fattahi, "Personalized Dictionary Learning for Heterogeneous Datasets" (2023); equation
numbers are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

ZERO_DISTANCE = 1e-7  # distances below are rounding: sqrt(2 - 2 g) cannot resolve less than about 1.5e-8
GRAM = 1e-8  # least ratio of eigenvalues at which a Gram matrix may stand for an SVD (see `polar`)
WELL_CONDITIONED = 1e-3  # ratio at which it needs no correction
RANK_TOLERANCE = 1e-10  # singular values below this share of the largest are zero


def hard_threshold(a: np.ndarray, threshold: float) -> np.ndarray:
    """Entries with |a| >= threshold, the others 0. Any shape."""
    kept = np.array(a, np.float64)
    kept[np.abs(kept) < threshold] = 0.0
    return kept


def top_k(a: np.ndarray, k: int) -> np.ndarray:
    """The k largest |a| along the last axis, the others 0; of equal ones the lowest index stays. Any shape."""
    width = a.shape[-1]
    if k >= width:
        return np.asarray(a, np.float64).copy()
    if k <= 0:
        return np.zeros_like(a, dtype=np.float64)
    magnitude = np.abs(a)
    # The k-th largest value decides; entries equal to it are admitted from the left until k are in.
    edge = np.partition(magnitude, width - k, axis=-1)[..., width - k, None]
    above, equal = magnitude > edge, magnitude == edge
    room = k - above.sum(-1, keepdims=True)
    keep = above | (equal & (np.cumsum(equal, -1) <= room))
    return np.where(keep, a, 0.0)


def normalise(atoms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(atoms of norm 1, their norms before). atoms: (..., r, d). An atom of norm 0 stays 0."""
    norms = np.linalg.norm(atoms, axis=-1)
    return atoms / np.where(norms > 0, norms, 1.0)[..., None], norms


def polar(a: np.ndarray, previous: np.ndarray | None = None) -> np.ndarray:
    """The polar factor U V' of a = U S V': the matrix with orthonormal rows that is nearest to a.

    a: (..., r, d) with r <= d. previous: (..., r, d), completes a rank-deficient a: the part of U V' that a does not
    determine is the one nearest to `previous`, off the range of a (then to unit vectors), so that the answer never
    depends on the arbitrary null vectors of an SVD. Raises ValueError if r > d.

    Matrices that are not too badly conditioned take the r x r Gram matrix instead of the SVD, and if need be one
    Newton-Schulz step, which squares the error that the squared condition number brings in.
    """
    a = np.asarray(a, np.float64)
    r, d = a.shape[-2:]
    if r > d:
        raise ValueError(f"{r} orthonormal atoms do not fit into {d} dimensions")
    if not r:
        return a.copy()
    stacked = a.reshape(-1, r, d)
    before = None if previous is None else np.broadcast_to(previous, a.shape).reshape(-1, r, d)
    # Scaled first, so that tiny sums of squares do not underflow.
    scale = np.abs(stacked).max(axis=(1, 2), initial=0.0)
    scaled = stacked / np.where(scale > 0, scale, 1.0)[:, None, None]
    values, vectors = np.linalg.eigh(scaled @ scaled.swapaxes(1, 2))
    good = values[:, 0] > GRAM * values[:, -1]
    roots = 1.0 / np.sqrt(np.where(good[:, None], values, 1.0))
    out = ((vectors * roots[:, None, :]) @ vectors.swapaxes(1, 2)) @ scaled
    rough = values[:, 0] <= WELL_CONDITIONED * values[:, -1]
    if rough.any():
        some = out[rough]
        out[rough] = 1.5 * some - 0.5 * (some @ some.swapaxes(1, 2)) @ some
    for i in np.flatnonzero(~good):
        out[i] = _polar_by_svd(scaled[i], None if before is None else before[i])
    return out.reshape(a.shape)


def _polar_by_svd(a: np.ndarray, previous: np.ndarray | None) -> np.ndarray:
    """The polar factor of one (r, d) matrix of any rank."""
    r, d = a.shape
    left, values, right = np.linalg.svd(a, full_matrices=False)
    rank = int((values > RANK_TOLERANCE * values[0]).sum()) if values[0] > 0 else 0
    fixed = left[:, :rank] @ right[:rank]
    if rank == r:
        return fixed
    taken, free = right[:rank], left[:, rank:]
    for guess in (previous, np.eye(r, d)):
        if guess is None:
            continue
        # The map from the free directions of the codes to the complement of what is taken; its polar factor does not
        # depend on the basis that the SVD chose for `free`.
        rest = free.T @ guess
        rest = rest - (rest @ taken.T) @ taken
        inner_left, inner, inner_right = np.linalg.svd(rest, full_matrices=False)
        more = int((inner > RANK_TOLERANCE**0.5).sum())
        fixed = fixed + free @ inner_left[:, :more] @ inner_right[:more]
        if more == free.shape[1]:
            return fixed
        taken = np.concatenate([taken, inner_right[:more]])
        free = free @ inner_left[:, more:]
    # Neither determines it: unit vectors off what is taken, one after the other.
    for j in range(free.shape[1]):
        unit = np.eye(d)[np.argmin((taken**2).sum(0))]
        unit = unit - (taken @ unit) @ taken
        unit = unit - (taken @ unit) @ taken
        taken = np.concatenate([taken, unit[None] / np.linalg.norm(unit)])
        fixed = fixed + np.outer(free[:, j], taken[-1])
    return fixed


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
