"""Projection on noised principal directions (Algorithm 3, step 5).

The noise is that of Analyze Gauss (Dwork, Talwar, Thakurta, Zhang 2014): it is added to the second moment.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.private_gmm.integer_rows import BASIS_BITS
from fedcore.methods.private_gmm.sensitivities import DIAGONAL


def second_moment(triangle: np.ndarray, d: int) -> np.ndarray:
    """(d, d) symmetric, in squared steps. triangle: (d (d + 1) / 2,) published, its diagonal scaled."""
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = triangle
    matrix += np.triu(matrix, 1).T
    matrix[np.diag_indices(d)] *= DIAGONAL[1] / DIAGONAL[0]
    return matrix


def triangle_of(matrix: np.ndarray) -> np.ndarray:
    """(d (d + 1) / 2,) as a second moment is released: the inverse of `second_moment`."""
    scaled = matrix.copy()
    scaled[np.diag_indices(len(matrix))] *= DIAGONAL[0] / DIAGONAL[1]
    return scaled[np.triu_indices(len(matrix))]


def basis_of(triangle: np.ndarray, d: int, q: int) -> np.ndarray:
    """(d, q) whole numbers in steps of 2**-14: the leading eigenvectors of a published second moment."""
    vectors = np.linalg.eigh(second_moment(triangle, d))[1]
    return np.rint(vectors[:, ::-1][:, :q] * 2.0**BASIS_BITS)


def basis_through(points: np.ndarray, q: int) -> np.ndarray:
    """(d, q) whole numbers in steps of 2**-14: orthonormal directions in which k <= q + 1 points lie apart; zeros."""
    vectors = np.linalg.qr((points[1:] - points[0]).T)[0]
    basis = np.zeros((points.shape[1], q))
    basis[:, : vectors.shape[1]] = np.rint(vectors * 2.0**BASIS_BITS)
    return basis


def whole_space(d: int) -> np.ndarray:
    """(d, d) the identity, where there is nothing to project."""
    return np.eye(d) * 2.0**BASIS_BITS
