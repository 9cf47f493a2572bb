"""FedAvg: one histogram for everybody, the mean of the clients' histograms, without privacy.

Source: Setlur, Feldman, Talwar 2023, Lemma 2.1. Every client with tokens counts once, however many it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.methods.histograms.baselines import before_rounds
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.messages import BaselineMessage
from fedcore.methods.histograms.state import HistogramsState, Step

init = before_rounds.init
total_rounds = before_rounds.passes


def message(config: HistogramsConfig, state: HistogramsState) -> BaselineMessage | None:
    return None if state.phase == "done" else before_rounds.message(config, state)


def server_update(config: HistogramsConfig, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """result: finished statistics of the pass of the mean."""
    state, info = before_rounds.with_mean(config, state, result)
    return replace(state, phase="done", round=1, centres=state.mean[None, :], counts=np.array([state.clients])), info
