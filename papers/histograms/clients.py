"""What the server of `paper_histograms` asks, one frozen dataclass for each kind of question, and what clients answer.

Answers are float64 sums of one leaf. Clients without tokens take no part. Vectorised over the clients and sparse, like
`fedcore.methods.histograms.clients`; log_centres and kept are as in `fedcore.methods.histograms.state`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp

from fedcore.methods.histograms.clients import assign, cell_tokens, inverse_totals, scores
from fedcore.methods.histograms.reduction import reduce_block
from fedcore.methods.histograms.simplex import smooth
from fedcore.methods.histograms.state import all_tokens
from fedcore.population.blocks import CountsBlock, segment_sums
from fedcore.randomness import client_uniforms
from fedcore.rounds.statistics import ArgMax, FloatSum, Statistics


@dataclass(frozen=True, slots=True)
class MeanMessage:
    """Asks for the sum of the clients' histograms.

    with_first_row: asks also for a client drawn uniformly, whose row is the first centre of Algorithm 1 (line 1)
    """

    with_first_row: bool
    seed: int


@dataclass(frozen=True, slots=True)
class CovarianceMessage:
    """Asks for the sum of q q^T."""


@dataclass(frozen=True, slots=True)
class SeedingMessage:
    """Asks for a client drawn with weight exp(tau D_u) (Algorithm 1, line 5).

    rows: (j, d) float64, the rows chosen so far. smoothing: e. temperature: tau.
    """

    rows: np.ndarray
    smoothing: float
    temperature: float
    seed: int
    kept: np.ndarray = field(default_factory=all_tokens)


@dataclass(frozen=True, slots=True)
class AssignMessage:
    """Asks for the sums of the clusters."""

    log_centres: np.ndarray
    kept: np.ndarray = field(default_factory=all_tokens)


@dataclass(frozen=True, slots=True)
class WorstFitMessage:
    """Asks for the client with the largest min_k KL(q_u || P_k)."""

    log_centres: np.ndarray
    kept: np.ndarray = field(default_factory=all_tokens)


@dataclass(frozen=True, slots=True)
class CentringMessage:
    """Asks for the clusters' sums of clipped deviations from b1 (Algorithm 3, line 5).

    first: (k, d) float64, b1. bound: c / sqrt(d), of every coordinate.
    """

    log_centres: np.ndarray
    first: np.ndarray
    bound: float
    kept: np.ndarray = field(default_factory=all_tokens)


PaperMessage = MeanMessage | CovarianceMessage | SeedingMessage | AssignMessage | WorstFitMessage | CentringMessage


# --- answers ----------------------------------------------------------------------------------------------------------


DRAWS = "histograms/algorithm1"


def client_update(message: PaperMessage, block: CountsBlock) -> Statistics:
    """The leaf's answer to any message."""
    match message:
        case MeanMessage():
            return _mean(message, block)
        case CovarianceMessage():
            return {"second_moment": FloatSum.at(block.leaf, second_moment(block))}
        case SeedingMessage():
            distances = seeding_distances(reduce_block(block, message.kept), message.rows, message.smoothing)
            return {"pick": _draw_client(block, message.seed, len(message.rows), message.temperature * distances)}
        case AssignMessage():
            return _cluster_sums(message, reduce_block(block, message.kept))
        case WorstFitMessage():
            return {"worst": _worst_fit(message, block)}
        case CentringMessage():
            block = reduce_block(block, message.kept)
            cells = assign(block, message.log_centres)
            sums = clipped_deviations_by_cell(block, cells, message.first, message.bound)
            return {"deviations": FloatSum.at(block.leaf, sums)}


# --- the mean and the covariance ------------------------------------------------------------------------------------


def _mean(message: MeanMessage, block: CountsBlock) -> Statistics:
    inverse = inverse_totals(block)
    sums = sums_by_cell(block, np.zeros(block.clients, np.int64), 1, inverse)
    statistics = {
        "sums": FloatSum.at(block.leaf, sums),
        "clients": FloatSum.at(block.leaf, np.sum(block.totals > 0)),
        "entropy": FloatSum.at(block.leaf, entropies(block).sum()),
    }
    if not message.with_first_row:
        return statistics
    return {**statistics, "pick": _draw_client(block, message.seed, 0, np.zeros(block.clients))}


def entropies(block: CountsBlock) -> np.ndarray:
    """(C,) float64: sum_i q ln q of every client, nats; 0 without tokens."""
    counts = block.data.astype(np.float64)
    with np.errstate(divide="ignore"):
        logs = np.where(block.totals > 0, np.log(block.totals), 0.0)
    return segment_sums(counts * np.log(counts), block.indptr) * inverse_totals(block) - logs


