"""The methods without privacy: the mean (FedAvg), Algorithm 1 (start) and Algorithm 2 (clustering in KL).

Source: Setlur, Feldman, Talwar 2023, Lemma 2.1, Algorithms 1 and 2, with these corrections. Algorithm 1 takes the
minimum over the k - 1 centres that are already chosen. Algorithm 2 assigns to the centres it has just computed, and the
clusters that clients are given at the end belong to the centres that are returned. An empty cluster takes the row of
the client that the other centres serve worst, where the paper puts the uniform histogram.

    mean        one pass: F, the number of clients; the first row of Algorithm 1
    covariance  one pass: what the eigenvectors are taken of (reduction = "eigenvectors" only)
    start       K' - 1 passes of Algorithm 1 (start = "algorithm1" only)
    rounds      passes of Algorithm 2, until no centre moves or T are done
    reseed      one pass for each empty cluster

With a reduction (`fedcore.methods.histograms.reduction`) clients compare and add up reduced histograms. The centres in
the state are lifted ones all the same, (k, d), so that a run may end after any round.

The pass of the mean, the reduction and the starts also serve `fedcore.methods.histograms.ifca` and `.published`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.leaf import inverse_totals, scores, sums_by_cell
from fedcore.methods.histograms.private_start import START
from fedcore.methods.histograms.reduction import (
    check_matrix,
    kept_by_eigenvectors,
    kept_by_frequency,
    lift_log_likelihood,
    lifted,
    reduced,
    reduced_block,
    second_moment,
    tokens_kept,
    whitened_covariance,
)
from fedcore.methods.histograms.simplex import assignment_logs, metric, perturbed, smooth, ward_merge
from fedcore.methods.histograms.sizes import sizes_of
from fedcore.methods.histograms.state import HistogramsState
from fedcore.population.blocks import CountsBlock, segment_sums
from fedcore.randomness import client_uniforms, stream
from fedcore.rounds.method import PublicFacts, RoundInfo
from fedcore.rounds.statistics import ArgMax, FloatSum, Statistics

PICK = "histograms/algorithm1"


def _all_tokens() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class MeanMessage:
    """Asks for the mean; pick: and for a client drawn uniformly (the first row of Algorithm 1)."""

    pick: bool
    seed: int


@dataclass(frozen=True, slots=True)
class CovarianceMessage:
    """Asks for the sum of q q^T."""


@dataclass(frozen=True, slots=True)
class StartMessage:
    """Asks for a client drawn with weight exp(tau D_u) (Algorithm 1, line 5).

    rows: (j, d) float64 the rows chosen so far, reduced to the tokens `kept`. smoothing: e. temperature: tau.
    """

    rows: np.ndarray
    smoothing: float
    temperature: float
    seed: int
    kept: np.ndarray = field(default_factory=_all_tokens)


@dataclass(frozen=True, slots=True)
class AssignMessage:
    """Asks for the sums of the clusters. log_centres: (d, k) float32, ln of the smoothed centres; of reduced ones if
    `kept` is not empty, and then d stands for r + 1.
    """

    log_centres: np.ndarray
    kept: np.ndarray = field(default_factory=_all_tokens)


@dataclass(frozen=True, slots=True)
class WorstMessage:
    """Asks for the client with the largest min_k KL(q_u || P_k). log_centres and kept: as for the sums."""

    log_centres: np.ndarray
    kept: np.ndarray = field(default_factory=_all_tokens)


BaselineMessage = MeanMessage | CovarianceMessage | StartMessage | AssignMessage | WorstMessage


# --- clients --------------------------------------------------------------------------------------------------------


def client_update(message: BaselineMessage, block: CountsBlock) -> Statistics:
    """The leaf's float64 sums; clients without tokens take no part."""
    inverse = inverse_totals(block)
    filled = inverse > 0
    if isinstance(message, CovarianceMessage):
        return {"second_moment": FloatSum.at(block.leaf, second_moment(block))}
    if isinstance(message, StartMessage):
        distances = start_distances(reduced_block(block, message.kept), message.rows, message.smoothing)
        return {"pick": _pick(block, message.seed, len(message.rows), message.temperature * distances, filled)}
    if isinstance(message, WorstMessage):
        few = reduced_block(block, message.kept)
        fit = scores(few, message.log_centres).max(axis=1) * inverse
        misfit = np.where(filled, entropies(few) - fit, -np.inf)
        return {"worst": _arg_max(block, misfit)}
    if isinstance(message, MeanMessage):
        sums = sums_by_cell(block, np.zeros(block.clients, np.int64), 1, inverse)
        statistics = {
            "sums": FloatSum.at(block.leaf, sums),
            "clients": FloatSum.at(block.leaf, filled.sum()),
            "entropy": FloatSum.at(block.leaf, entropies(block).sum()),
        }
        if message.pick:
            statistics["pick"] = _pick(block, message.seed, 0, np.zeros(block.clients), filled)
        return statistics
    block = reduced_block(block, message.kept)
    k = message.log_centres.shape[1]
    fit = scores(block, message.log_centres)
    cells = fit.argmax(axis=1)
    best = fit[np.arange(block.clients), cells] * inverse
    return {
        "sums": FloatSum.at(block.leaf, sums_by_cell(block, cells, k, inverse)),
        "counts": FloatSum.at(block.leaf, np.bincount(cells[filled], minlength=k)),
        "log_likelihood": FloatSum.at(block.leaf, best.sum()),
    }


