"""The method `private_gmm`: a mixture of separated Gaussians, learned under differential privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedcore.methods.private_gmm import schedule, scores, server, statistics
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.personal import personalise
from fedcore.methods.private_gmm.result import PrivateMixture, result_of
from fedcore.methods.private_gmm.round_metrics import METRICS
from fedcore.methods.private_gmm.start import start_of
from fedcore.methods.private_gmm.state import PrivateGMMState
from fedcore.population.blocks import ClientBlock, Kind
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import ClientOutputs, Memory, Message, PrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.results import Metric
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics


class PrivateGMM(PrivateMethod[PrivateGMMConfig, PrivateGMMState]):
    """A mixture of separated Gaussians under differential privacy, by recursive partition of the rows.

    Source: Kamath, Sheffet, Singhal, Ullman, "Differentially Private Algorithms for Learning Mixtures of Separated
    Gaussians" (2019); this is its skeleton (bound, project, terrific ball, split, recurse, estimate) with statistics
    that are all sums, so that it runs over clients and its noise is Gaussian throughout. The argument is
    docs/privacy/private-gmm.md. The budget's unit may be a client or a record. A run without a result ends cleanly and
    says so.
    """

    name: ClassVar[str] = "private_gmm"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "private-gmm-1"
    Config = PrivateGMMConfig
    State = PrivateGMMState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    streams_rows: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("client", "record")
    warm_starts_for: ClassVar[tuple[str, ...]] = ("federated_em",)

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError without a budget or a radius, or for a relation or unit that the method does not know."""
        return schedule.plan(self.config, public)

    def init(self, public: PublicFacts) -> PrivateGMMState:
        return server.init(self.config, public)

    def total_rounds(self, state: PrivateGMMState) -> int:
        return len(server.passes_of(self.config, state))

    def message(self, state: PrivateGMMState) -> Message | None:
        return server.message(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        return statistics.client_update(message, block), None

    def server_update(self, state: PrivateGMMState, result: Mapping[str, Any]) -> tuple[PrivateGMMState, RoundInfo]:
        return server.server_update(self.config, state, result)

    def mixture(self, state: PrivateGMMState) -> PrivateMixture:
        """The mixture of a finished run, or why there is none."""
        return result_of(self.config.covariance, state)

    def outcome(self, state: PrivateGMMState) -> str:
        """How many components were found; or that none were, and what would be enough."""
        return state.reason

    def warm_start_of(self, state: PrivateGMMState) -> dict[str, np.ndarray]:
        """What federated EM may start from. Raises ConfigError if the run has found nothing."""
        return start_of(self.config.covariance, state)

    def personalise(self, state: PrivateGMMState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Labels of the clients' own rows, for them alone; see `fedcore.methods.private_gmm.personal`."""
        return personalise(self.mixture(state), block)

    def score_block(self, state: PrivateGMMState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.private_gmm.scores`."""
        return scores.evaluate_block(self.config, state, block)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return scores.table(self.config, statistics)

    def phase(self, state: PrivateGMMState, message: Message) -> str:
        """Of the search, and the pass of a level within it."""
        return f"{state.phase}: {message.kind}"
