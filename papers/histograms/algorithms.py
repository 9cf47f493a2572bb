"""The algorithms of the paper without privacy, from the mean to the last round.

    mean        F and the number of clients; the first row of Algorithm 1. FedAvg (Lemma 2.1) ends here: one histogram
                for everybody, and every client with tokens counts once
    covariance  what the eigenvectors of DimRed are taken of (reduction = "eigenvectors" only)
    start       K' - 1 passes of Algorithm 1 (start = "algorithm1" only)
    given       the mean, if the run has a warm start; in place of the three above
    rounds      passes of Algorithm 2, until no centre moves or T are done; K' clusters are merged to K after T1
    reseed      one pass for each empty cluster

Source: Setlur, Feldman, Talwar 2023, with these corrections. Algorithm 1 takes the minimum over the k - 1 centres that
are already chosen. In Algorithm 2 clients are assigned to the centres that have just been computed, and the clusters
that they are in at the end belong to the centres that are returned. An empty cluster takes the row of the client that
the other centres serve worst, where the paper puts the uniform histogram.

IFCA (Ghosh, Chung, Yin, Ramchandran 2020, as used in section 4) takes a gradient step where Algorithm 2 takes the mean:

    P_k <- P_k + eta (1/n) sum over u in cluster k of (q_u - P_k)

The sum over a cluster is divided by the number of *all* clients, so a centre moves by eta times its cluster's share of
them: one tenth as fast with ten clusters as "a step of eta" sounds. A step of ours ends at the cluster's mean at the
latest. A cluster with more than 1/eta of the clients would step past it, and one with more than 2/eta of them farther
away at every round; after a uniform start such clusters are common.

With a reduction (`fedcore.methods.histograms.reduction`) clients compare and add up reduced histograms. The centres in
the state are lifted ones all the same, (k, d), so that a run may end after any round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from fedcore.papers.histograms.clients import (
    AssignMessage,
    CovarianceMessage,
    MeanMessage,
    PaperMessage,
    SeedingMessage,
    WorstFitMessage,
)
from fedcore.papers.histograms.config import (
    ASSIGNMENT_SMOOTHING,
    EFFECTIVE_TOKENS,
    IFCA,
    METRIC_FLOOR,
    START_SMOOTHING,
    Algorithm2,
    Clusters,
    FedAvg,
)

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.histograms.config import DEFAULT_CLUSTERS, scaled
from fedcore.methods.histograms.reduction import (
    kept_by_eigenvectors,
    kept_by_frequency,
    lift,
    lift_log_likelihood,
    reduce_rows,
    tokens_kept,
)
from fedcore.methods.histograms.simplex import assignment_logs, metric, smooth, total_variation, ward_merge
from fedcore.methods.histograms.sizes import SMALL_PERTURBATION, Sizes, with_merge
from fedcore.methods.histograms.start import filled_up, perturbed_start
from fedcore.methods.histograms.state import HistogramsState, Step, initial_state
from fedcore.rounds.method import PublicFacts, RoundInfo

# --- before the rounds ------------------------------------------------------------------------------------------------


LARGEST_MATRIX = 4096  # features


def init_before(config: Clusters, public: PublicFacts) -> HistogramsState:
    """The state before the pass of the mean. Raises ConfigError if the vocabulary cannot be reduced as asked for."""
    if config.reduction != "none":
        tokens_kept(config.keep, public.features)
    if config.reduction == "eigenvectors":
        check_matrix(public.features)
    return initial_state("mean", sizes_of(config, public), public)


def sizes_of(config: Clusters, public: PublicFacts) -> Sizes:
    """The sizes of a run. The centres of a warm start are cells: all of them, or more if there are more clusters."""
    k = config.clusters or DEFAULT_CLUSTERS
    if public.warm_start is not None:
        centres = len(public.warm_start["centres"])
        k = config.clusters or min(k, centres)
        cells = max(centres, k)
    else:
        cells = 3 * k if isinstance(config, Algorithm2) and config.start == "perturbed_mean" else k
    sizes = Sizes(config.rounds, k, cells, 0, config.perturbation)
    return with_merge(sizes, config.overseed, config.merge_after) if isinstance(config, Algorithm2) else sizes


def passes(config: Clusters, state: HistogramsState) -> int:
    """How many passes there are before the rounds."""
    return 1 + (config.reduction == "eigenvectors") + (state.overseed - 1 if _seeds_with_rows(config) else 0)


def message_before(config: Clusters, state: HistogramsState) -> MeanMessage | CovarianceMessage | SeedingMessage:
    if state.phase == "mean":
        return MeanMessage(_seeds_with_rows(config), state.seed)
    if state.phase == "covariance":
        return CovarianceMessage()
    rows = reduce_rows(state.centres, state.kept)
    return SeedingMessage(rows, _smoothing(state), config.temperature, state.seed, state.kept)


def update_before(config: Clusters, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """result: finished statistics of the pass. The phase becomes "rounds" after the last of these passes."""
    if state.phase == "mean":
        return _mean(config, state, result)
    if state.phase == "covariance":
        return _covariance(config, state, result)
    rows = np.vstack([state.centres, result["pick"].payload["row"]])
    return _with_rows(config, state, rows), RoundInfo({"chosen": float(len(rows))})


def with_mean(state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """The state with F, the metric, the number of clients and their entropy. Raises PopulationError without clients."""
    clients = float(result["clients"])
    if clients == 0:
        raise PopulationError("no client of the population has any tokens.", "Check what was ingested.")
    mean = result["sums"][0] / clients
    w = metric(mean, scaled(METRIC_FLOOR, len(mean)), EFFECTIVE_TOKENS)
    state = replace(state, mean=mean, metric=w, clients=clients, entropy=float(result["entropy"]))
    return state, RoundInfo({"clients": clients, "entropy": -state.entropy / clients})


def usable_rows(state: HistogramsState, rows: np.ndarray) -> np.ndarray:
    """(k, d): clients' rows as centres. A raw row has no mass on most tokens; smoothed as it was compared, it can win
    clients.
    """
    return lift(smooth(reduce_rows(rows, state.kept), _smoothing(state)), state.kept, state.mean)


def _mean(config: Clusters, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    state, info = with_mean(state, result)
    if _seeds_with_rows(config):
        state = replace(state, centres=result["pick"].payload["row"][None, :])
    if config.reduction == "eigenvectors":
        return replace(state, phase="covariance"), info
    if config.reduction == "frequency":
        state = replace(state, kept=kept_by_frequency(state.mean, tokens_kept(config.keep, len(state.mean))))
    return _with_first_centres(config, state), info


def _covariance(config: Clusters, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    matrix = whitened_covariance(result["second_moment"], state.mean, state.clients)
    keep = tokens_kept(config.keep, len(state.mean))
    kept = kept_by_eigenvectors(matrix, state.clusters - 1, keep)  # centred: K clusters differ in K - 1 directions
    info = RoundInfo({"kept_tokens": float(keep), "kept_mass": float(state.mean[kept].sum())})
    return _with_first_centres(config, replace(state, kept=kept)), info


def _with_first_centres(config: Clusters, state: HistogramsState) -> HistogramsState:
    """All first centres; or the first row of Algorithm 1, which came with the mean."""
    if _seeds_with_rows(config):
        return _with_rows(config, state, state.centres)
    around = state.mean if config.start == "perturbed_mean" else np.full(len(state.mean), 1.0 / len(state.mean))
    centres = perturbed_start(around, state.overseed, state.perturbation, state.seed)
    centres = lift(reduce_rows(centres, state.kept), state.kept, state.mean)
    return replace(state, phase="rounds", centres=centres, counts=np.zeros(len(centres)))


def _with_rows(config: Clusters, state: HistogramsState, rows: np.ndarray) -> HistogramsState:
    """Another pass of Algorithm 1, or the rounds if there are K' rows."""
    if len(rows) < state.overseed:
        return replace(state, phase="start", centres=rows, counts=np.zeros(len(rows)))
    return replace(state, phase="rounds", centres=usable_rows(state, rows), counts=np.zeros(len(rows)))


