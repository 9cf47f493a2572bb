"""What `method` asks of rounds with noise or without, and of what they found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from fedcore.methods.dictionaries import clients, personal, scores, server
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.fitted import fitted_model_of
from fedcore.methods.dictionaries.private import clients as private_clients
from fedcore.methods.dictionaries.private import server as private_server
from fedcore.methods.dictionaries.result import result_of
from fedcore.methods.dictionaries.start import checked_warm_start, warm_start_of
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.population.blocks import ClientBlock, RowsBlock
from fedcore.rounds.fitted import FittedDictionary
from fedcore.rounds.method import ClientOutputs, Memory, Message, PublicFacts, RoundInfo
from fedcore.rounds.results import Features, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

__all__ = ["checked_warm_start", "warm_start_of"]

MATCHING = (
    "clients' whole dictionaries, local atoms included, reach the server for the matching, on which one "
    "client's influence is not bounded, and "
)


def not_private_because(config: DictionariesConfig) -> str:
    sums = config.learner == "statistics"
    sent = "sums of codes and samples" if sums else "clients' versions of the global atoms"
    return f"{MATCHING if config.start == 'local' else ''}{sent} reach the server without noise in every round"


def clients_kept_apart(config: DictionariesConfig) -> int:
    """Those whose whole dictionaries are matched; nobody's where there are sums from the start on."""
    return 0 if config.nested and config.start != "local" else config.matched_clients


# --- rounds, with noise or without ------------------------------------------------------------------------------------


def _server(config: DictionariesConfig) -> Any:
    return private_server if config.private else server


def init(config: DictionariesConfig, public: PublicFacts) -> DictionariesState:
    state: DictionariesState = _server(config).init(config, public)
    return state


def total_rounds(config: DictionariesConfig, state: DictionariesState) -> int:
    rounds: int = _server(config).total_rounds(config, state)
    return rounds


def message(config: DictionariesConfig, state: DictionariesState) -> Message | None:
    return _server(config).message(config, state)


def client_update(
    config: DictionariesConfig, message: Message, block: ClientBlock, memory: Memory | None
) -> tuple[Statistics, Memory | None]:
    if config.private:
        return private_clients.client_update(message, cast(RowsBlock, block)), None
    return clients.client_update(config, message, cast(RowsBlock, block), memory)


def server_update(
    config: DictionariesConfig, state: DictionariesState, result: Mapping[str, Any]
) -> tuple[DictionariesState, RoundInfo]:
    moved: tuple[DictionariesState, RoundInfo] = _server(config).server_update(config, state, result)
    return moved


# --- what it found ----------------------------------------------------------------------------------------------------


def result(state: DictionariesState, features: Features) -> Result:
    return result_of(state, features)


def fitted_model(config: DictionariesConfig, state: DictionariesState) -> FittedDictionary:
    return fitted_model_of(config, state)


def personalise(
    config: DictionariesConfig, state: DictionariesState, block: ClientBlock, memory: Memory | None
) -> ClientOutputs:
    return personal.personalise(config, state, cast(RowsBlock, block), memory)


def score_block(
    config: DictionariesConfig, state: DictionariesState, block: ClientBlock, memories: KnownMemories | None
) -> Statistics:
    return scores.evaluate_block(config, state, cast(RowsBlock, block), memories)


def score_table(statistics: Mapping[str, np.ndarray]) -> ScoreTable:
    return scores.table(statistics)
