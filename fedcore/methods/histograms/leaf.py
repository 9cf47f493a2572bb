"""What one leaf of clients computes: scores, sums by cell, and clipped histograms on an integer grid.

Vectorised over the clients and sparse throughout: the cost is that of the stored entries. No function here knows
whether its result is noised; those whose result is (`clipped_on_grid`) bound one client's part exactly.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from fedcore.population.blocks import CountsBlock, segment_sums
from fedcore.privacy.grid import bound_norms, grid_step


def inverse_totals(block: CountsBlock) -> np.ndarray:
    """(C,) float64: 1 / m_u, and 0 for a client without tokens."""
    with np.errstate(divide="ignore"):
        return np.where(block.totals > 0, 1.0 / block.totals, 0.0)


def scores(block: CountsBlock, log_centres: np.ndarray) -> np.ndarray:
    """(C, k): x_u . ln P_k, that is m_u times the log-likelihood of a token. log_centres: (d, k) float32."""
    return block.csr @ log_centres


def assign(block: CountsBlock, log_centres: np.ndarray) -> np.ndarray:
    """(C,) int64: the cell with the least KL(q_u || P_k); ties, and clients without tokens, go to the lowest cell."""
    if log_centres.shape[1] == 1:
        return np.zeros(block.clients, np.int64)
    return scores(block, log_centres).argmax(axis=1)


def _keys(block: CountsBlock, cells: np.ndarray, k: int) -> np.ndarray:
    """(nnz,): cell * d + token of every entry."""
    if k == 1:
        return block.indices
    dtype = np.int32 if k * block.features < 2**31 else np.int64
    return np.repeat((cells * block.features).astype(dtype), np.diff(block.indptr)) + block.indices


def sums_by_cell(block: CountsBlock, cells: np.ndarray, k: int, factors: np.ndarray) -> np.ndarray:
    """(k, d) float64: sum over the clients of each cell of factors[u] * x_u, added client after client."""
    scatter = sp.csc_matrix((k * block.features, block.clients), dtype=block.data.dtype)
    scatter.data, scatter.indices, scatter.indptr = block.data, _keys(block, cells, k), block.indptr
    return (scatter @ factors).reshape(k, block.features)


def integer_sums_by_cell(block: CountsBlock, cells: np.ndarray, k: int, grid: np.ndarray) -> np.ndarray:
    """(k, d) int64: sum over the clients of each cell of their grid values.

    grid: (nnz,) float64 whole numbers of at most 2**16 in size, so every partial sum stays a whole number below 2**53
    for 2**37 clients in one leaf: float64 addition is exact here, and needs no second copy of the entries.
    """
    sums = np.bincount(_keys(block, cells, k), weights=grid, minlength=k * block.features)
    return sums.astype(np.int64).reshape(k, block.features)


def clipped_on_grid(block: CountsBlock, whitening: np.ndarray, clip: float) -> np.ndarray:
    """Every client's whitened, clipped histogram in grid steps, truncated towards zero.

    whitening: (d,) float64, 1/sqrt(w). Returns (nnz,) float64 of whole numbers z with, for every client,
    sum z**2 <= 2**32 exactly: y_u = q_u * whitening, s_u = min(1, clip / ||y_u||), z_u = trunc(s_u y_u / step).

    The bound is checked on the whole numbers, not on the floats they came from: float64 arithmetic on whole numbers
    below 2**53 is exact. A client whose floats cannot be clipped (overflow) contributes nothing.
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        whitened = whitening[block.indices.astype(np.intp)]
        whitened *= block.data
        squares = segment_sums(whitened * whitened, block.indptr)
        usable = np.isfinite(squares) & (block.totals > 0)
        factors = np.where(usable, np.minimum(1.0 / block.totals, clip / np.sqrt(squares)) / grid_step(clip), 0.0)
        lengths = np.diff(block.indptr)
        whitened *= np.repeat(factors, lengths)
    if not usable.all():
        whitened[np.repeat(~usable, lengths)] = 0.0  # 0 * inf is not 0
    grid = np.trunc(whitened, out=whitened)
    return bound_norms(grid, block.indptr)


def clipped_deviations_by_cell(block: CountsBlock, cells: np.ndarray, first: np.ndarray, bound: float) -> np.ndarray:
    """(k, d) float64: sum over the clients of each cell of clip((q_u - b1) / sqrt(b1)), every coordinate to +-bound.

    first: (k, d) b1, positive. Clients without tokens take no part. Sparse: a token that a client lacks contributes
    z = clip(-sqrt(b1)) whoever the client is, so a cell's sum is its number of clients times z, and the stored entries
    add what they differ from z by.
    """
    k, d = first.shape
    roots = np.sqrt(first)
    absent = np.maximum(-roots, -bound)
    keys = _keys(block, cells, k)
    b, root = first.ravel()[keys], roots.ravel()[keys]
    q = block.data * np.repeat(inverse_totals(block), np.diff(block.indptr))
    differences = np.clip((q - b) / root, -bound, bound) - absent.ravel()[keys]
    sums = np.bincount(keys, weights=differences, minlength=k * d).reshape(k, d)
    counts = np.bincount(cells[block.totals > 0], minlength=k)
    return sums + counts[:, None] * absent
