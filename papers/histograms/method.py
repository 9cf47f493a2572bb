"""The method `paper_histograms`: the algorithms of Setlur, Feldman and Talwar (2023) and their baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from fedcore.papers.histograms import algorithms, clients, published
from fedcore.papers.histograms.config import Algorithm2, FedAvg, Noisy, PaperHistogramsConfig

from fedcore.errors import ConfigError
from fedcore.methods.histograms import personal, scores, start
from fedcore.methods.histograms.config import OutputSettings
from fedcore.methods.histograms.method import counts_of
from fedcore.methods.histograms.result import result_of
from fedcore.methods.histograms.state import HistogramsState
from fedcore.population.blocks import ClientBlock, Kind
from fedcore.rounds.method import ClientOutputs, Memory, Message, NonPrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

NOT_PRIVATE = {
    "algorithm2": "Algorithm 2 publishes exact cluster means, and its start may publish clients' rows",
    "fedavg": "the exact mean of the clients' histograms is published",
    "ifca": "IFCA publishes centres made from exact sums, and its start may publish clients' rows",
}
METRICS = (
    Metric(
        "objective",
        "Objective",
        "nats per client",
        "Objective of the training data after each round.",
        follows_data=True,
    ),
    Metric("movement", "Movement of the centres", "total variation", "How far the centres moved in each round."),
    Metric("cell", follows_data=True),
    Metric("chosen"),
    Metric("clients", follows_data=True),
    Metric("empty_clusters", follows_data=True),
    Metric("entropy", follows_data=True),
    Metric("kept_mass", follows_data=True),
    Metric("kept_tokens"),
    Metric("misfit", follows_data=True),
    Metric("noise_multiplier"),
    Metric("released_count"),
)


class PaperHistograms(NonPrivateMethod[PaperHistogramsConfig, HistogramsState]):
    """Clusters of histograms by the algorithms of a paper and by its baselines, without privacy.

    Source: Setlur, Feldman, Talwar, "Private and Personalized Histogram Estimation in a Federated Setting" (2023). The
    private method is `histograms`.
    """

    name: ClassVar[str] = "paper_histograms"
    kinds: ClassVar[tuple[Kind, ...]] = ("counts",)
    personalises_all_documents: ClassVar[bool] = True
    arithmetic_version: ClassVar[str] = "paper-histograms-1"
    Config = PaperHistogramsConfig
    State = HistogramsState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    accepts_warm_start: ClassVar[bool] = True
    warm_starts_for: ClassVar[tuple[str, ...]] = ("histograms",)
    feature_outputs: ClassVar[tuple[str, ...]] = ("estimate",)
    free_settings: ClassVar[tuple[str, ...]] = ("prior_tokens", "floor", "weights")
    main_settings: ClassVar[tuple[str, ...]] = ("algorithm", "clusters", "rounds", "start", *free_settings)

    @property
    def not_private_because(self) -> str:
        algorithm = self.config.algorithm
        return published.not_private_because(algorithm) if isinstance(algorithm, Noisy) else NOT_PRIVATE[algorithm.name]

    # --- rounds -----------------------------------------------------------------------------------------------------

    @property
    def _algorithm(self) -> ModuleType:
        """The functions init, total_rounds, message and server_update of the algorithm."""
        return published if isinstance(self.config.algorithm, Noisy) else algorithms

    def init(self, public: PublicFacts) -> HistogramsState:
        """Raises ConfigError for settings or a warm start that do not suit the population."""
        if public.warm_start is not None and not isinstance(self.config.algorithm, Algorithm2):
            raise ConfigError(
                f"algorithm {self.config.algorithm.name!r} does not accept a warm start.", "Algorithm algorithm2 does."
            )
        state: HistogramsState = self._algorithm.init(self.config.algorithm, public)
        return state

    def total_rounds(self, state: HistogramsState) -> int:
        """The mean, the start and at most T rounds; rounds that fill empty clusters are not counted."""
        rounds: int = self._algorithm.total_rounds(self.config.algorithm, state)
        return rounds

    def message(self, state: HistogramsState) -> Message | None:
        return self._algorithm.message(self.config.algorithm, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        return clients.client_update(message, counts_of(block)), None

    def server_update(self, state: HistogramsState, result: Mapping[str, Any]) -> tuple[HistogramsState, RoundInfo]:
        after: tuple[HistogramsState, RoundInfo] = self._algorithm.server_update(self.config.algorithm, state, result)
        return after

    def phase(self, state: HistogramsState, message: Message) -> str:
        return state.phase

    # --- warm starts ------------------------------------------------------------------------------------------------

    def warm_start_of(self, state: HistogramsState) -> dict[str, np.ndarray]:
        """Centres, mean and counts."""
        return start.warm_start_of(state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """Histograms over so many tokens, renormalised."""
        return start.checked_warm_start(arrays, what, features)

    # --- what a run has learnt --------------------------------------------------------------------------------------

    def result(self, state: HistogramsState, features: Features) -> Result:
        """The centres by the tokens that distinguish them from the mean."""
        return result_of(state, features)

    def free_settings_in_force(self, state: HistogramsState) -> dict[str, Any]:
        a, c = personal.weights_used(self._outputs(state), state)
        return super().free_settings_in_force(state) | {"prior_tokens": a, "floor": c}

    def personalise(self, state: HistogramsState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """As `fedcore.methods.histograms.method.Histograms.personalise`."""
        return personal.personalise(self._outputs(state), state, counts_of(block))

    def score_block(self, state: HistogramsState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.histograms.scores`."""
        return scores.score_block(self._outputs(state), state, counts_of(block), self._estimates)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        """Mean KL of every estimate. Raises PopulationError if no client was evaluated."""
        return scores.score_table(self.config.outputs(1), statistics, self._estimates)

    def headline(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The personalised estimate that the settings ask for."""
        return scores.row_of(scores.run_of(self.config.outputs(1), self._estimates), rows)

    def _outputs(self, state: HistogramsState) -> OutputSettings:
        return self.config.outputs(len(state.mean))

    @property
    def _estimates(self) -> tuple[str, ...]:
        return scores.ESTIMATES[:1] if isinstance(self.config.algorithm, FedAvg) else scores.ESTIMATES