def entropies(block: CountsBlock) -> np.ndarray:
    """(C,) float64: sum_i q ln q of every client, nats; 0 without tokens."""
    counts = block.data.astype(np.float64)
    with np.errstate(divide="ignore"):
        logs = np.where(block.totals > 0, np.log(block.totals), 0.0)
    return segment_sums(counts * np.log(counts), block.indptr) * inverse_totals(block) - logs


def start_distances(block: CountsBlock, rows: np.ndarray, e: float) -> np.ndarray:
    """(C,) float64: D_u = min_j KL(p_j || smooth(q_u, e)) over the rows chosen so far, p_j = smooth(row_j, e).

    Sparse: ln smooth(q, e) = ln(e / Z) + log1p(q / e), Z = 1 + d e, and the first term is the same for every token.
    """
    p = smooth(rows, e)
    constants = np.sum(p * np.log(p), axis=1) - np.log(e / (1 + block.features * e))
    logs = block.csr.astype(np.float64)
    logs.data = np.log1p(block.data * np.repeat(inverse_totals(block) / e, np.diff(block.indptr)))
    return (constants - logs @ p.T).min(axis=1)


def _pick(block: CountsBlock, seed: int, k: int, weights: np.ndarray, filled: np.ndarray) -> ArgMax:
    """Gumbel-max: the client with the largest log-weight + Gumbel is a draw from the softmax of the log-weights."""
    uniforms = client_uniforms(seed, PICK, k, block.first, block.clients)[:, 0]
    return _arg_max(block, np.where(filled, weights - np.log(-np.log(uniforms)), -np.inf))


def _arg_max(block: CountsBlock, score: np.ndarray) -> ArgMax:
    client = int(score.argmax())
    row = np.zeros(block.features)
    entries = slice(block.indptr[client], block.indptr[client + 1])
    row[block.indices[entries]] = block.data[entries] * inverse_totals(block)[client]
    return ArgMax(float(score[client]), block.first + client, {"row": row})


# --- server ---------------------------------------------------------------------------------------------------------


