"""FedAvg: one histogram for everybody, the mean of the clients' histograms, without privacy.

Source: Setlur, Feldman, Talwar 2023, Lemma 2.1. Every client with tokens counts once, however many it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from fedcore.papers.histograms import before_rounds
from fedcore.papers.histograms.config import FedAvg
from fedcore.papers.histograms.messages import MeanMessage

from fedcore.methods.histograms.sizes import SMALL_PERTURBATION, Sizes
from fedcore.methods.histograms.state import HistogramsState, Step, initial_state
from fedcore.rounds.method import PublicFacts

SIZES = Sizes(rounds=1, clusters=1, overseed=1, merge_after=0, perturbation=SMALL_PERTURBATION)


def init(config: FedAvg, public: PublicFacts) -> HistogramsState:
    return initial_state("mean", SIZES, public)


def total_rounds(config: FedAvg, state: HistogramsState) -> int:
    return 1


def message(config: FedAvg, state: HistogramsState) -> MeanMessage | None:
    return None if state.phase == "done" else MeanMessage(False, state.seed)


def server_update(config: FedAvg, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """result: finished statistics of the pass of the mean."""
    state, info = before_rounds.with_mean(state, result)
    return replace(state, phase="done", round=1, centres=state.mean[None, :], counts=np.array([state.clients])), info