def _seeds_with_rows(config: Clusters) -> bool:
    return config.start == "algorithm1"


def _smoothing(state: HistogramsState) -> float:
    return scaled(START_SMOOTHING, len(state.mean))


# --- the covariance of DimRed ---------------------------------------------------------------------------------------


def check_matrix(features: int) -> None:
    """Raises ConfigError if the vocabulary is too large for a matrix of its pairs of tokens."""
    if features > LARGEST_MATRIX:
        raise ConfigError(
            f"a vocabulary of {features} tokens is too large to be reduced by eigenvectors: every leaf of clients "
            f"answers with a matrix of {features} x {features} float64, {8 * features**2 / 2**20:.0f} MiB; the limit "
            f"is {LARGEST_MATRIX} tokens.",
            'Choose reduction = "frequency", or ingest with a smaller vocabulary.',
        )


def whitened_covariance(second: np.ndarray, mean: np.ndarray, clients: float) -> np.ndarray:
    """M, (d, d) float64: diag(F)**-1/2 (G/n - F F^T) diag(F)**-1/2; rows of tokens without mass are 0.

    second: (d, d) G, sum of q q^T. mean: (d,) F. clients: n.
    """
    with np.errstate(divide="ignore"):
        scale = np.where(mean > 0, 1.0 / np.sqrt(mean), 0.0)
    return scale[:, None] * (second / clients - np.outer(mean, mean)) * scale