def init(config: HistogramsConfig, public: PublicFacts) -> HistogramsState:
    sizes, d = sizes_of(config, public), public.features
    if config.reduction != "none":
        tokens_kept(config.keep, d)
    if config.reduction == "eigenvectors":
        check_matrix(d)
    uniform = np.full(d, 1.0 / d)
    return HistogramsState(
        phase="mean",
        round=0,
        seed=public.seed,
        rounds=sizes.rounds,
        clusters=sizes.clusters,
        overseed=sizes.overseed,
        merge_after=sizes.merge_after,
        perturbation=sizes.perturbation,
        multipliers=np.zeros(0),
        mean=uniform,
        mean_precision=0.0,
        metric=uniform,
        centres=uniform[None, :],
        counts=np.zeros(1),
        sums=np.zeros((0, d)),
        reseed=np.zeros(0, np.int64),
        entropy=0.0,
        clients=0.0,
    )


def total_rounds(config: HistogramsConfig, state: HistogramsState) -> int:
    """The passes of a run in which no cluster becomes empty."""
    return passes_before_rounds(config, state) + (0 if config.algorithm == "fedavg" else state.rounds)


def passes_before_rounds(config: HistogramsConfig, state: HistogramsState) -> int:
    """The mean, the covariance and the start."""
    return 1 + (config.reduction == "eigenvectors") + (state.overseed - 1 if _starts_from_rows(config) else 0)


def message(config: HistogramsConfig, state: HistogramsState) -> BaselineMessage | None:
    if state.phase == "done":
        return None
    if state.phase == "mean":
        return MeanMessage(_starts_from_rows(config), state.seed)
    if state.phase == "covariance":
        return CovarianceMessage()
    if state.phase == "start":
        rows = reduced(state.centres, state.kept)
        return StartMessage(rows, config.start_smoothing, config.temperature, state.seed, state.kept)
    centres = state.centres
    if state.phase == "reseed":
        centres = np.delete(centres, state.reseed, axis=0)
    kind = WorstMessage if state.phase == "reseed" else AssignMessage
    return kind(reduced_logs(config, state, centres), state.kept)


def reduced_logs(config: HistogramsConfig, state: HistogramsState, centres: np.ndarray) -> np.ndarray:
    """(d or r + 1, k) float32: ln of the smoothed, reduced centres, for the assignment."""
    return assignment_logs(reduced(centres, state.kept), config.assignment_smoothing)


def server_update(config: HistogramsConfig, state: HistogramsState, result: Mapping):
    """result: finished statistics of the pass. Returns the next state and its RoundInfo."""
    if state.phase == "mean":
        return _mean(config, state, result)
    if state.phase == "covariance":
        return _covariance(config, state, result)
    if state.phase == "start":
        return _start(config, state, result)
    if state.phase == "reseed":
        return _reseed(config, state, result)
    return _round(config, state, result)


def _starts_from_rows(config: HistogramsConfig) -> bool:
    return config.algorithm != "fedavg" and config.start == "algorithm1"


def _mean(config, state, result):
    clients = float(result["clients"])
    if clients == 0:
        raise PopulationError("no client of the population has any tokens.", "Check what was ingested.")
    mean = result["sums"][0] / clients
    w = metric(mean, config.metric_floor, config.effective_tokens)
    state = replace(state, mean=mean, metric=w, clients=clients, entropy=float(result["entropy"]))
    info = RoundInfo({"clients": clients, "entropy": -state.entropy / clients})
    if config.algorithm == "fedavg":
        state = replace(state, phase="done", round=1, centres=mean[None, :], counts=np.array([clients]))
        return state, info
    if _starts_from_rows(config):
        state = replace(state, centres=result["pick"].payload["row"][None, :])
    if config.reduction == "eigenvectors":
        return replace(state, phase="covariance"), info
    if config.reduction == "frequency":
        state = replace(state, kept=kept_by_frequency(mean, tokens_kept(config.keep, len(mean))))
    return _begin(config, state), info


