"""The method `gradient_em`: FedGrEM and the methods that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.gradient_em import baselines, leaf, scores, server
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.frame import in_data_units
from fedcore.methods.gradient_em.personal import parameters, personalise
from fedcore.methods.gradient_em.round_metrics import METRICS
from fedcore.methods.gradient_em.state import GradientEMState, MomentsMessage, StartMessage, TotalsMessage
from fedcore.population.blocks import ClientBlock, Kind
from fedcore.rounds.method import ClientOutputs, Memory, Message, NonPrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.results import Metric
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

NOT_PRIVATE = "clients' centres, or exact sums of them, reach the server without noise"


class GradientEM(NonPrivateMethod[GradientEMConfig, GradientEMState]):
    """Penalised federated gradient EM for mixtures that are similar between clients, some of whom may be outliers.

    Source: Tian, Weng, Feng, "Towards the Theory of Unsupervised Federated Learning: Non-asymptotic Analysis of
    Federated EM Algorithms" (2024), Algorithm 1. Weights of the components stay with the clients; centres are pulled
    towards a robust common centre.
    """

    name: ClassVar[str] = "gradient_em"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "gradient-em-3"
    Config = GradientEMConfig
    State = GradientEMState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    scores_use_memories: ClassVar[bool] = True
    accepts_warm_start: ClassVar[bool] = True

    @property
    def not_private_because(self) -> str:
        return NOT_PRIVATE

    def init(self, public: PublicFacts) -> GradientEMState:
        return server.init(self.config, public)

    def total_rounds(self, state: GradientEMState) -> int:
        return server.total_rounds(self.config)

    def message(self, state: GradientEMState) -> Message | None:
        return server.message(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        match message:
            case MomentsMessage():
                return leaf.moments(message, block), None
            case StartMessage():
                return leaf.start(self.config, message, block)
            case TotalsMessage():
                return leaf.totals(self.config, message, block, memory)
        if self.config.algorithm == "fedgrem":
            return leaf.gradient_round(self.config, message, block, memory)
        begun = leaf.begun(self.config, message, block, memory)
        return baselines.client_round(self.config, message, block, begun)

    def server_update(self, state: GradientEMState, result: Mapping[str, Any]) -> tuple[GradientEMState, RoundInfo]:
        return server.server_update(self.config, state, result)

    def parameters(self, state: GradientEMState) -> dict[str, np.ndarray]:
        """centres: (R, p) common ones, in the units of the data; standardised if every client has its own units. Empty
        before there is a start."""
        if not len(state.centres):
            return {}
        return {"centres": in_data_units(self.config, server.frame(state), state.centres, None)}

    def warm_start_of(self, state: GradientEMState) -> dict[str, np.ndarray]:
        """The common centres. They are in the units of the data unless clients' own units are used."""
        if not len(state.centres) or not state.clients:
            raise ConfigError("stopped before it had centres.", "Name a run that has.")
        return self.parameters(state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """The array 'centres' as float64 (R, p). Raises ConfigError."""
        centres = arrays.get("centres")
        if centres is None or centres.dtype.kind not in "iuf" or not np.isfinite(centres).all():
            raise ConfigError(f"{what} has no array 'centres' of finite numbers.")
        shape = (self.config.components, self.config.inputs(features))
        if centres.shape != shape:
            raise ConfigError(f"'centres' of {what} has shape {centres.shape}, and the run needs {shape}.")
        return {"centres": np.asarray(centres, np.float64)}

    def personalise(self, state: GradientEMState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Per client: parameters, labels and distance from the common centres; see
        `fedcore.methods.gradient_em.personal`."""
        return personalise(self.config, state, block, memory)

    def score_block(self, state: GradientEMState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.gradient_em.scores`."""
        return scores.evaluate_block(self.config, state, block, memories)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return scores.table(self.config, statistics)

    def phase(self, state: GradientEMState, message: Message) -> str:
        return state.phase

    def clients_kept_apart(self, clients: int) -> int:
        """Those whose components are aligned one by one."""
        return self.config.aligned_clients

    def outlier_distances(self, state: GradientEMState, block: ClientBlock, memory: Memory | None) -> np.ndarray:
        """In units of what the penalty bounds; above 1 it leaves a client apart."""
        if self.config.algorithm != "fedgrem":
            raise ConfigError(
                "the run has no penalty that could leave clients apart.",
                'Name a run of gradient_em with algorithm = "fedgrem".',
            )
        return parameters(self.config, state, block, memory)["distance"]