# --- Algorithm 2, IFCA and FedAvg -------------------------------------------------------------------------------------


FEDAVG_SIZES = Sizes(rounds=1, clusters=1, overseed=1, merge_after=0, perturbation=SMALL_PERTURBATION)


def init(config: FedAvg | Clusters, public: PublicFacts) -> HistogramsState:
    """Raises ConfigError if the warm start cannot be used with these settings, or if the vocabulary is too large."""
    if isinstance(config, FedAvg):
        return initial_state("mean", FEDAVG_SIZES, public)
    state = init_before(config, public)
    if public.warm_start is None:
        return state
    if config.reduction == "eigenvectors":
        raise ConfigError(
            'algorithm2 with reduction = "eigenvectors" does not accept a warm start.',
            'Choose reduction = "frequency" or "none", or leave the warm start out.',
        )
    centres = np.asarray(public.warm_start["centres"], np.float64)
    if len(centres) > state.clusters and not state.merge_after:
        raise ConfigError(
            f"{len(centres)} centres of a warm start cannot be merged to {state.clusters} in {state.rounds} rounds.",
            "Raise rounds or clusters, or give fewer centres.",
        )
    return replace(state, phase="given", centres=centres, counts=np.zeros(len(centres)))


def total_rounds(config: FedAvg | Clusters, state: HistogramsState) -> int:
    """The passes of a run in which no cluster becomes empty."""
    return 1 if isinstance(config, FedAvg) else passes(config, state) + state.rounds


def message(config: FedAvg | Clusters, state: HistogramsState) -> PaperMessage | None:
    if state.phase == "done":
        return None
    if isinstance(config, FedAvg):
        return MeanMessage(False, state.seed)
    match state.phase:
        case "given":
            return MeanMessage(False, state.seed)
        case "rounds":
            return AssignMessage(assignment(state, state.centres), state.kept)
        case "reseed":
            others = np.delete(state.centres, state.reseed, axis=0)
            return WorstFitMessage(assignment(state, others), state.kept)
    return message_before(config, state)