def _covariance(config, state, result):
    matrix = whitened_covariance(result["second_moment"], state.mean, state.clients)
    keep = tokens_kept(config.keep, len(state.mean))
    kept = kept_by_eigenvectors(matrix, state.clusters - 1, keep)  # centred: K clusters differ in K - 1 directions
    info = RoundInfo({"kept_tokens": float(keep), "kept_mass": float(state.mean[kept].sum())})
    return _begin(config, replace(state, kept=kept)), info


def _begin(config, state):
    """The first centres; or the first row of Algorithm 1, which came with the mean."""
    if _starts_from_rows(config):
        return _with_rows(config, state, state.centres)
    around = state.mean if config.start == "perturbed_mean" else np.full(len(state.mean), 1.0 / len(state.mean))
    centres = perturbed(around, state.overseed, state.perturbation, stream(state.seed, START))
    centres = lifted(reduced(centres, state.kept), state.kept, state.mean)
    return replace(state, phase="rounds", centres=centres, counts=np.zeros(len(centres)))


def _start(config, state, result):
    rows = np.vstack([state.centres, result["pick"].payload["row"]])
    return _with_rows(config, state, rows), RoundInfo({"chosen": float(len(rows))})


def _with_rows(config, state, rows):
    if len(rows) < state.overseed:
        return replace(state, phase="start", centres=rows, counts=np.zeros(len(rows)))
    # a raw row has no mass on most tokens; smoothed as it was compared, it can win clients
    return replace(state, phase="rounds", centres=_usable_rows(config, state, rows), counts=np.zeros(len(rows)))


def _usable_rows(config, state, rows):
    return lifted(smooth(reduced(rows, state.kept), config.start_smoothing), state.kept, state.mean)


def _round(config, state, result):
    t = state.round + 1
    counts = np.asarray(result["counts"], np.float64)
    filled = counts > 0
    centres = state.centres.copy()
    centres[filled] = lifted(result["sums"][filled] / counts[filled, None], state.kept, state.mean)
    moved = 0.5 * np.abs(centres - state.centres).sum(axis=1)
    still = t > state.merge_after and not moved.any()
    info = RoundInfo(
        {
            "objective": objective(state, result),
            "movement": float(np.average(moved, weights=counts)),
            "empty_clusters": float(np.sum(~filled)),
        }
    )
    if t == state.merge_after:
        centres, counts = _merge(state, centres[filled], counts[filled])
    empty = np.flatnonzero(counts == 0)
    if still or t == state.rounds:
        phase = "done"  # an empty cluster keeps its centre: nobody was nearest to it
    else:
        phase = "reseed" if len(empty) else "rounds"
    return replace(state, phase=phase, round=t, centres=centres, counts=counts, reseed=empty), info


def objective(state: HistogramsState, result: Mapping) -> float:
    """Mean over the clients of min_k KL(q_u || P_k), nats, of the centres that the clients were given; lifted ones if
    the vocabulary is reduced.
    """
    value = (state.entropy - float(result["log_likelihood"])) / state.clients
    return value - lift_log_likelihood(state.kept, state.mean) if len(state.kept) else value


def _merge(state, centres, counts):
    """K' clusters to K by Ward cost; rows beyond the merged ones are empty clusters."""
    merged, new_counts = np.tile(state.mean, (state.clusters, 1)), np.zeros(state.clusters)
    for row, group in enumerate(ward_merge(centres, counts, state.metric, state.clusters)):
        merged[row], new_counts[row] = np.average(centres[group], axis=0, weights=counts[group]), counts[group].sum()
    return merged, new_counts


def _reseed(config, state, result):
    cell, waiting = int(state.reseed[0]), state.reseed[1:]
    centres = state.centres.copy()
    centres[cell] = _usable_rows(config, state, result["worst"].payload["row"][None, :])[0]
    phase = "reseed" if len(waiting) else "rounds"
    info = RoundInfo({"misfit": result["worst"].score, "cell": float(cell)})
    return replace(state, phase=phase, centres=centres, reseed=waiting), info
