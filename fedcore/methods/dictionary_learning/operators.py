"""Hard threshold, top-k, scaling to norm 1 and polar factor, on stacks of matrices; random atoms.

Layout of this room, the transpose of the paper's (samples of a population are rows):

    samples       y      (..., n, d)   one sample a row
    dictionary    atoms  (..., r, d)   one atom a row
    codes         x      (..., n, r)   y is about x @ atoms

Leading axes, where allowed, are clients: one call serves all clients of equal shape. All results are float64.

Source: Liang, Shi, Al Kontar, Fattahi, "Personalized Dictionary Learning for Heterogeneous Datasets" (2023); equation
numbers are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedcore.errors import ConfigError

GRAM = 1e-8  # least ratio of eigenvalues at which a Gram matrix may stand for an SVD (see `polar`)
WELL_CONDITIONED = 1e-3  # ratio at which it needs no correction
RANK_TOLERANCE = 1e-10  # singular values below this share of the largest are zero


def to_compute_with(common: np.ndarray) -> np.ndarray:
    """Copy the atoms of a message in float64. A received array may start at any address, and products of matrices that
    are not aligned take another path, with other last bits."""
    return np.array(common, np.float64, order="C")


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


def given_global(arrays: Mapping[str, np.ndarray], what: str, check: Callable[[np.ndarray], None]) -> np.ndarray:
    """(rg, d) float64 array 'global' of a warm start, atoms scaled to norm 1. check: of its shape. Raises ConfigError,
    naming `what`."""
    common = arrays.get("global")
    if common is None or common.dtype.kind not in "iuf" or not np.isfinite(common).all():
        raise ConfigError(f"{what} has no array 'global' of finite numbers.")
    check(common)
    common = np.asarray(common, np.float64)
    norms = np.linalg.norm(common, axis=1)
    if not (norms > 0).all():
        raise ConfigError(f"'global' of {what} has an atom of norm 0.")
    return common / norms[:, None]


def random_atoms(generator: np.random.Generator, rank: int, features: int) -> np.ndarray:
    """(rank, d) unit atoms: orthonormal and uniformly distributed if rank <= d, else independent uniform directions."""
    gaussian = generator.standard_normal((rank, features))
    if rank > features:
        return normalise(gaussian)[0]
    q, upper = np.linalg.qr(gaussian.T)
    return (q * np.where(np.diagonal(upper) < 0, -1.0, 1.0)).T.copy()


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
