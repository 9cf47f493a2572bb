"""The method `paper_gradient_em`: `gradient_em`, and the methods that its paper compares it with, on the same starts.

What `gradient_em` does not have is in `rounds` (baselines), `tgmm`, `fedgmm`, `pooled`, and `authors` (`one_sweep`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from fedcore.papers.fedgrem.paper_gradient_em import authors, personal, rounds, scores, tgmm
from fedcore.papers.fedgrem.paper_gradient_em.config import PaperGradientEMConfig
from fedcore.papers.fedgrem.paper_gradient_em.messages import BaselineMessage, TotalsMessage
from fedcore.papers.fedgrem.paper_gradient_em.state import PaperGradientEMState

from fedcore.errors import ConfigError
from fedcore.methods.gradient_em import GradientEM, GradientEMState, server
from fedcore.methods.gradient_em.coordinates import coordinates_of
from fedcore.methods.gradient_em.messages import StartMessage
from fedcore.population.blocks import ClientBlock, RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory, PublicFacts, RoundInfo
from fedcore.rounds.results import Column, Features, Metric, Result, Table
from fedcore.rounds.scores import KnownMemories
from fedcore.rounds.statistics import Statistics


class PaperGradientEM(GradientEM):
    """The tables of the FedGrEM paper: FedGrEM, local and pooled EM, FedEM, TGMM and FedGMM from the same starts.

    Source: Tian, Weng, Feng, "Towards the Theory of Unsupervised Federated Learning" (2024), Section 4. For a model of
    your own clients use `gradient_em`.
    """

    name: ClassVar[str] = "paper_gradient_em"
    arithmetic_version: ClassVar[str] = "paper-gradient-em-1"
    Config = PaperGradientEMConfig
    State = PaperGradientEMState
    metrics: ClassVar[tuple[Metric, ...]] = (*GradientEM.metrics, Metric("sources"))
    main_settings: ClassVar[tuple[str, ...]] = ("algorithm", *GradientEM.main_settings[:7])
    moved_settings: ClassVar[Mapping[str, str]] = {}

    config: PaperGradientEMConfig

    # --- rounds -----------------------------------------------------------------------------------------------------

    def init(self, public: PublicFacts) -> PaperGradientEMState:
        return PaperGradientEMState.of(super().init(public))

    def total_rounds(self, state: GradientEMState) -> int:
        return rounds.total_rounds(self.config) if self.config.baseline else super().total_rounds(state)

    def message(self, state: GradientEMState) -> Any:
        if state.phase == "totals":
            return TotalsMessage(state.orders, state.centres, coordinates_of(state))
        if state.phase == "rounds" and self.config.baseline:
            return rounds.message(cast(PaperGradientEMState, state))
        return super().message(state)

    def client_update(
        self, message: Any, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        rows, known = cast(RowsBlock, block), cast(Memory, memory)  # the start leaves one
        if isinstance(message, StartMessage):
            return rounds.own_fits(self.config, message, rows)
        if isinstance(message, TotalsMessage):
            return tgmm.totals(message, rows, known)
        if isinstance(message, BaselineMessage):
            return rounds.client_round(self.config, message, rows, known)
        return super().client_update(message, block, memory)

    def server_update(self, state: GradientEMState, result: Mapping[str, Any]) -> tuple[GradientEMState, RoundInfo]:
        own = cast(PaperGradientEMState, state)
        if state.phase == "totals":
            return tgmm.after_totals(own, result)
        if state.phase == "start" and self.config.baseline:
            return rounds.after_start(self.config, own, result)
        if state.phase == "rounds" and self.config.baseline:
            return rounds.server_update(self.config, own, result)
        if state.phase == "rounds" and self.config.one_sweep:
            return server.gradient_round(self.config, state, result, authors.authors_sweep)
        return super().server_update(state, result)

    def clients_kept_apart(self, clients: int) -> int:
        return self.config.aligned_clients if self.config.baseline else super().clients_kept_apart(clients)

    # --- what a run shows -------------------------------------------------------------------------------------------

    def result(self, state: GradientEMState, features: Features) -> Result:
        """Of algorithms whose clients have no centres in common: how many fitted a model."""
        if not self.config.local or state.round < 1:
            return super().result(state, features)
        alone = (Column("clients", [int(state.clients)]), Column("rows", [int(state.rows)]))
        return Result((Table("clients", "Clients that fitted models of their own", alone),))

    # --- for each client --------------------------------------------------------------------------------------------

    def personalise(self, state: GradientEMState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        own = cast(PaperGradientEMState, state)
        return personal.personalise(self.config, own, cast(RowsBlock, block), memory)

    def outlier_distances(self, state: GradientEMState, block: ClientBlock, memory: Memory | None) -> np.ndarray:
        if self.config.baseline:
            raise ConfigError(
                "the run has no penalty that could leave clients apart.",
                'Name a run of paper_gradient_em with algorithm = "fedgrem".',
            )
        return super().outlier_distances(state, block, memory)

    # --- scores on held-out data ------------------------------------------------------------------------------------

    def score_block(self, state: GradientEMState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        own = cast(PaperGradientEMState, state)
        return scores.score_block(self.config, own, cast(RowsBlock, block), memories)
