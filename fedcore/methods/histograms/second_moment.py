"""The second moment of clipped histograms as a private release, and the tokens that are chosen from it.

Source: Dwork, Talwar, Thakurta, Zhang 2014 ("Analyze Gauss"), on whole numbers. A client's clipped, whitened histogram
becomes z, whole numbers with ||z|| <= 2**10 exactly, and contributes the upper triangle of z z^T: z_i z_j above the
diagonal and floor(z_i**2 c) on it, c = 46340 / 65536 <= 1 / sqrt(2). So

    sum of squares <= sum_{i<j} z_i**2 z_j**2 + sum_i z_i**4 / 2 = ||z||**4 / 2 <= 2**39,

argued in docs/privacy/histograms.md. With the diagonal scaled back, the noise of the symmetric matrix is that of the
Gaussian orthogonal ensemble, whose spectral norm is known.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg

from fedcore.errors import ConfigError
from fedcore.methods.histograms.reduction import kept_by_eigenvectors, kept_by_frequency
from fedcore.methods.histograms.sensitivities import MOMENT_NORM
from fedcore.population.blocks import CountsBlock
from fedcore.privacy.grid import GRID_NORM

LARGEST = 2048  # features: the release has d (d + 1) / 2 numbers, each noised exactly
DIAGONAL, DIAGONAL_UNIT = 46340, 65536  # their ratio is just below 1 / sqrt(2)
CLIENTS_AT_ONCE = 1024  # bounds the dense part of a leaf


def triangle_size(features: int) -> int:
    """d (d + 1) / 2. Raises ConfigError for a vocabulary that is too large."""
    if features > LARGEST:
        raise ConfigError(
            f"a vocabulary of {features} tokens is too large for noised second moments: they are "
            f"{features * (features + 1) // 2} numbers; the limit is {LARGEST} tokens.",
            'Choose reduction = "frequency", or ingest with a smaller vocabulary.',
        )
    return features * (features + 1) // 2


# --- clients --------------------------------------------------------------------------------------------------------


def moment_on_grid(block: CountsBlock, grid: np.ndarray) -> np.ndarray:
    """(d (d + 1) / 2,) int64: the clients' triangles added up, row by row of the upper triangle.

    grid: (nnz,) float64 whole numbers >= 0, of norm at most 2**16 for every client; cut to norm 2**10 here. Dense and
    exact: every product and partial sum is a whole number below 2**53 for 2**33 clients in one leaf.
    """
    d = block.features
    z = np.floor(grid / (GRID_NORM // MOMENT_NORM))
    products = np.zeros((d, d))
    rows = block.rows_of_entries()
    for start in range(0, block.clients, CLIENTS_AT_ONCE):
        stop = min(start + CLIENTS_AT_ONCE, block.clients)
        entries = slice(block.indptr[start], block.indptr[stop])
        dense = np.zeros((stop - start, d))
        dense[rows[entries] - start, block.indices[entries]] = z[entries]
        products += dense.T @ dense
    diagonal = np.bincount(block.indices, weights=np.floor(z * z * DIAGONAL / DIAGONAL_UNIT), minlength=d)
    np.fill_diagonal(products, diagonal)
    return products[_upper(d)].astype(np.int64)


def _upper(d: int) -> np.ndarray:
    """(d, d) bool: the upper triangle with the diagonal."""
    return np.triu(np.ones((d, d), bool))


# --- server ---------------------------------------------------------------------------------------------------------


def covariance(published: np.ndarray, w: np.ndarray, mean: np.ndarray, clip: float) -> np.ndarray:
    """(d, d) symmetric: sum over the clients of s**2 (q - F)(q - F)^T / sqrt(w w^T), noised. s: their clip factors.

    published: (d (d + 1) / 2,) int64, as noised. w: (d,) metric of the release. mean: (d,) F. Every client's y = s q /
    sqrt(w) is centred by y - (y . sqrt(w)) F / sqrt(w), which is linear in y, so the sum of products can be centred
    afterwards; nothing but F is subtracted, and F is released.
    """
    d, step = len(mean), clip / MOMENT_NORM
    matrix = np.zeros((d, d))
    matrix[_upper(d)] = published * step**2
    matrix += np.triu(matrix, 1).T
    matrix[np.diag_indices(d)] *= DIAGONAL_UNIT / DIAGONAL
    towards, direction = np.sqrt(w), mean / np.sqrt(w)
    moved = matrix @ towards
    total = towards @ moved
    cross = np.outer(direction, moved)
    return matrix - cross - cross.T + total * np.outer(direction, direction)


def noise_norm(scale: float, clip: float, features: int) -> float:
    """About the largest eigenvalue of the noise alone: 2 sqrt(d) times its standard deviation off the diagonal.

    scale: standard deviation of the noise in grid steps.
    """
    return 2 * math.sqrt(features) * scale * (clip / MOMENT_NORM) ** 2


def choose_tokens(
    matrix: np.ndarray, mean: np.ndarray, largest_noise: float, rank: int, keep: int
) -> tuple[np.ndarray, int]:
    """((keep,) int64 ascending tokens, number of eigenvectors that chose them).

    Of the `rank` leading eigenvectors those count whose eigenvalue stands above the noise. If none does, the most
    frequent tokens are kept, and the number is 0: eigenvectors of noise would choose at random.
    """
    d = len(matrix)
    rank = min(max(rank, 1), d)
    leading = scipy.linalg.eigh(matrix, eigvals_only=True, subset_by_index=[d - rank, d - 1])
    clear = int(np.sum(leading > largest_noise))
    return (kept_by_eigenvectors(matrix, clear, keep) if clear else kept_by_frequency(mean, keep)), clear
