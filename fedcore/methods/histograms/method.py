"""The method `histograms`: private personalised histogram estimation and its non-private baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.histograms import baselines, given, ifca, private, published, scores, sketch, warm
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.personal import personalise
from fedcore.methods.histograms.result import result_of
from fedcore.methods.histograms.round_metrics import METRICS
from fedcore.methods.histograms.sizes import sizes_of
from fedcore.methods.histograms.state import HistogramsState
from fedcore.population.blocks import ClientBlock, Kind
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import ClientOutputs, Memory, Message, PrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

PIPELINES = {"private": private, "algorithm2": warm, "fedavg": baselines, "ifca": ifca, "published": published}
STARTS = ("private", "algorithm2")  # from given centres
NOT_PRIVATE = {
    "algorithm2": "Algorithm 2 publishes exact cluster means, and its start may publish clients' rows",
    "fedavg": "the exact mean of the clients' histograms is published",
    "ifca": "IFCA publishes centres made from exact sums, and its start may publish clients' rows",
}


class Histograms(PrivateMethod[HistogramsConfig, HistogramsState]):
    """K histograms that clients share, one for each cluster, and each client's mixture of its own with the cluster's.

    Source: Setlur, Feldman, Talwar, "Private and Personalized Histogram Estimation in a Federated Setting" (2023).
    `algorithm = "private"` is the pipeline of `fedcore.methods.histograms.private`, which replaces the paper's start
    and
    centring; its argument is `docs/privacy/histograms.md`. The other algorithms are the paper's own and its baselines.
    """

    name: ClassVar[str] = "histograms"
    kinds: ClassVar[tuple[Kind, ...]] = ("counts",)
    arithmetic_version: ClassVar[str] = "histograms-1"
    Config = HistogramsConfig
    State = HistogramsState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    accepts_warm_start: ClassVar[bool] = True

    @property
    def private(self) -> bool:
        return self.config.algorithm == "private"

    @property
    def not_private_because(self) -> str:
        if self.config.algorithm == "published":
            return published.reasons(self.config)
        return NOT_PRIVATE.get(self.config.algorithm, "")

    @property
    def _pipeline(self):
        return PIPELINES[self.config.algorithm]

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError if a private run has no budget or no nominal number of clients."""
        return private.plan(self.config, public) if self.private else []

    def init(self, public: PublicFacts) -> HistogramsState:
        """Raises ConfigError for given centres (public.warm_start) that the algorithm cannot start from."""
        if public.warm_start is not None and self.config.algorithm not in STARTS:
            raise ConfigError(
                f"algorithm {self.config.algorithm!r} does not start from given centres.",
                f"Algorithms that do: {', '.join(STARTS)}.",
            )
        return self._pipeline.init(self.config, public)

    def total_rounds(self, state: HistogramsState) -> int:
        """Releases of a private run; otherwise the mean, the start and at most T rounds (reseeding comes on top)."""
        if self.private:
            return len(state.multipliers)
        return self._pipeline.total_rounds(self.config, state)

    def message(self, state: HistogramsState) -> Message | None:
        return self._pipeline.message(self._config(state), state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        return self._pipeline.client_update(message, block), None

    def server_update(self, state: HistogramsState, result: Mapping[str, Any]) -> tuple[HistogramsState, RoundInfo]:
        return self._pipeline.server_update(self._config(state), state, result)

    def warm_start_of(self, state: HistogramsState) -> dict[str, np.ndarray]:
        """Centres, mean and counts."""
        return given.start_of(state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """Histograms over so many tokens, renormalised."""
        return given.checked_arrays(arrays, what, features)

    def personalise(self, state: HistogramsState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Per client: estimate (C, d) float32, cluster (C,) int32 (-1: no tokens), weight (C,) float64."""
        return personalise(self._config(state), state, block)

    def _config(self, state: HistogramsState) -> HistogramsConfig:
        return self.config.for_vocabulary(len(state.mean))

    def score_block(self, state: HistogramsState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.histograms.scores`."""
        return scores.evaluate_block(self.config, state, block)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return scores.table(self.config, statistics)

    def headline(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The personalised estimate that the settings ask for."""
        base = {"centre": "Algorithm 2", "mixture": "Local mixture"}[self.config.personalisation]
        name = f"{'FedAvg' if self.config.algorithm == 'fedavg' else base} + FT"
        by = "each client" if self.config.weights == "local" else ""
        return next((row for row in rows if row["method"] == name and row["chosen_by"] == by), rows[0])

    def phase(self, state: HistogramsState, message: Message) -> str:
        """Of a private run with what is released in it."""
        return f"{state.phase}: {message.kind}" if isinstance(message, private.ReleaseMessage) else state.phase

    def budget_sketch(self, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
        """See `fedcore.methods.histograms.sketch`."""
        return sketch.budget_sketch(self.config, public, plan)

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray]:
        """As many centres as an equal run would have."""
        clusters = sizes_of(self.config, public).clusters
        return {"centres": np.full((clusters, public.features), 1.0 / public.features)}

    def result(self, state: HistogramsState, features: Features) -> Result:
        return result_of(state, features)
