"""Fewer tokens: some are kept, all others share one bucket called "other" (DimRed).

Source: Setlur, Feldman, Talwar 2023, section 3 and appendix C, with these corrections. A token is eliminated if it is
small in *all* leading eigenvectors; after centring the signal of K clusters has rank K - 1; and the eliminated tokens
stay in the problem as one bucket, because a histogram without them is none.

    F = mean,  V_u = diag(F)**-1/2 (q_u - F),  M = (1/n) sum V_u V_u^T

Centres of the reduced problem are lifted: the kept tokens from the centre, the eliminated ones share the centre's mass
of "other" in proportion to F. Assigning clients by lifted centres is assigning them by reduced ones, because the parts
that the lift adds to the logarithms are the same for all centres.

Nothing here adds noise. A choice of tokens is as private as the mean or the matrix that it is made from. An empty
`kept` stands for the whole vocabulary: then `reduce_block`, `reduce_rows` and `lift` return their argument unchanged.
"""

from __future__ import annotations

import numpy as np
import scipy

from fedcore.errors import ConfigError
from fedcore.population.blocks import FLOAT32_EXACT, CountsBlock, segment_sums

DIGITS = 12  # of an eigenvector's entries that count; what is equal up to rounding is a tie


# --- blocks ---------------------------------------------------------------------------------------------------------


def reduce_block(block: CountsBlock, kept: np.ndarray) -> CountsBlock:
    """The same clients with r + 1 tokens: the kept ones in their order, then "other", the sum of all others.

    kept: (r,) int64, strictly ascending. Totals stay as they are; a held-out part is reduced in the same way.
    Vectorised over the stored entries. Raises ValueError if kept is not ascending or leaves the vocabulary.
    """
    r = len(kept)
    if r == 0:
        return block
    _check_kept(kept, block.features)
    position = np.full(block.features, r, np.int32)
    position[kept] = np.arange(r, dtype=np.int32)
    indices = position[block.indices]
    staying = indices < r
    rows = block.rows_of_entries()
    others = segment_sums(np.where(staying, 0, block.data), block.indptr, np.float64)
    with_other = others > 0
    lengths = np.bincount(rows[staying], minlength=block.clients) + with_other
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(block.indptr.dtype)
    # kept entries move up behind one place for each earlier client that has an "other", which comes last of its own
    places = np.arange(staying.sum()) + (np.cumsum(with_other) - with_other)[rows[staying]]
    too_large = others.max(initial=0.0) >= FLOAT32_EXACT
    data = np.empty(indptr[-1], np.float64 if too_large else block.data.dtype)
    tokens = np.full(indptr[-1], r, np.int32)
    tokens[places], data[places] = indices[staying], block.data[staying]
    data[indptr[1:][with_other] - 1] = others[with_other]
    heldout = None if block.heldout is None else reduce_block(block.heldout, kept)
    return CountsBlock(block.first, block.leaf, indptr, tokens, data, block.totals, r + 1, heldout)


# --- histograms -----------------------------------------------------------------------------------------------------


def reduce_rows(p: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """(k, d) -> (k, r + 1) float64: the kept tokens, then the sum of the others. kept: (r,) int64 ascending."""
    if len(kept) == 0:
        return p
    _check_kept(kept, p.shape[1])
    return np.column_stack([p[:, kept], np.delete(p, kept, axis=1).sum(axis=1)])


def lift(centres: np.ndarray, kept: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """(k, r + 1) -> (k, d): the eliminated tokens share a centre's "other" in proportion to the mean F.

    mean: (d,). If F gives the eliminated tokens no mass at all, they share it equally. Rows keep their sums.
    """
    if len(kept) == 0:
        return centres
    _check_kept(kept, len(mean))
    eliminated = np.delete(np.arange(len(mean)), kept)
    shares = mean[eliminated]
    total = shares.sum()
    shares = shares / total if total > 0 else np.full(len(eliminated), 1.0 / max(len(eliminated), 1))
    lifted = np.empty((len(centres), len(mean)))
    lifted[:, kept] = centres[:, :-1]
    lifted[:, eliminated] = centres[:, -1:] * shares
    return lifted


def lift_log_likelihood(kept: np.ndarray, mean: np.ndarray) -> float:
    """Nats that the lift adds to the mean over clients of sum q ln P, whatever the centres; 0 if nothing is eliminated.

    It is the sum of F ln(share) over the eliminated tokens, shares as in `lift`, for the F of the same clients.
    """
    if len(kept) == 0:
        return 0.0
    eliminated = np.delete(mean, kept)
    eliminated = eliminated[eliminated > 0]
    return float(np.sum(eliminated * np.log(eliminated / eliminated.sum())))


def _check_kept(kept: np.ndarray, features: int) -> None:
    if kept.ndim != 1 or kept[0] < 0 or kept[-1] >= features or np.any(np.diff(kept) <= 0):
        raise ValueError(f"kept tokens must ascend strictly within 0 .. {features - 1}")


# --- which tokens ---------------------------------------------------------------------------------------------------


def tokens_kept(keep: int | None, features: int) -> int:
    """Number of tokens to keep; None: two fifths of the vocabulary. Raises ConfigError unless some are eliminated."""
    number = max(1, 2 * features // 5) if keep is None else keep
    if number >= features:
        raise ConfigError(
            f"{number} tokens cannot be kept of a vocabulary of {features}: some must be eliminated.",
            'Lower keep, or set reduction = "none".',
        )
    return number


def kept_by_eigenvectors(matrix: np.ndarray, rank: int, keep: int) -> np.ndarray:
    """(keep,) int64 ascending: tokens with the largest entry, in absolute value, over the `rank` leading eigenvectors.

    matrix: (d, d) symmetric, M. Entries that agree to 12 decimals tie, and a tie goes to the lower token; so exactly
    `keep` tokens are kept, where a threshold would keep any number.
    """
    d = len(matrix)
    rank = min(max(rank, 1), d)
    symmetric = 0.5 * (matrix + matrix.T)
    vectors = scipy.linalg.eigh(symmetric, subset_by_index=[d - rank, d - 1])[1]
    return _largest(np.round(np.abs(vectors).max(axis=1), DIGITS), keep)


def kept_by_frequency(mean: np.ndarray, keep: int) -> np.ndarray:
    """(keep,) int64 ascending: the tokens with the largest mass in the mean (d,); a tie goes to the lower token."""
    return _largest(mean, keep)


def _largest(scores: np.ndarray, keep: int) -> np.ndarray:
    return np.sort(np.argsort(-scores, kind="stable")[:keep]).astype(np.int64)
