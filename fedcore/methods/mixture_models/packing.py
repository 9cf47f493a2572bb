"""How statistics are packed into one vector, and how a covariance is kept positive definite.

A mixture's statistic is a list of *kinds*: 1 (the weight), d (the mean), ... numbers for each component. Packed, every
kind is one run of G x size numbers, component by component, so that a kind or one component's part of it is a slice.
A symmetric matrix is packed as its upper triangle, row by row, sqrt(2) off the diagonal: Frobenius norm and inner
product are those of the packed vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.mixture_models.client_sums import row_tiles
from fedcore.methods.mixture_models.contract import Rows, is_sparse

ROWS_CHECKED = 2**16  # at a time
RELATIVE_FLOOR = 1e-12  # of a variance, relative to the second moment about the centre: below it is rounding
SMALLEST_MOMENT = 1e-12  # a second moment is taken to be at least this when it serves as that scale
LOG_TWO_PI = float(np.log(2.0 * np.pi))
WEIGHT_FLOOR = 1e-12  # of a component's weight, whose sum is 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Packing of kinds of statistics for G components, then `shared` numbers that no component owns."""

    components: int
    kinds: tuple[int, ...]
    shared: int = 0

    @property
    def q(self) -> int:
        return self.components * sum(self.kinds) + self.shared

    @property
    def blocks(self) -> tuple[slice, ...]:
        """One block for each component and kind; kinds of one number are one block of all components."""
        blocks, low = [], 0
        for size in self.kinds:
            step, count = (self.components, 1) if size == 1 else (size, self.components)
            blocks += [slice(low + i * step, low + (i + 1) * step) for i in range(count)]
            low += size * self.components
        if self.shared:
            blocks.append(slice(low, low + self.shared))
        return tuple(blocks)

    def of_components(self, values: np.ndarray, shared: float) -> np.ndarray:
        """(q,) the value (G,) of the component that owns each number, and one for those that no component owns."""
        own = [np.repeat(values, size) for size in self.kinds]
        return np.concatenate([*own, np.full(self.shared, shared)])

    def pack(self, sums: np.ndarray, shared: np.ndarray | None = None, out: np.ndarray | None = None) -> np.ndarray:
        """(..., q) from sums (..., G, sum of kinds) and shared (..., shared); out: where to, contiguous along q."""
        head = sums.shape[:-2]
        packed = np.empty((*head, self.q)) if out is None else out
        low, column = 0, 0
        for size in self.kinds:
            high = low + size * self.components
            # a slice of the last axis splits into (G, size) without a copy
            packed[..., low:high].reshape(*head, self.components, size)[...] = sums[..., column : column + size]
            low, column = high, column + size
        if self.shared:
            packed[..., low:] = shared
        return packed

    def unpack(self, s: np.ndarray) -> list[np.ndarray]:
        """Views of s (q,): (G, size) for each kind, then (shared,) if there is any."""
        s = np.asarray(s, np.float64)
        if s.shape != (self.q,):
            raise ValueError(f"the statistic has shape {s.shape}, expected {(self.q,)}")
        parts, low = [], 0
        for size in self.kinds:
            high = low + size * self.components
            parts.append(s[low:high].reshape(self.components, size))
            low = high
        return [*parts, s[low:]] if self.shared else parts

    def spread(self, of_components: np.ndarray) -> np.ndarray:
        """(q,): each component's number (G,) at all of its places, 1 at those of no component."""
        own = [np.repeat(of_components, size) for size in self.kinds]
        return np.concatenate([*own, np.ones(self.shared)])

    def join(self, *parts: np.ndarray) -> np.ndarray:
        """(q,): the inverse of unpack."""
        return np.concatenate([np.ravel(part) for part in parts]).astype(np.float64)


def triangle(d: int) -> int:
    """The numbers in the upper triangle of a (d, d) matrix."""
    return d * (d + 1) // 2