def second_moment(block: CountsBlock) -> np.ndarray:
    """(d, d) float64: sum over the clients of q_u q_u^T; symmetric."""
    q = block.csr.astype(np.float64)
    q.data *= np.repeat(inverse_totals(block), np.diff(block.indptr))
    return (q.T @ q).toarray()


# --- Algorithm 1 ----------------------------------------------------------------------------------------------------


def seeding_distances(block: CountsBlock, rows: np.ndarray, e: float) -> np.ndarray:
    """(C,) float64: D_u = min_j KL(p_j || smooth(q_u, e)) over the rows chosen so far, p_j = smooth(row_j, e).

    Sparse: ln smooth(q, e) = ln(e / Z) + log1p(q / e), Z = 1 + d e, and the first term is the same for every token.
    """
    p = smooth(rows, e)
    constants = np.sum(p * np.log(p), axis=1) - np.log(e / (1 + block.features * e))
    logs = block.csr.astype(np.float64)
    logs.data = np.log1p(block.data * np.repeat(inverse_totals(block) / e, np.diff(block.indptr)))
    return (constants - logs @ p.T).min(axis=1)


def _draw_client(block: CountsBlock, seed: int, k: int, log_weights: np.ndarray) -> ArgMax:
    """Gumbel-max: the client with the largest log-weight + Gumbel is a draw from the softmax of the log-weights."""
    uniforms = client_uniforms(seed, DRAWS, k, block.first, block.clients)[:, 0]
    return _arg_max(block, np.where(block.totals > 0, log_weights - np.log(-np.log(uniforms)), -np.inf))


def _arg_max(block: CountsBlock, score: np.ndarray) -> ArgMax:
    """The client with the largest score, and its histogram over the block's tokens."""
    client = int(score.argmax())
    row = np.zeros(block.features)
    entries = slice(block.indptr[client], block.indptr[client + 1])
    row[block.indices[entries]] = block.data[entries] * inverse_totals(block)[client]
    return ArgMax(float(score[client]), block.first + client, {"row": row})


# --- clusters -------------------------------------------------------------------------------------------------------


def _cluster_sums(message: AssignMessage, block: CountsBlock) -> Statistics:
    inverse, k = inverse_totals(block), message.log_centres.shape[1]
    fit = scores(block, message.log_centres)
    cells = fit.argmax(axis=1)
    best = fit[np.arange(block.clients), cells] * inverse
    return {
        "sums": FloatSum.at(block.leaf, sums_by_cell(block, cells, k, inverse)),
        "counts": FloatSum.at(block.leaf, np.bincount(cells[block.totals > 0], minlength=k)),
        "log_likelihood": FloatSum.at(block.leaf, best.sum()),
    }


def sums_by_cell(block: CountsBlock, cells: np.ndarray, k: int, factors: np.ndarray) -> np.ndarray:
    """(k, d) float64: sum over the clients of each cell of factors[u] * x_u, added client after client."""
    scatter = sp.csc_matrix((k * block.features, block.clients), dtype=block.data.dtype)
    scatter.data, scatter.indices, scatter.indptr = block.data, cell_tokens(block, cells, k), block.indptr
    return (scatter @ factors).reshape(k, block.features)


def _worst_fit(message: WorstFitMessage, block: CountsBlock) -> ArgMax:
    """Found by the reduced histograms; its row is that of all tokens."""
    few = reduce_block(block, message.kept)
    fit = scores(few, message.log_centres).max(axis=1) * inverse_totals(block)
    return _arg_max(block, np.where(block.totals > 0, entropies(few) - fit, -np.inf))


def clipped_deviations_by_cell(block: CountsBlock, cells: np.ndarray, first: np.ndarray, bound: float) -> np.ndarray:
    """(k, d) float64: sum over the clients of each cell of clip((q_u - b1) / sqrt(b1)), every coordinate to +-bound.

    first: (k, d) b1, positive. Clients without tokens take no part. Sparse: a token that a client lacks contributes
    z = clip(-sqrt(b1)) whoever the client is, so a cell's sum is its number of clients times z, and the stored entries
    add what they differ from z by.
    """
    k, d = first.shape
    roots = np.sqrt(first)
    absent = np.maximum(-roots, -bound)
    entries = cell_tokens(block, cells, k)
    b, root = first.ravel()[entries], roots.ravel()[entries]
    q = block.data * np.repeat(inverse_totals(block), np.diff(block.indptr))
    differences = np.clip((q - b) / root, -bound, bound) - absent.ravel()[entries]
    sums = np.bincount(entries, weights=differences, minlength=k * d).reshape(k, d)
    counts = np.bincount(cells[block.totals > 0], minlength=k)
    return sums + counts[:, None] * absent
