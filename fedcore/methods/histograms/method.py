"""The method `histograms`: private personalised histogram estimation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedcore.methods.histograms import clients, personal, releases, scores, server, sizes, start, weights
from fedcore.methods.histograms.config import FIXED, MOVED, HistogramsConfig
from fedcore.methods.histograms.pool import separation
from fedcore.methods.histograms.result import result_of
from fedcore.methods.histograms.state import HistogramsState, ReleaseMessage, WeightsMessage
from fedcore.population.blocks import ClientBlock, CountsBlock, Kind
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.messages import refuse_unless
from fedcore.rounds.method import ClientOutputs, Memory, Message, PrivateMethod, PublicFacts, RoundInfo, Worth
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

METRICS = (
    Metric("movement", "Movement of the centres", "total variation", "How far the centres moved in each round."),
    Metric("floor"),
    Metric("kept_tokens"),
    Metric("live_cells"),
    Metric("margin"),
    Metric("noise_multiplier"),
    Metric("prior_tokens"),
    Metric("released_count"),
)


class Histograms(PrivateMethod[HistogramsConfig, HistogramsState]):
    """K histograms that clients share, one for each cluster, and each client's mixture of cluster and own counts.

    Source: Setlur, Feldman, Talwar, "Private and Personalized Histogram Estimation in a Federated Setting" (2023), with
    another start and other releases (`fedcore.methods.histograms.server`); argued in `docs/privacy/histograms.md`.
    """

    name: ClassVar[str] = "histograms"
    kinds: ClassVar[tuple[Kind, ...]] = ("counts",)
    personalises_all_documents: ClassVar[bool] = True
    arithmetic_version: ClassVar[str] = "histograms-7"
    Config = HistogramsConfig
    State = HistogramsState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    main_settings: ClassVar[tuple[str, ...]] = (
        "epsilon",
        "nominal_clients",
        "clusters",
        "reduction",
        "personalisation",
        "prior_tokens",
        "floor",
        "anyway",
    )
    moved_settings: ClassVar[Mapping[str, str]] = MOVED
    fixed_settings: ClassVar[Mapping[str, Any]] = FIXED
    accepts_warm_start: ClassVar[bool] = True
    warm_starts_for: ClassVar[tuple[str, ...]] = ("paper_histograms",)
    series_arrays: ClassVar[tuple[str, ...]] = start.SERIES_NAMES + start.LATER_NAMES
    feature_outputs: ClassVar[tuple[str, ...]] = ("estimate",)
    free_settings: ClassVar[tuple[str, ...]] = ("prior_tokens", "floor", "personalisation", "weights")

    # --- privacy ----------------------------------------------------------------------------------------------------

    @property
    def kept_beside(self) -> float:
        """What clients add to their cell, four bytes for a count and its token, which have eight."""
        return 0.5

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError without a budget or a declared number of clients."""
        return releases.plan(self.config, public)

    def budget_sketch(self, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
        """The fields of `fedcore.methods.histograms.sizes.Sketch`, and whether `weights` are released, or why not."""
        sketch = sizes.budget_sketch(self.config, public, plan)
        return {**sketch, "weights": weights.in_words(self.config, public)}

    def worth(self, public: PublicFacts) -> Worth:
        """By the strength of the run's budget. Raises ConfigError as `plan` does."""
        worth = sizes.worth(self.config, public)
        return replace(worth, expect=f"{worth.expect}; {weights.in_words(self.config, public)}")

    # --- rounds -----------------------------------------------------------------------------------------------------

    def _scaled(self, state: HistogramsState) -> HistogramsConfig:
        """The settings with floors and smoothing for the run's vocabulary."""
        return self.config.for_vocabulary(len(state.mean))

    def init(self, public: PublicFacts) -> HistogramsState:
        return server.init(self.config, public)

    def total_rounds(self, state: HistogramsState) -> int:
        return server.total_rounds(state)

    def message(self, state: HistogramsState) -> Message | None:
        return server.message(self._scaled(state), state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        answer = weights.client_update if isinstance(message, WeightsMessage) else clients.client_update
        return answer(message, counts_of(block)), None

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
        return server.server_update(self._scaled(state), state, result)

    def phase(self, state: HistogramsState, message: Message) -> str:
        """With what is released in the round."""
        return state.phase

    # --- warm starts ------------------------------------------------------------------------------------------------

    def warm_start_of(self, state: HistogramsState) -> dict[str, np.ndarray]:
        """Centres, mean, counts and the pool of the series."""
        return start.warm_start_of(state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """Histograms over the run's tokens, renormalised; a pool as it is."""
        return start.checked_warm_start(arrays, what, features)

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray]:
        """Centres, and a pool of what has been released by then."""
        return start.likely_warm_start(self.config, public)

    # --- what a run has learnt --------------------------------------------------------------------------------------

    def outcome(self, state: HistogramsState) -> str:
        """The sizes of the run and the weight of the base in its estimates, and how sure both are."""
        a, c = personal.weights_used(self.config.outputs, state)
        cells = f"{state.clusters} clusters in {state.round} rounds" if state.round else "one mean"
        pool = server.live_cells(state)
        if len(pool) > 1:
            apart = separation(pool, state.metric)
            cells += f", the most similar two differ by {apart:.2g} standard deviations of noise"
        chosen = "not released"
        if state.weights_multiplier and state.phase == "done":
            better = max(state.margin, 0.0)
            chosen = f"released; the best pair wins by {better:.2g} standard deviations of noise over the usual one"
        if self.config.prior_tokens is not None or self.config.floor is not None:
            chosen = "of the settings"
        return f"{cells}; weight of the base (a + c m) / (a + m) with a = {a:g}, c = {c:g} ({chosen})"

    def result(self, state: HistogramsState, features: Features) -> Result:
        """The centres by the tokens that distinguish them from the mean."""
        return result_of(state, features)

    def free_settings_in_force(self, state: HistogramsState) -> dict[str, Any]:
        a, c = personal.weights_used(self.config.outputs, state)
        return super().free_settings_in_force(state) | {"prior_tokens": a, "floor": c}

    def personalise(self, state: HistogramsState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Per client: estimate (C, d) float32, cluster (C,) int32 (-1: no tokens), weight (C,) float64, and if centres
        are mixed, mixture (C, k + 1) float32.
        """
        return personal.personalise(self._scaled(state).outputs, state, counts_of(block))

    def score_block(self, state: HistogramsState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.histograms.scores`."""
        return scores.score_block(self._scaled(state).outputs, state, counts_of(block))

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        """Mean KL of every estimate. Raises PopulationError if no client was evaluated."""
        return scores.score_table(self.config.outputs, statistics)

    def headline(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The personalised estimate that the settings ask for."""
        return scores.row_of(scores.run_of(self.config.outputs), rows)


def counts_of(block: ClientBlock) -> CountsBlock:
    """The block of a population of counts: the engine opens no other for this method."""
    if not isinstance(block, CountsBlock):
        raise TypeError("histograms are made of counts")
    return block
