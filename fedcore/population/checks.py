"""What may be written into a population: the values that a writer accepts, in canonical form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from fedcore.errors import PopulationError

LARGEST_COUNT = 2**53  # whole numbers up to here are exact in float64

Rows = tuple["np.ndarray", "np.ndarray"]  # (ptr (C + 1,), x (N, D)): client i owns rows ptr[i] .. ptr[i + 1] - 1


def bytes_of(data: scipy.sparse.csr_matrix | Rows) -> np.ndarray:
    """(C,) decoded bytes of each client."""
    if isinstance(data, tuple):
        ptr, x = data
        return np.diff(ptr) * (x.dtype.itemsize * int(np.prod(x.shape[1:])))
    return np.diff(data.indptr).astype(np.int64) * 8


def rows_of(data: scipy.sparse.csr_matrix | Rows, start: int, stop: int) -> scipy.sparse.csr_matrix | Rows:
    """The data of clients start .. stop - 1."""
    if isinstance(data, tuple):
        ptr, x = data
        return ptr[start : stop + 1] - ptr[start], x[ptr[start] : ptr[stop]]
    return data[start:stop]


def checked_counts(matrix: scipy.sparse.spmatrix | Rows, clients: int, features: int) -> scipy.sparse.csr_matrix:
    """Counts as canonical int64 CSR (clients, features): sorted, no duplicates, no stored zeros.

    Raises PopulationError if they are no whole numbers from 0 to 2**53, or of another shape.
    """
    if isinstance(matrix, tuple) or not hasattr(matrix, "tocsr"):
        raise PopulationError(
            "Counts must come as a SciPy sparse matrix.", "Convert them with scipy.sparse.csr_matrix."
        )
    matrix = scipy.sparse.csr_matrix(matrix)
    if matrix.shape != (clients, features):
        raise PopulationError(f"The counts have shape {matrix.shape}, expected {(clients, features)}.")
    data = matrix.data
    if data.dtype.kind not in "iufb":
        raise PopulationError(f"Counts of type {data.dtype} are not numbers.")
    if len(data):
        low, high = data.min(), data.max()
        if not (low >= 0 and high <= LARGEST_COUNT) or (data.dtype.kind == "f" and (data != np.floor(data)).any()):
            raise PopulationError(
                "Counts must be whole numbers from 0 to 2**53.", "Look for negative, fractional or NaN values."
            )
    result = scipy.sparse.csr_matrix(
        (data.astype(np.int64), matrix.indices.copy(), matrix.indptr.copy()), shape=matrix.shape
    )
    result.sum_duplicates()
    result.eliminate_zeros()
    totals = np.asarray(result.sum(axis=1, dtype=np.float64))  # float64 cannot wrap around
    if result.nnz and totals.max() > LARGEST_COUNT:
        raise PopulationError(
            "The counts of a client add up to more than 2**53.", "Check the source; scale the counts down."
        )
    return result


def checked_rows(data: scipy.sparse.spmatrix | Rows, clients: int, features: int, dtype: str) -> Rows:
    """Rows as (ptr (C + 1,) int64, x (N, features) of this dtype). Raises PopulationError for any others."""
    if not isinstance(data, tuple) or len(data) != 2:
        raise PopulationError("Dense rows must come as (ptr, x).", "ptr has one more entry than there are clients.")
    ptr, x = np.asarray(data[0]).astype(np.int64), np.asarray(data[1])
    if ptr.shape != (clients + 1,) or ptr[0] != 0 or (np.diff(ptr) < 0).any() or ptr[-1] != len(x):
        raise PopulationError(
            "ptr must run from 0 to the number of rows, one step for each client, without going back."
        )
    if x.ndim != 2 or x.shape[1] != features or x.dtype.kind not in "iufb":
        raise PopulationError(f"The rows are {x.dtype}{x.shape}, expected numbers of shape (rows, {features}).")
    with np.errstate(over="ignore"):
        x = x.astype(dtype, copy=False)
    if np.isinf(x).any():
        raise PopulationError(
            "A row holds an infinite value (or one too large for the dtype).", "Use NaN for missing values."
        )
    return ptr, x


def checked_vocabulary(tokens: Sequence[str], features: int) -> tuple[str, ...]:
    """The tokens, one for each feature, distinct, none empty or of several lines. Raises PopulationError otherwise."""
    tokens = tuple(str(token) for token in tokens)
    if len(tokens) != features:
        raise PopulationError(f"The vocabulary has {len(tokens)} tokens for {features} features.")
    if len(set(tokens)) != len(tokens) or any(not token or "\n" in token or "\r" in token for token in tokens):
        raise PopulationError(
            "The vocabulary holds a token twice, an empty token, or a line break.", "Write one token a line."
        )
    return tokens
