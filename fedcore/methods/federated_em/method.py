"""The method `federated_em`: FedEM, VR-FedEM, exact and naive EM, and a private variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.federated_em import clients as leaf
from fedcore.methods.federated_em import models as families
from fedcore.methods.federated_em import private, scores, server
from fedcore.methods.federated_em import start as given
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.messages import (
    ClusterMessage,
    FieldMessage,
    MomentsMessage,
    ObjectiveMessage,
    PickMessage,
    ReleaseMessage,
    TrialMessage,
    plain_scaling,
)
from fedcore.methods.federated_em.personal import personalise
from fedcore.methods.federated_em.round_metrics import METRICS
from fedcore.methods.federated_em.seeding import clusters, pick
from fedcore.methods.federated_em.state import FederatedEMState
from fedcore.population.blocks import ClientBlock, Kind
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import ClientOutputs, Memory, Message, PrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.results import Metric
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

NOT_PRIVATE = {
    "em": "exact sums of the clients' statistics reach the server",
    "fedem": "messages are compressed, not noised",
    "vr-fedem": "messages are compressed, not noised",
    "naive": "messages are compressed, not noised",
}


class FederatedEM(PrivateMethod[FederatedEMConfig, FederatedEMState]):
    """Expectation maximisation over clients who send compressed statistics and remember what they sent.

    Source: Dieuleveut, Fort, Moulines, Robin, "Federated Expectation Maximization with heterogeneity mitigation and
    variance reduction" (2021). One driver, configured by oracle, codec, alpha, gamma and participation, is FedEM,
    VR-FedEM, naive compressed EM, online EM, SPIDER-EM (one client, no codec) and EM. `algorithm = "private"` is
    `fedcore.methods.federated_em.private`.
    """

    name: ClassVar[str] = "federated_em"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows", "counts")
    arithmetic_version: ClassVar[str] = "federated-em-2"
    Config = FederatedEMConfig
    State = FederatedEMState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    accepts_warm_start: ClassVar[bool] = True
    streams_rows: ClassVar[bool] = True

    @property
    def kind(self) -> Kind:
        return self.config.kind

    @property
    def private(self) -> bool:
        return self.config.private

    @property
    def not_private_because(self) -> str:
        return NOT_PRIVATE.get(self.config.algorithm, "")

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError if a private run has no budget, no nominal number of clients or no public start."""
        return private.plan(self.config, public) if self.private else []

    def init(self, public: PublicFacts) -> FederatedEMState:
        return (private if self.private else server).init(self.config, public)

    def total_rounds(self, state: FederatedEMState) -> int:
        return len(state.multipliers) if self.private else server.total_rounds(self.config, state)

    def message(self, state: FederatedEMState) -> Message | None:
        return (private if self.private else server).message(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        if isinstance(message, MomentsMessage):
            plain = plain_scaling(block.features * self.config.unit)
            return leaf.moments(self.config, families.model_of(self.config, plain), block), None
        if isinstance(message, PickMessage):
            return pick(message, block), None
        if isinstance(message, ClusterMessage):
            return clusters(message, block), None
        model = families.model_of(self.config, message.scaling)
        match message:
            case ReleaseMessage():
                return private.client_update(self.config, model, message, block), None
            case TrialMessage():
                return leaf.trials(self.config, model, message, block), None
            case FieldMessage():
                return leaf.field(self.config, model, message, block)
            case ObjectiveMessage():
                return leaf.objective(self.config, model, message, block), memory
        return leaf.round_answer(self.config, model, families.codec_of(self.config, model), message, block, memory)

    def server_update(self, state: FederatedEMState, result: Mapping[str, Any]) -> tuple[FederatedEMState, RoundInfo]:
        if self.private:
            return private.server_update(self.config, state, result[private.release_name(state.round + 1)])
        return server.server_update(self.config, state, result)

    def parameters(self, state: FederatedEMState) -> dict[str, np.ndarray]:
        """The parameters by name, of rows in the units of the data; empty before there is a start."""
        return dict(families.in_data_units(self.config, state.parameters(), server.scaling(state)))

    def warm_start_of(self, state: FederatedEMState) -> dict[str, np.ndarray]:
        """What another run may start from: parameters, and what rows and clipped parts were scaled by."""
        if not len(state.theta):
            raise ConfigError("stopped before it had parameters.", "Name a run that has.")
        arrays = {
            "centre": state.centre,
            "scale": state.scale,
            "column_means": state.mean,
            "part_scales": state.part_scales,
        }
        return {**state.parameters(), **{name: array for name, array in arrays.items() if len(array)}}

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """float64, finite; whether they are parameters of the model is seen when the run is planned."""
        return given.checked_arrays(arrays, what)

    def personalise(self, state: FederatedEMState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Per client: what its own rows say under the shared parameters; see
        `fedcore.methods.federated_em.personal`."""
        return personalise(self.config, state, block)

    def score_block(self, state: FederatedEMState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.federated_em.scores`."""
        return scores.evaluate_block(self.config, state, block)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return scores.table(self.config, statistics)

    def phase(self, state: FederatedEMState, message: Message) -> str:
        return state.phase
