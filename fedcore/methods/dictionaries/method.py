"""The method `dictionaries`: PerMA, and a federated dictionary learner without orthogonality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries import clients as leaf
from fedcore.methods.dictionaries import scores, server
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.personal import personalise
from fedcore.methods.dictionaries.round_metrics import METRICS
from fedcore.methods.dictionaries.state import DictionariesState, StartMessage
from fedcore.population.blocks import ClientBlock, Kind
from fedcore.rounds.method import ClientOutputs, Memory, Message, NonPrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.results import Metric
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

MATCHING = (
    "clients' whole dictionaries, local atoms included, reach the server for the matching, on which one "
    "client's influence is not bounded, and "
)


class Dictionaries(NonPrivateMethod[DictionariesConfig, DictionariesState]):
    """Personalised dictionaries: atoms that all clients share, learnt together, and atoms that each has alone.

    Source: Liang, Shi, Al Kontar, Fattahi, "Personalized Dictionary Learning for Heterogeneous Datasets" (2023),
    Algorithm 1 (PerMA). With the learner "statistics" the global atoms are learnt from sums of codes and samples, which
    add over clients.
    """

    name: ClassVar[str] = "dictionaries"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "dictionaries-2"
    streams_rows: ClassVar[bool] = True
    Config = DictionariesConfig
    State = DictionariesState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    scores_use_memories: ClassVar[bool] = True
    accepts_warm_start: ClassVar[bool] = True

    @property
    def not_private_because(self) -> str:
        sums = self.config.learner == "statistics"
        sent = "sums of codes and samples" if sums else "clients' versions of the global atoms"
        return f"{MATCHING if self.config.start == 'local' else ''}{sent} reach the server without noise in every round"

    def init(self, public: PublicFacts) -> DictionariesState:
        return server.init(self.config, public)

    def total_rounds(self, state: DictionariesState) -> int:
        return server.total_rounds(self.config)

    def message(self, state: DictionariesState) -> Message | None:
        return server.message(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        if isinstance(message, StartMessage):
            return leaf.start(self.config, message, block)
        memory = leaf.begun(message, block, memory)
        if self.config.learner == "statistics":
            return leaf.statistics_round(self.config, message, block, memory)
        return leaf.local_round(self.config, message, block, memory)

    def server_update(self, state: DictionariesState, result: Mapping[str, Any]) -> tuple[DictionariesState, RoundInfo]:
        return server.server_update(self.config, state, result)

    def parameters(self, state: DictionariesState) -> dict[str, np.ndarray]:
        """global: (rg, d) the global dictionary, one atom a row. Empty before there is one."""
        return {"global": state.common} if state.phase != "start" else {}

    def warm_start_of(self, state: DictionariesState) -> dict[str, np.ndarray]:
        """The global dictionary. Raises ConfigError before the matching."""
        if state.phase == "start":
            raise ConfigError("stopped before it had a global dictionary.", "Name a run that has.")
        return self.parameters(state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """The array 'global' as float64 (rg, d), atoms scaled to norm 1. Raises ConfigError."""
        common = arrays.get("global")
        if common is None or common.dtype.kind not in "iuf" or not np.isfinite(common).all():
            raise ConfigError(f"{what} has no array 'global' of finite numbers.")
        if self.config.automatic:
            raise ConfigError("a run from a given global dictionary needs global_atoms as a number.")
        shape = (self.config.global_atoms, features)
        if common.shape != shape:
            raise ConfigError(f"'global' of {what} has shape {common.shape}, and the run needs {shape}.")
        common = np.asarray(common, np.float64)
        norms = np.linalg.norm(common, axis=1)
        if not (norms > 0).all():
            raise ConfigError(f"'global' of {what} has an atom of norm 0.")
        return {"global": common / norms[:, None]}

    def personalise(self, state: DictionariesState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Per client: local atoms, and its samples split in two; see `fedcore.methods.dictionaries.personal`."""
        return personalise(self.config, state, block, memory)

    def score_block(self, state: DictionariesState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.dictionaries.scores`."""
        return scores.evaluate_block(self.config, state, block, memories)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return scores.table(self.config, statistics)

    def phase(self, state: DictionariesState, message: Message) -> str:
        return state.phase

    def clients_kept_apart(self, clients: int) -> int:
        """Those whose whole dictionaries are matched."""
        return self.config.matched_clients
