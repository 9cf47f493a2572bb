"""The method `histograms`: private personalised histogram estimation and its non-private baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.histograms import choice, clients, personal, releases, scores, server, sizes, start, weights
from fedcore.methods.histograms.baselines import algorithm2, fedavg, ifca, published
from fedcore.methods.histograms.baselines import clients as baseline_clients
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.messages import ReleaseMessage, WeightsMessage
from fedcore.methods.histograms.result import result_of
from fedcore.methods.histograms.round_metrics import METRICS
from fedcore.methods.histograms.state import HistogramsState
from fedcore.population.blocks import ClientBlock, CountsBlock, Kind
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.messages import refuse_unless
from fedcore.rounds.method import ClientOutputs, Memory, Message, PrivateMethod, PublicFacts, RoundInfo, Worth
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The functions of one algorithm; each is a hook of the method with the settings as its first argument."""

    init: Callable[[HistogramsConfig, PublicFacts], HistogramsState]
    total_rounds: Callable[[HistogramsConfig, HistogramsState], int]
    message: Callable[[HistogramsConfig, HistogramsState], Message | None]
    server_update: Callable[[HistogramsConfig, HistogramsState, Mapping[str, Any]], tuple[HistogramsState, RoundInfo]]
    client_update: Callable[[Any, CountsBlock], Statistics] = baseline_clients.client_update


def _private_answer(message: ReleaseMessage | WeightsMessage, block: CountsBlock) -> Statistics:
    if isinstance(message, WeightsMessage):
        return weights.client_update(message, block)
    return clients.client_update(message, block)


ALGORITHMS = {
    "private": Algorithm(server.init, server.total_rounds, server.message, server.server_update, _private_answer),
    "algorithm2": Algorithm(algorithm2.init, algorithm2.total_rounds, algorithm2.message, algorithm2.server_update),
    "fedavg": Algorithm(fedavg.init, fedavg.total_rounds, fedavg.message, fedavg.server_update),
    "ifca": Algorithm(ifca.init, ifca.total_rounds, ifca.message, ifca.server_update),
    "published": Algorithm(published.init, published.total_rounds, published.message, published.server_update),
}
STARTING_WARM = ("private", "algorithm2")
NOT_PRIVATE = {
    "algorithm2": "Algorithm 2 publishes exact cluster means, and its start may publish clients' rows",
    "fedavg": "the exact mean of the clients' histograms is published",
    "ifca": "IFCA publishes centres made from exact sums, and its start may publish clients' rows",
}


