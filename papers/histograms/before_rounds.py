"""The passes that all algorithms of the paper begin with.

    mean        F and the number of clients; the first row of Algorithm 1
    covariance  what the eigenvectors of DimRed are taken of (reduction = "eigenvectors" only)
    start       K' - 1 passes of Algorithm 1 (start = "algorithm1" only)

Source: Setlur, Feldman, Talwar 2023, Lemma 2.1, Algorithm 1 and section 3, with one correction: Algorithm 1 takes the
minimum over the k - 1 centres that are already chosen.

With a reduction (`fedcore.methods.histograms.reduction`) clients compare and add up reduced histograms. The centres in
the state are lifted ones all the same, (k, d), so that a run may end after any round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from fedcore.papers.histograms.config import EFFECTIVE_TOKENS, METRIC_FLOOR, START_SMOOTHING, Algorithm2, Clusters
from fedcore.papers.histograms.messages import CovarianceMessage, MeanMessage, SeedingMessage

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.histograms.config import DEFAULT_CLUSTERS, scaled
from fedcore.methods.histograms.reduction import kept_by_eigenvectors, kept_by_frequency, lift, reduce_rows, tokens_kept
from fedcore.methods.histograms.simplex import metric, smooth
from fedcore.methods.histograms.sizes import Sizes, with_merge
from fedcore.methods.histograms.start import perturbed_start
from fedcore.methods.histograms.state import HistogramsState, Step, initial_state
from fedcore.rounds.method import PublicFacts, RoundInfo

LARGEST_MATRIX = 4096  # features


def init(config: Clusters, public: PublicFacts) -> HistogramsState:
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


def message(config: Clusters, state: HistogramsState) -> MeanMessage | CovarianceMessage | SeedingMessage:
    if state.phase == "mean":
        return MeanMessage(_seeds_with_rows(config), state.seed)
    if state.phase == "covariance":
        return CovarianceMessage()
    rows = reduce_rows(state.centres, state.kept)
    return SeedingMessage(rows, _smoothing(state), config.temperature, state.seed, state.kept)


def server_update(config: Clusters, state: HistogramsState, result: Mapping[str, Any]) -> Step:
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
