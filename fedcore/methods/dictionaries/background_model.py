"""model = "background", as `method` asks for it. `dictionary_model` has the same functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries.background import BackgroundMessage
from fedcore.methods.dictionaries.background_clients import background_update
from fedcore.methods.dictionaries.background_outputs import (
    background_result,
    background_scores,
    score_frames,
    split_frames,
)
from fedcore.methods.dictionaries.background_server import init, message, server_update, total_rounds
from fedcore.methods.dictionaries.background_start import checked_warm_start, warm_start_of
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.population.blocks import ClientBlock, RowsBlock
from fedcore.rounds.fitted import FittedDictionary
from fedcore.rounds.method import ClientOutputs, Memory
from fedcore.rounds.results import Features, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

__all__ = ["checked_warm_start", "init", "message", "server_update", "total_rounds", "warm_start_of"]


def not_private_because(config: DictionariesConfig) -> str:
    return "sums of clients' frames reach the server without noise in every round"


def clients_kept_apart(config: DictionariesConfig) -> int:
    return 0


def client_update(
    config: DictionariesConfig, message: BackgroundMessage, block: ClientBlock, memory: Memory | None
) -> tuple[Statistics, Memory | None]:
    return background_update(config, message, cast(RowsBlock, block))


def result(state: DictionariesState, features: Features) -> Result:
    return background_result(state, features)


def fitted_model(config: DictionariesConfig, state: DictionariesState) -> FittedDictionary:
    raise ConfigError("a background has no counterpart among scikit-learn's estimators.", "Export it as .npz.")


def personalise(
    config: DictionariesConfig, state: DictionariesState, block: ClientBlock, memory: Memory | None
) -> ClientOutputs:
    return split_frames(state, cast(RowsBlock, block))


def score_block(
    config: DictionariesConfig, state: DictionariesState, block: ClientBlock, memories: KnownMemories | None
) -> Statistics:
    return score_frames(state, cast(RowsBlock, block))


def score_table(statistics: Mapping[str, np.ndarray]) -> ScoreTable:
    return background_scores(statistics)