class Histograms(PrivateMethod[HistogramsConfig, HistogramsState]):
    """K histograms that clients share, one for each cluster, and each client's mixture of its own with the cluster's.

    Source: Setlur, Feldman, Talwar, "Private and Personalized Histogram Estimation in a Federated Setting" (2023).
    `algorithm = "private"` is the pipeline of `fedcore.methods.histograms.server`, which replaces the paper's start and
    centring; its argument is `docs/privacy/histograms.md`. The other algorithms are the paper's own and its baselines.
    """

    name: ClassVar[str] = "histograms"
    kinds: ClassVar[tuple[Kind, ...]] = ("counts",)
    personalises_all_documents: ClassVar[bool] = True
    arithmetic_version: ClassVar[str] = "histograms-4"
    Config = HistogramsConfig
    State = HistogramsState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    setting_groups: ClassVar[Mapping[str, str]] = {
        "epsilon": "private: budget",
        "clusters": "sizes",
        "start": "start",
        "reduction": "reduction",
        "learning_rate": "ifca, published: steps and noise",
        "clip": "private: releases",
        "effective_tokens": "metric",
        "assignment_smoothing": "personalisation",
    }
    accepts_warm_start: ClassVar[bool] = True
    series_arrays: ClassVar[tuple[str, ...]] = start.SERIES_NAMES + start.LATER_NAMES
    feature_outputs: ClassVar[tuple[str, ...]] = ("estimate",)
    free_settings: ClassVar[tuple[str, ...]] = (
        "prior_tokens",
        "floor",
        "mixture_prior",
        "mixture_steps",
        "personalisation",
        "weights",
    )

    # --- privacy ----------------------------------------------------------------------------------------------------

    @property
    def private(self) -> bool:
        return self.config.algorithm == "private"

    @property
    def kept_beside(self) -> float:
        """What clients add to their cell, four bytes for a count and its token, which have eight."""
        return 0.5 if self.private else 0.0

    @property
    def not_private_because(self) -> str:
        if self.config.algorithm == "published":
            return published.not_private_because(self.config)
        return NOT_PRIVATE.get(self.config.algorithm, "")

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError if a private run has no budget or no nominal number of clients."""
        return releases.plan(self.config, public) if self.private else []

    def budget_sketch(self, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
        """The fields of `fedcore.methods.histograms.sizes.Sketch`, and whether `weights` are released, or why not."""
        sketch = sizes.budget_sketch(self.config, public, plan)
        return {**sketch, "weights": choice.in_words(self.config, public)} if self.private else sketch

    def worth(self, public: PublicFacts) -> Worth | None:
        """By the strength of the run's budget. Raises ConfigError as `plan` does."""
        if not self.private:
            return None
        worth = sizes.worth(self.config, public)
        return replace(worth, expect=f"{worth.expect}; {choice.in_words(self.config, public)}")

    # --- rounds -----------------------------------------------------------------------------------------------------

    @property
    def _algorithm(self) -> Algorithm:
        return ALGORITHMS[self.config.algorithm]

    def _scaled(self, state: HistogramsState) -> HistogramsConfig:
        """The settings with floors and smoothing for the run's vocabulary."""
        return self.config.for_vocabulary(len(state.mean))

    def init(self, public: PublicFacts) -> HistogramsState:
        """Raises ConfigError for a warm start that the algorithm cannot use."""
        if public.warm_start is not None and self.config.algorithm not in STARTING_WARM:
            raise ConfigError(
                f"algorithm {self.config.algorithm!r} does not accept a warm start.",
                f"Algorithms that do: {', '.join(STARTING_WARM)}.",
            )
        return self._algorithm.init(self.config, public)

    def total_rounds(self, state: HistogramsState) -> int:
        """Releases of a private run; otherwise the mean, the start and at most T rounds (reseeding comes on top)."""
        return self._algorithm.total_rounds(self.config, state)

    def message(self, state: HistogramsState) -> Message | None:
        return self._algorithm.message(self._scaled(state), state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        return self._algorithm.client_update(message, _counts(block)), None

    def check_message(self, message: Message, features: int) -> None:
        """Also unless arrays fit each other and the vocabulary: sparse products do not check their places."""
        super().check_message(message, features)
        if isinstance(message, ReleaseMessage):
            tokens = len(message.kept) + 1 if len(message.kept) else features
            refuse_unless(message.log_centres.shape == (tokens, message.cells), "cells")
            refuse_unless(message.whitening.shape == (tokens,), "whitening")

    def reads_heldout(self, message: Message) -> bool:
        """For the release of weights, and for all others where a client's halves are one whole."""
        return isinstance(message, WeightsMessage) or (isinstance(message, ReleaseMessage) and message.one_whole)

    def server_update(self, state: HistogramsState, result: Mapping[str, Any]) -> tuple[HistogramsState, RoundInfo]:
        return self._algorithm.server_update(self._scaled(state), state, result)

    def phase(self, state: HistogramsState, message: Message) -> str:
        """Of a private run with what is released in it."""
        return f"{state.phase}: {message.kind}" if isinstance(message, ReleaseMessage) else state.phase

    # --- warm starts ------------------------------------------------------------------------------------------------

    def warm_start_of(self, state: HistogramsState) -> dict[str, np.ndarray]:
        """Centres, mean, counts and the pool of the series."""
        return start.warm_start_of(state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """Histograms over so many tokens, renormalised; a pool as it is."""
        return start.checked_warm_start(arrays, what, features)

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray]:
        """Centres, and a pool of what has been released by then."""
        return start.likely_warm_start(self.config, public)

    # --- what a run has learnt --------------------------------------------------------------------------------------

    def outcome(self, state: HistogramsState) -> str:
        """Of a private run: its sizes, and the weight of the base in its estimates."""
        if not self.private:
            return ""
        a, c = personal.weights_used(self.config, state)
        cells = f"{state.clusters} clusters in {state.round} rounds" if state.round else "one mean"
        chosen = "released" if state.weights_multiplier and state.phase == "done" else "not released"
        if self.config.prior_tokens is not None or self.config.floor is not None:
            chosen = "of the settings"
        return f"{cells}; weight of the base (a + c m) / (a + m) with a = {a:g}, c = {c:g} ({chosen})"

    def result(self, state: HistogramsState, features: Features) -> Result:
        """The centres by the tokens that tell them from the mean."""
        return result_of(state, features)

    def free_settings_in_force(self, state: HistogramsState) -> dict[str, Any]:
        a, c = personal.weights_used(self.config, state)
        return super().free_settings_in_force(state) | {"prior_tokens": a, "floor": c}

    def personalise(self, state: HistogramsState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Per client: estimate (C, d) float32, cluster (C,) int32 (-1: no tokens), weight (C,) float64, and if centres
        are mixed, mixture (C, k + 1) float32.
        """
        return personal.personalise(self._scaled(state), state, _counts(block))

    def score_block(self, state: HistogramsState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.histograms.scores`."""
        return scores.score_block(self.config, state, _counts(block))

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        """Mean KL of every estimate. Raises PopulationError if nobody was evaluated."""
        return scores.score_table(self.config, statistics)

    def headline(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The personalised estimate that the settings ask for."""
        name, by = scores.run_of(self.config)
        return next((row for row in rows if row["method"] == name and row["chosen_by"] == by), rows[0])


def _counts(block: ClientBlock) -> CountsBlock:
    """The block of a population of counts: the engine opens no other for this method."""
    if not isinstance(block, CountsBlock):
        raise TypeError("histograms are made of counts")
    return block
