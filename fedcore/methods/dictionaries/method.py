"""The method `dictionaries`: PerMA, and a federated dictionary learner without orthogonality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries import background_outputs, background_server, clients, scores, series, server, start
from fedcore.methods.dictionaries.background import background_update
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.fitted import fitted_model_of
from fedcore.methods.dictionaries.personal import personalise
from fedcore.methods.dictionaries.private import clients as private_clients
from fedcore.methods.dictionaries.private import plan as private_plan
from fedcore.methods.dictionaries.private import server as private_server
from fedcore.methods.dictionaries.result import result_of
from fedcore.methods.dictionaries.round_metrics import METRICS
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.population.blocks import ClientBlock, Kind, RowsBlock
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.fitted import FittedDictionary
from fedcore.rounds.method import ClientOutputs, Memory, Message, PrivateMethod, PublicFacts, RoundInfo, Worth
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

MATCHING = (
    "clients' whole dictionaries, local atoms included, reach the server for the matching, on which one "
    "client's influence is not bounded, and "
)


class Dictionaries(PrivateMethod[DictionariesConfig, DictionariesState]):
    """Personalised dictionaries: atoms that all clients share, learnt together, and atoms that each has alone.

    Source: Liang, Shi, Al Kontar, Fattahi, "Personalized Dictionary Learning for Heterogeneous Datasets" (2023),
    Algorithm 1 (PerMA). With the learner "statistics" the global atoms are learnt from sums of codes and samples, which
    add over clients; `private = true` is `fedcore.methods.dictionaries.private`.
    """

    name: ClassVar[str] = "dictionaries"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "dictionaries-4"
    streams_rows: ClassVar[bool] = True
    Config = DictionariesConfig
    State = DictionariesState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    setting_groups: ClassVar[Mapping[str, str]] = {
        "atoms": "sizes",
        "learner": "clients' learner",
        "start": "start",
        "matcher": "matching",
        "aggregate": "aggregation",
        "split": "learner statistics",
        "precision": "messages",
        "participation": "who takes part, end",
        "private": "privacy",
    }
    scores_use_memories: ClassVar[bool] = True
    accepts_warm_start: ClassVar[bool] = True
    series_arrays: ClassVar[tuple[str, ...]] = (*series.SERIES_NAMES, start.RELEASED)

    @property
    def private(self) -> bool:
        return self.config.private

    @property
    def not_private_because(self) -> str:
        if self.private:
            return ""
        if self.config.is_background:
            return "sums of clients' frames reach the server without noise in every round"
        sums = self.config.learner == "statistics"
        sent = "sums of codes and samples" if sums else "clients' versions of the global atoms"
        return f"{MATCHING if self.config.start == 'local' else ''}{sent} reach the server without noise in every round"

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError if a private run has no budget, no nominal number of clients or no start it asks for."""
        return private_plan.plan(self.config, public) if self.private else []

    def budget_sketch(self, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
        """With the noise in an atom's step."""
        return private_plan.budget_sketch(self.config, public, plan)

    def worth(self, public: PublicFacts) -> Worth | None:
        """By the noise in an atom's step. Raises ConfigError as `plan` does."""
        return private_plan.worth(self.config, public) if self.private else None

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray] | None:
        return private_plan.likely_warm_start(self.config, public) if self.private else None

    def init(self, public: PublicFacts) -> DictionariesState:
        state: DictionariesState = self._server.init(self.config, public)
        return state

    def total_rounds(self, state: DictionariesState) -> int:
        rounds: int = self._server.total_rounds(self.config, state)
        return rounds

    def message(self, state: DictionariesState) -> Message | None:
        return self._server.message(self.config, state)

    @property
    def _server(self) -> Any:
        """The module with the server's side of these settings."""
        if self.private:
            return private_server
        return background_server if self.config.is_background else server

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        if self.private:
            return private_clients.client_update(message, cast(RowsBlock, block)), None
        if self.config.is_background:
            return background_update(self.config, message, cast(RowsBlock, block))
        return clients.client_update(self.config, message, cast(RowsBlock, block), memory)

    def server_update(self, state: DictionariesState, result: Mapping[str, Any]) -> tuple[DictionariesState, RoundInfo]:
        moved: tuple[DictionariesState, RoundInfo] = self._server.server_update(self.config, state, result)
        return moved

    def phase(self, state: DictionariesState, message: Message) -> str:
        return state.phase

    def clients_kept_apart(self, clients: int) -> int:
        """Those whose whole dictionaries are matched; nobody's where there are sums from the start on."""
        sums = self.config.nested and self.config.start != "local"
        return 0 if self.config.is_background or sums else self.config.matched_clients

    def result(self, state: DictionariesState, features: Features) -> Result:
        if self.config.is_background:
            return background_outputs.background_result(state, features)
        return result_of(state, features)

    def fitted_model(self, state: DictionariesState) -> FittedDictionary:
        """The atoms that all share, as an estimator that codes samples. Raises RunError if there are none."""
        if self.config.is_background:
            raise ConfigError("a background has no counterpart among scikit-learn's estimators.", "Export it as .npz.")
        return fitted_model_of(self.config, state)

    def warm_start_of(self, state: DictionariesState) -> dict[str, np.ndarray]:
        """global: (rg, d) the global dictionary, one atom a row."""
        if self.config.is_background:
            raise ConfigError("is a background, which no run starts from.")
        return start.warm_start_of(state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """global: (rg, d), atoms scaled to norm 1."""
        return start.checked_warm_start(self.config, arrays, what, features)

    def personalise(self, state: DictionariesState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Per client: local atoms, and its samples split in two; see `fedcore.methods.dictionaries.personal`."""
        if self.config.is_background:
            return background_outputs.split_frames(state, cast(RowsBlock, block))
        return personalise(self.config, state, cast(RowsBlock, block), memory)

    def score_block(self, state: DictionariesState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.dictionaries.scores`."""
        if self.config.is_background:
            return background_outputs.score_frames(state, cast(RowsBlock, block))
        return scores.evaluate_block(self.config, state, cast(RowsBlock, block), memories)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return (
            background_outputs.background_scores(statistics) if self.config.is_background else scores.table(statistics)
        )
