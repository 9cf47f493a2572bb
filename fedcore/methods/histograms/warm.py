"""Algorithm 2 from given centres, without privacy: the pass of the mean, then the rounds of `baselines`.

Without given centres it is Algorithm 2 as it stands in `fedcore.methods.histograms.baselines`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.histograms import baselines
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.private_start import filled_up
from fedcore.methods.histograms.reduction import kept_by_frequency, lifted, reduced, tokens_kept
from fedcore.methods.histograms.state import HistogramsState
from fedcore.rounds.method import PublicFacts

total_rounds = baselines.total_rounds
client_update = baselines.client_update


def init(config: HistogramsConfig, public: PublicFacts) -> HistogramsState:
    """Raises ConfigError if the given centres cannot be used with these settings."""
    state = baselines.init(config, public)
    if public.warm_start is None:
        return state
    if config.reduction == "eigenvectors":
        raise ConfigError(
            'algorithm2 with reduction = "eigenvectors" does not start from given centres.',
            'Choose reduction = "frequency" or "none", or leave the start out.',
        )
    given = np.asarray(public.warm_start["centres"], np.float64)
    if len(given) > state.clusters and not state.merge_after:
        raise ConfigError(
            f"{len(given)} given centres cannot be merged to {state.clusters} in {state.rounds} rounds.",
            "Raise rounds or clusters, or give fewer centres.",
        )
    return replace(state, phase="given", centres=given, counts=np.zeros(len(given)))


def message(config: HistogramsConfig, state: HistogramsState) -> baselines.BaselineMessage | None:
    if state.phase == "given":
        return baselines.MeanMessage(False, state.seed)
    return baselines.message(config, state)


def server_update(config: HistogramsConfig, state: HistogramsState, result: Mapping):
    """result: finished statistics of the pass. Returns the next state and its RoundInfo."""
    if state.phase != "given":
        return baselines.server_update(config, state, result)
    only_mean = config.model_copy(update={"algorithm": "fedavg", "reduction": "none"})
    known, info = baselines.server_update(only_mean, replace(state, phase="mean"), result)
    mean, cells = known.mean, state.overseed if state.merge_after else state.clusters
    kept = state.kept
    if config.reduction == "frequency":
        kept = kept_by_frequency(mean, tokens_kept(config.keep, len(mean)))
    centres = filled_up(state.centres, cells, mean, state.perturbation, state.seed)
    centres = lifted(reduced(centres, kept), kept, mean)
    state = replace(known, phase="rounds", round=0, kept=kept, centres=centres, counts=np.zeros(len(centres)))
    return state, info
