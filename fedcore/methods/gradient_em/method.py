"""The method `gradient_em`: FedGrEM.

moments, start, candidates   before the first round: `start`, `candidates`
rounds                       of Algorithm 1: `clients` and `server`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.gradient_em import clients, personal, server, start
from fedcore.methods.gradient_em.config import MOVED, GradientEMConfig
from fedcore.methods.gradient_em.coordinates import coordinates_of, to_data
from fedcore.methods.gradient_em.messages import CandidatesMessage, Message, MomentsMessage, StartMessage
from fedcore.methods.gradient_em.result import result_of
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.methods.mixture_models.endings import ending
from fedcore.population.blocks import ClientBlock, Kind, RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory, NonPrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

METRICS = (
    Metric("movement", "Movement of the common centres", "", "How far centres or parameters moved in each round."),
    Metric(
        "between_clients",
        "Standard deviation of clients' centres around the common ones",
        "",
        "For each coordinate, in units of the standard deviation within a component.",
    ),
    Metric(
        "apart",
        "Share of outlying estimates",
        "",
        "Estimates of clients that are farther from the common centre than the penalty reaches.",
    ),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric("centre_step"),
    Metric("clients"),
    Metric("diverged"),
    Metric("fitted"),
    Metric("gain", follows_data=True),
    Metric("held_out", follows_data=True),
    Metric("left_out"),
    Metric("log_likelihood", follows_data=True),
    Metric("rows"),
    Metric("second_starts"),
    Metric("spread"),
)


NOT_PRIVATE = "clients' centres, or exact sums of them, reach the server without noise"


class GradientEM(NonPrivateMethod[GradientEMConfig, GradientEMState]):
    """Penalised federated gradient EM for mixtures that are similar between clients; some clients may be outliers.

    Source: Tian, Weng, Feng, "Towards the Theory of Unsupervised Federated Learning: Non-asymptotic Analysis of
    Federated EM Algorithms" (2024), Algorithm 1. Weights of the components stay with the clients; centres are drawn
    towards a robust common centre.
    """

    name: ClassVar[str] = "gradient_em"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "gradient-em-5"
    Config = GradientEMConfig
    State = GradientEMState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    main_settings: ClassVar[tuple[str, ...]] = (
        "model",
        "components",
        "covariance",
        "standardise",
        "participation",
        "start",
        "rounds",
        "tolerance",
    )
    moved_settings: ClassVar[Mapping[str, str]] = MOVED
    scores_use_memories: ClassVar[bool] = True
    accepts_warm_start: ClassVar[bool] = True

    @property
    def not_private_because(self) -> str:
        return NOT_PRIVATE

    # --- rounds -----------------------------------------------------------------------------------------------------

    def init(self, public: PublicFacts) -> GradientEMState:
        return start.first_state(self.config, public)

    def total_rounds(self, state: GradientEMState) -> int:
        return server.total_rounds(self.config)

    def message(self, state: GradientEMState) -> Message | None:
        return server.message(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        rows = cast(RowsBlock, block)
        if isinstance(message, MomentsMessage):
            return start.moments(rows), None
        if isinstance(message, StartMessage):
            return start.own_fits(self.config, message, rows)
        known = cast(Memory, memory)  # the start leaves one
        if isinstance(message, CandidatesMessage):
            return start.client_round(self.config, message, rows, known)
        return clients.gradient_round(self.config, message, rows, known)

    def server_update(self, state: GradientEMState, result: Mapping[str, Any]) -> tuple[GradientEMState, RoundInfo]:
        return server.server_update(self.config, state, result)

    def phase(self, state: GradientEMState, message: Message) -> str:
        return state.phase

    def clients_kept_apart(self, clients: int) -> int:
        """In the start, those whose components are compared."""
        return self.config.variant.aligned_clients

    # --- what a run shows -------------------------------------------------------------------------------------------

    def outcome(self, state: GradientEMState) -> str:
        sampled = not self.config.exact_rounds
        return ending("centres", state.round, self.config.rounds, state.moved, state.change, sampled=sampled)

    def result(self, state: GradientEMState, features: Features) -> Result:
        """Common centres and how much clients differ from them; see `fedcore.methods.gradient_em.result`."""
        return result_of(self.config, state, features)

    # --- warm starts ------------------------------------------------------------------------------------------------

    def warm_start_of(self, state: GradientEMState) -> dict[str, np.ndarray]:
        """centres: (R, p) the common ones, in the units of the data unless clients' own units are used."""
        if not len(state.centres) or not state.clients:
            raise ConfigError("stopped before it had centres.", "Name a run that has.")
        return {"centres": to_data(self.config, coordinates_of(state), state.centres, None)}

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        return start.checked_centres(self.config, arrays, what, features)

    # --- for each client --------------------------------------------------------------------------------------------

    def personalise(self, state: GradientEMState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Parameters, labels and distance from the common centres; see `fedcore.methods.gradient_em.personal`."""
        return personal.personalise(self.config, state, cast(RowsBlock, block), memory)

    def outlier_distances(self, state: GradientEMState, block: ClientBlock, memory: Memory | None) -> np.ndarray:
        """(C, R) in units of that beyond which a client is apart."""
        own = personal.parameters(self.config, state, cast(RowsBlock, block), memory)
        return cast(np.ndarray, own.distance)

    # --- scores on held-out data ------------------------------------------------------------------------------------

    def score_block(self, state: GradientEMState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.gradient_em.personal`."""
        return personal.score_block(self.config, state, cast(RowsBlock, block), memories)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return personal.score_table(statistics)
