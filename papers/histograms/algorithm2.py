"""Algorithm 2, clustering in KL without privacy: assign every client to its nearest centre, take the clusters' means.

Source: Setlur, Feldman, Talwar 2023, Algorithm 2, with these corrections. Clients are assigned to the centres that have
just been computed, and the clusters that they are in at the end belong to the centres that are returned. An empty
cluster takes the row of the client that the other centres serve worst, where the paper puts the uniform histogram.

    given       the mean, if the run has a warm start; else the passes of `before_rounds`
    rounds      passes of Algorithm 2, until no centre moves or T are done; K' clusters are merged to K after T1
    reseed      one pass for each empty cluster
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from fedcore.papers.histograms import before_rounds
from fedcore.papers.histograms.config import ASSIGNMENT_SMOOTHING, Algorithm2, Clusters
from fedcore.papers.histograms.messages import AssignMessage, MeanMessage, PaperMessage, WorstFitMessage

from fedcore.errors import ConfigError
from fedcore.methods.histograms.config import scaled
from fedcore.methods.histograms.reduction import kept_by_frequency, lift, lift_log_likelihood, reduce_rows, tokens_kept
from fedcore.methods.histograms.simplex import assignment_logs, total_variation, ward_merge
from fedcore.methods.histograms.start import filled_up
from fedcore.methods.histograms.state import HistogramsState, Step
from fedcore.rounds.method import PublicFacts, RoundInfo


def init(config: Algorithm2, public: PublicFacts) -> HistogramsState:
    """Raises ConfigError if the warm start cannot be used with these settings."""
    state = before_rounds.init(config, public)
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


def total_rounds(config: Clusters, state: HistogramsState) -> int:
    """The passes of a run in which no cluster becomes empty."""
    return before_rounds.passes(config, state) + state.rounds


def message(config: Clusters, state: HistogramsState) -> PaperMessage | None:
    match state.phase:
        case "done":
            return None
        case "given":
            return MeanMessage(False, state.seed)
        case "rounds":
            return AssignMessage(assignment(state, state.centres), state.kept)
        case "reseed":
            others = np.delete(state.centres, state.reseed, axis=0)
            return WorstFitMessage(assignment(state, others), state.kept)
    return before_rounds.message(config, state)


def server_update(config: Clusters, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """result: finished statistics of the pass."""
    match state.phase:
        case "given":
            return _warm_start(config, state, result)
        case "rounds":
            return _round(state, result)
        case "reseed":
            return _reseed(state, result)
    return before_rounds.server_update(config, state, result)


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
    state, info = before_rounds.with_mean(state, result)
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
    centres[cell] = before_rounds.usable_rows(state, result["worst"].payload["row"][None, :])[0]
    phase = "reseed" if len(waiting) else "rounds"
    info = RoundInfo({"misfit": result["worst"].score, "cell": float(cell)})
    return replace(state, phase=phase, centres=centres, reseed=waiting), info