@lru_cache(maxsize=16)
def packed_places(d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a (d, d) matrix: the flat places of its upper triangle, the packed place of every entry (d, d), and 1 on the
    diagonal, sqrt(2) off it, packed."""
    rows, columns = np.triu_indices(d)
    packed = np.empty((d, d), np.int64)
    packed[rows, columns] = packed[columns, rows] = np.arange(len(rows))
    return rows * d + columns, packed, np.where(rows == columns, 1.0, np.sqrt(2.0))


def pack_symmetric(matrix: np.ndarray) -> np.ndarray:
    """(..., d (d + 1) / 2) from symmetric (..., d, d)."""
    d = matrix.shape[-1]
    flat, _, scale = packed_places(d)
    packed = np.take(matrix.reshape(*matrix.shape[:-2], d * d), flat, axis=-1)
    packed *= scale
    return packed


def unpack_symmetric(packed: np.ndarray, d: int) -> np.ndarray:
    """Symmetric (..., d, d) from (..., d (d + 1) / 2)."""
    _, places, scale = packed_places(d)
    matrix = np.take(packed, places, axis=-1)
    matrix *= np.where(scale == 1.0, 1.0, np.sqrt(0.5))[places]
    return matrix


def products(x: np.ndarray, out: np.ndarray) -> None:
    """Writes the packed x x' of every column of x (d, n) into out (d (d + 1) / 2, n)."""
    low = 0
    for i in range(len(x)):
        high = low + len(x) - i
        np.multiply(x[i:], x[i], out=out[low:high])
        out[low + 1 : high] *= np.sqrt(2.0)
        low = high


def _normalised(matrices: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale = np.sqrt(np.maximum(moments, SMALLEST_MOMENT))
    return matrices / (scale[..., :, None] * scale[..., None, :]), scale


def positive_definite(matrices: np.ndarray, moments: np.ndarray) -> bool:
    """Whether all (..., d, d) are positive definite beyond rounding.

    moments: (..., d) second moments about the centre, from which the matrices were subtracted; they say how large
    rounding is. Measured after scaling by them: the smallest eigenvalue must exceed RELATIVE_FLOOR.
    """
    if not (np.isfinite(matrices).all() and np.isfinite(moments).all() and (moments > 0).all()):
        return False
    scaled, _ = _normalised(matrices, moments)
    try:
        np.linalg.cholesky(scaled - RELATIVE_FLOOR * np.eye(matrices.shape[-1]))
    except np.linalg.LinAlgError:
        return False
    return True


def floored(matrices: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """The matrices (..., d, d), with eigenvalues (after scaling by the moments) of at least 2 RELATIVE_FLOOR.

    Matrices that `positive_definite` accepts come back untouched.
    """
    if positive_definite(matrices, moments):
        return matrices
    scaled, scale = _normalised(matrices, moments)
    values, vectors = np.linalg.eigh(scaled)
    # a hundredth of an ulp of the largest eigenvalue would be lost again when the matrix is rebuilt
    floor = np.maximum(2 * RELATIVE_FLOOR, 1e-14 * np.abs(values).max(axis=-1, keepdims=True))
    rebuilt = (vectors * np.maximum(values, floor)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    rebuilt = (rebuilt + np.swapaxes(rebuilt, -1, -2)) / 2
    fine = np.asarray((values > RELATIVE_FLOOR).all(axis=-1))[..., None, None]
    return np.where(fine, matrices, rebuilt * (scale[..., :, None] * scale[..., None, :]))


def lacking(after: np.ndarray, before: np.ndarray, share: float) -> np.ndarray:
    """(..., d, d) the smallest matrices whose sums with `after` have no generalised eigenvalue below the share.

    Eigenvalues are relative to `before`, positive definite matrices (..., d, d). Zeros where nothing is lacking.
    """
    lower = np.linalg.cholesky(before)
    half = np.linalg.solve(lower, after)
    values, vectors = np.linalg.eigh(np.linalg.solve(lower, np.swapaxes(half, -1, -2)))
    directions = lower @ vectors
    return (directions * np.maximum(share - values, 0.0)[..., None, :]) @ np.swapaxes(directions, -1, -2)


def least_eigenvalue(after: np.ndarray, before: np.ndarray) -> float:
    """The smallest generalised eigenvalue of (after, before), positive definite matrices (..., d, d): how much less the
    variance is after than before, in the direction in which it shrinks the most. 1 if `before` is singular."""
    try:
        lower = np.linalg.cholesky(np.asarray(before, np.float64))
    except np.linalg.LinAlgError:
        return 1.0
    half = np.linalg.solve(lower, after)
    return float(np.linalg.eigvalsh(np.linalg.solve(lower, np.swapaxes(half, -1, -2))).min())


def check_finite_rows(y: Rows) -> None:
    """Raises PopulationError that names the first row and column (from 0) without a finite value."""
    refuse(y, lambda values: ~np.isfinite(values), "is not finite", "The model needs finite values.")


def check_seen_rows(y: Rows) -> None:
    """Raises PopulationError that names the first row (from 0) without any entry."""
    for rows in row_tiles(y.shape[0], ROWS_CHECKED):
        empty = np.isnan(np.asarray(y[rows])).all(axis=1)
        if empty.any():
            raise PopulationError(
                f"Row {rows.start + int(np.argmax(empty))} has no entry at all: every column is missing.",
                "Leave such rows out.",
            )


def refuse(y: Rows, bad: Callable[[np.ndarray], np.ndarray], why: str, remedy: str) -> None:
    """Raises PopulationError for the first (stored) entry that is bad. Its value is never in the message."""
    if is_sparse(y):
        found = bad(y.data)
        if found.any():
            at = int(np.argmax(found))
            row, column = int(np.searchsorted(y.indptr, at, "right")) - 1, int(y.indices[at])
            raise PopulationError(f"Row {row}, column {column} {why}.", remedy)
        return
    for rows in row_tiles(len(y), ROWS_CHECKED):
        found = bad(np.asarray(y[rows]))
        if found.any():
            row, column = (int(i) for i in np.unravel_index(np.argmax(found), found.shape))
            raise PopulationError(f"Row {rows.start + row}, column {column} {why}.", remedy)


def check_columns(y: Rows, columns: int) -> None:
    """Raises PopulationError unless y is (N, columns)."""
    if y.ndim != 2 or y.shape[1] != columns:
        raise PopulationError(f"The rows have shape {y.shape}; the model needs {columns} columns.")


def check_array(theta: Mapping[str, np.ndarray], name: str, shape: Sequence[int]) -> np.ndarray:
    """theta[name] as a float64 array of this shape. Raises ConfigError otherwise."""
    if name not in theta:
        raise ConfigError(f"the parameters lack {name!r}.", f"They hold {', '.join(map(repr, theta)) or 'nothing'}.")
    return check_shape(name, theta[name], shape)


def check_shape(name: str, array, shape: Sequence[int]) -> np.ndarray:
    """A float64 array of this shape. Raises ConfigError otherwise, or if it is not finite."""
    array = np.asarray(array, np.float64)
    if array.shape != tuple(shape):
        raise ConfigError(f"{name} has shape {array.shape}, expected {tuple(shape)}.")
    if not np.isfinite(array).all():
        raise ConfigError(f"{name} holds a value that is not finite.")
    return array


def check_positive_definite(name: str, matrices: np.ndarray) -> None:
    """Raises ConfigError unless all (..., d, d) are symmetric and positive definite."""
    diagonal = np.maximum(np.diagonal(matrices, axis1=-2, axis2=-1), 0.0)  # a tiny covariance may be all rounding
    allowed = 1e-9 * np.sqrt(diagonal[..., :, None] * diagonal[..., None, :])
    good = bool((np.abs(matrices - np.swapaxes(matrices, -1, -2)) <= allowed).all())
    try:
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        good = False
    if not good:
        raise ConfigError(f"{name} must be symmetric and positive definite.")


def penalty_matrix(lam: Any, d: int) -> np.ndarray:
    """Lam (d, d) from a number, a diagonal (d,) or a matrix. Raises ConfigError unless positive semi-definite."""
    lam = np.asarray(lam, np.float64)
    if lam.shape in ((), (d,)):
        lam = np.diag(np.broadcast_to(lam, (d,)))
    lam = check_shape("lam", lam, (d, d))
    if np.linalg.eigvalsh(lam)[0] < -1e-12 * max(1.0, float(np.abs(lam).max())):
        raise ConfigError("lam must be positive semi-definite.")
    return lam
