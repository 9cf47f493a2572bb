"""The clients' side of the private pipeline: what one leaf of clients contributes to a release.

A client's contribution depends on the message and on its own counts, and on nothing else. It is a vector of whole
numbers whose norm is bounded exactly, in one cell; contributions add up in int64. docs/privacy/histograms.md argues
from these three facts, in this order.

Everything is vectorised over the clients and sparse: the cost is that of the stored entries. The kernels at the end
also serve the method `paper_histograms`.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

import numpy as np
import scipy

from fedcore.methods.histograms.reduction import reduce_block
from fedcore.methods.histograms.state import ReleaseMessage
from fedcore.population.blocks import CountsBlock, joined, segment_sums
from fedcore.privacy.grid import bound_norms, grid_step
from fedcore.rounds.statistics import IntegerSum, Statistics


def client_update(message: ReleaseMessage, block: CountsBlock) -> Statistics:
    """The leaf's exact sums on the grid under their planned names; no count that is not planned, and no objective."""
    block = reduce_block(joined(block) if message.one_whole else block, message.kept)
    cells = assign_in_float32(block, message.log_centres)
    return {message.release: IntegerSum(integer_sums_by_cell(block, cells, message.cells, _grid(message, block)))}


def _grid(message: ReleaseMessage, block: CountsBlock) -> np.ndarray:
    """(nnz,) whole numbers: what each entry adds to the client's cell. They follow from the client's counts and from
    whitening and clip of the message. Clustering rounds differ in their centres only, so what a client adds is made
    once, and kept beside the block where that is kept.
    """

    def made() -> np.ndarray:
        return clipped_on_grid(block, message.whitening, message.clip)

    if block.aside is None or message.cells == 1:  # a mean is asked for once
        return made()
    whitening, clip = np.ascontiguousarray(message.whitening), np.array([message.clip])
    name = blake2b(whitening.tobytes() + clip.tobytes()).hexdigest()
    return block.aside.get(name, block.low, block.low + len(block.data), made)


# --- contributions --------------------------------------------------------------------------------------------------


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


def assign_in_float32(block: CountsBlock, log_centres: np.ndarray) -> np.ndarray:
    """(C,) int64: `assign` in single precision, whatever the block's counts are stored in.

    A block stores double precision as soon as *one* of its clients has a huge count. Scores in that precision could
    send the other clients elsewhere, and then one client would change more than its own contribution.
    """
    if block.data.dtype != np.float32:
        block = replace(block, data=block.data.astype(np.float32))
    return assign(block, log_centres)


def integer_sums_by_cell(block: CountsBlock, cells: np.ndarray, k: int, grid: np.ndarray) -> np.ndarray:
    """(k, d) int64: sum over the clients of each cell of their grid values.

    grid: (nnz,) float64 or float32 whole numbers of at most 2**16 in size, so every partial sum stays a whole number
    below 2**53 for 2**37 clients in one leaf: float64 addition is exact here, in any order.
    """
    scatter = scipy.sparse.csc_matrix((k * block.features, block.clients), dtype=grid.dtype)
    scatter.data, scatter.indices, scatter.indptr = grid, cell_tokens(block, cells, k), block.indptr
    sums = scatter @ np.ones(block.clients)  # in float64: SciPy takes the wider of both
    return sums.astype(np.int64).reshape(k, block.features)


# --- kernels --------------------------------------------------------------------------------------------------------


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


def cell_tokens(block: CountsBlock, cells: np.ndarray, k: int) -> np.ndarray:
    """(nnz,) integers: cell * d + token of every stored entry. cells: (C,) of 0 .. k - 1."""
    if k == 1:
        return block.indices
    dtype = np.int32 if k * block.features < 2**31 else np.int64
    return np.repeat((cells * block.features).astype(dtype), np.diff(block.indptr)) + block.indices
