"""The method `dictionaries`: PerMA, and a federated dictionary learner without orthogonality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedcore.methods.dictionaries import dictionary_model, series, start
from fedcore.methods.dictionaries.config import MOVED, DictionariesConfig
from fedcore.methods.dictionaries.private import plan as private_plan
from fedcore.methods.dictionaries.round_metrics import METRICS
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.population.blocks import ClientBlock, Kind
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.fitted import FittedDictionary
from fedcore.rounds.method import (
    INCOMPLETE_ROWS,
    ClientOutputs,
    Memory,
    Message,
    PrivateMethod,
    PublicFacts,
    RoundInfo,
    Worth,
)
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics


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
    main_settings: ClassVar[tuple[str, ...]] = (
        "profile",
        "global_atoms",
        "atoms",
        "sparsity",
        "learner",
        "code",
        "rounds",
        "private",
    )
    scores_use_memories: ClassVar[bool] = True
    accepts_warm_start: ClassVar[bool] = True
    moved_settings: ClassVar[Mapping[str, str]] = MOVED
    series_arrays: ClassVar[tuple[str, ...]] = (*series.SERIES_NAMES, start.RELEASED)

    @property
    def private(self) -> bool:
        return self.config.private

    @property
    def not_private_because(self) -> str:
        if self.private:
            return ""
        because: str = dictionary_model.not_private_because(self.config)
        return because

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError if a private run has no budget, no nominal number of clients or no start it asks for."""
        return private_plan.plan(self.config, public) if self.private else []

    def budget_sketch(self, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
        """With the noise in an atom's step."""
        return private_plan.budget_sketch(self.config, public, plan)

    def worth(self, public: PublicFacts) -> Worth | None:
        """By the noise in an atom's step. Raises ConfigError as `plan` does."""
        return private_plan.worth(self.config, public) if self.private else None

    def left_out(self, columns: Features) -> str:
        """Private runs leave rows out; others end with an error."""
        return INCOMPLETE_ROWS if self.private else ""

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray] | None:
        return private_plan.likely_warm_start(self.config, public) if self.private else None

    def init(self, public: PublicFacts) -> DictionariesState:
        state: DictionariesState = dictionary_model.init(self.config, public)
        return state

    def total_rounds(self, state: DictionariesState) -> int:
        rounds: int = dictionary_model.total_rounds(self.config, state)
        return rounds

    def message(self, state: DictionariesState) -> Message | None:
        return dictionary_model.message(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        answer: tuple[Statistics, Memory | None] = dictionary_model.client_update(self.config, message, block, memory)
        return answer

    def server_update(self, state: DictionariesState, result: Mapping[str, Any]) -> tuple[DictionariesState, RoundInfo]:
        moved: tuple[DictionariesState, RoundInfo] = dictionary_model.server_update(self.config, state, result)
        return moved

    def phase(self, state: DictionariesState, message: Message) -> str:
        return state.phase

    def clients_kept_apart(self, clients: int) -> int:
        count: int = dictionary_model.clients_kept_apart(self.config)
        return count

    def result(self, state: DictionariesState, features: Features) -> Result:
        shown: Result = dictionary_model.result(state, features)
        return shown

    def fitted_model(self, state: DictionariesState) -> FittedDictionary:
        """The atoms that all share, as an estimator that codes samples. Raises RunError if there are none."""
        fitted: FittedDictionary = dictionary_model.fitted_model(self.config, state)
        return fitted

    def warm_start_of(self, state: DictionariesState) -> dict[str, np.ndarray]:
        """global: (rg, d) the global dictionary, one atom a row"""
        left: dict[str, np.ndarray] = dictionary_model.warm_start_of(state)
        return left

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """global: (rg, d), atoms scaled to norm 1"""
        checked: dict[str, np.ndarray] = dictionary_model.checked_warm_start(self.config, arrays, what, features)
        return checked

    def personalise(self, state: DictionariesState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Per client: local atoms, and its samples split in two; see `fedcore.methods.dictionaries.personal`."""
        outputs: ClientOutputs = dictionary_model.personalise(self.config, state, block, memory)
        return outputs

    def score_block(self, state: DictionariesState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.dictionaries.scores`."""
        statistics: Statistics = dictionary_model.score_block(self.config, state, block, memories)
        return statistics

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        table: ScoreTable = dictionary_model.score_table(statistics)
        return table