def server_update(config: FedAvg | Clusters, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """result: finished statistics of the pass."""
    if isinstance(config, FedAvg):
        state, info = with_mean(state, result)
        counts = np.array([state.clients])
        return replace(state, phase="done", round=1, centres=state.mean[None, :], counts=counts), info
    match state.phase:
        case "given":
            return _warm_start(config, state, result)
        case "rounds":
            return _gradient_round(config, state, result) if isinstance(config, IFCA) else _round(state, result)
        case "reseed":
            return _reseed(state, result)
    return update_before(config, state, result)


# --- of one round, also for the algorithms that take another step ---------------------------------------------------


def assignment(state: HistogramsState, centres: np.ndarray) -> np.ndarray:
    """(d or r + 1, k) float32: ln of the smoothed, reduced centres."""
    return assignment_logs(reduce_rows(centres, state.kept), scaled(ASSIGNMENT_SMOOTHING, len(state.mean)))


def objective(state: HistogramsState, result: Mapping[str, Any]) -> float:
    """Mean over the clients of min_k KL(q_u || P_k), nats, of the centres that the clients were sent; lifted ones if
    the vocabulary is reduced.
    """
    value = (state.entropy - float(result["log_likelihood"])) / state.clients
    return value - lift_log_likelihood(state.kept, state.mean)


# --- steps ----------------------------------------------------------------------------------------------------------


def _warm_start(config: Clusters, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """The mean is there: choose the tokens, and fill up the centres that the run starts from."""
    state, info = with_mean(state, result)
    kept = state.kept
    if config.reduction == "frequency":
        kept = kept_by_frequency(state.mean, tokens_kept(config.keep, len(state.mean)))
    centres = filled_up(state.centres, state.first_cells, state.mean, state.perturbation, state.seed)
    centres = lift(reduce_rows(centres, kept), kept, state.mean)
    return replace(state, phase="rounds", kept=kept, centres=centres, counts=np.zeros(len(centres))), info


def _round(state: HistogramsState, result: Mapping[str, Any]) -> Step:
    t = state.round + 1
    counts = np.asarray(result["counts"], np.float64)
    filled = counts > 0
    centres = state.centres.copy()
    centres[filled] = lift(result["sums"][filled] / counts[filled, None], state.kept, state.mean)
    moved = total_variation(state.centres, centres)
    still = t > state.merge_after and not moved.any()
    info = RoundInfo(
        {
            "objective": objective(state, result),
            "movement": float(np.average(moved, weights=counts)),
            "empty_clusters": float(np.sum(~filled)),
        }
    )
    if t == state.merge_after:
        centres, counts = _merged(state, centres[filled], counts[filled])
    empty = np.flatnonzero(counts == 0)
    if still or t == state.rounds:
        phase = "done"  # an empty cluster keeps its centre: nobody was nearest to it
    else:
        phase = "reseed" if len(empty) else "rounds"
    return replace(state, phase=phase, round=t, centres=centres, counts=counts, reseed=empty), info


def _merged(state: HistogramsState, centres: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """K' clusters to K by Ward cost: (K, d) centres, (K,) counts. Rows beyond the merged ones are empty clusters."""
    merged, merged_counts = np.tile(state.mean, (state.clusters, 1)), np.zeros(state.clusters)
    for row, group in enumerate(ward_merge(centres, counts, state.metric, state.clusters)):
        merged[row] = np.average(centres[group], axis=0, weights=counts[group])
        merged_counts[row] = counts[group].sum()
    return merged, merged_counts


def _reseed(state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """The first of the empty clusters takes the row of the client that the others serve worst."""
    cell, waiting = int(state.reseed[0]), state.reseed[1:]
    centres = state.centres.copy()
    centres[cell] = usable_rows(state, result["worst"].payload["row"][None, :])[0]
    phase = "reseed" if len(waiting) else "rounds"
    info = RoundInfo({"misfit": result["worst"].score, "cell": float(cell)})
    return replace(state, phase=phase, centres=centres, reseed=waiting), info


def _gradient_round(config: IFCA, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    t, counts = state.round + 1, np.asarray(result["counts"], np.float64)
    before = reduce_rows(state.centres, state.kept)
    centres = gradient_step(before, result["sums"], counts, state.clients, config.learning_rate)
    info = RoundInfo(
        {
            "objective": objective(state, result),
            "movement": float(np.average(total_variation(before, centres), weights=counts)),
            "empty_clusters": float(np.sum(counts == 0)),
        }
    )
    phase = "done" if t == state.rounds else "rounds"
    return replace(state, phase=phase, round=t, centres=lift(centres, state.kept, state.mean), counts=counts), info


def gradient_step(centres: np.ndarray, sums: np.ndarray, counts: np.ndarray, clients: float, rate: float) -> np.ndarray:
    """(k, d): P_k + min(eta / n, 1 / N_k) (S_k - N_k P_k), where S_k and N_k are a cluster's sum and count.

    centres, sums: (k, d). counts: (k,). clients: n. rate: eta. Exact sums lead to a point between the centre and the
    cluster's mean; noised ones can lead off the simplex.
    """
    steps = np.minimum(rate / clients, 1.0 / np.maximum(counts, 1.0))
    return centres + steps[:, None] * (sums - counts[:, None] * centres)
