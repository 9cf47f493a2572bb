"""The method `mixed_effects`: regressions of clients whose coefficients scatter around common ones.

    start    every client answers with its own fit (`start`, `own_fits` of the rounds)
    trial    whether clients that are far out count less, by held-out rows (`robust_trial`), with robust = "auto"
    rounds   clients answer with sums, from which the next mean, covariance and noise follow

What is computed for one component is in `regression`, for several in `mixture`; `regression_rounds` and
`mixture_rounds` put it between messages, memories and states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixed_effects import mixture_rounds, regression_rounds, result, robust_trial
from fedcore.methods.mixed_effects.config import MOVED, MixedEffectsConfig
from fedcore.methods.mixed_effects.result import result_of
from fedcore.methods.mixed_effects.state import Message, MixedEffectsState, StartMessage
from fedcore.methods.mixture_models.endings import ending
from fedcore.methods.mixture_models.local_fits import compared_up_to
from fedcore.population.blocks import ClientBlock, Kind, RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory, NonPrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.results import Features, Metric, Result
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics

METRICS = (
    Metric(
        "movement",
        "Movement of the common coefficients",
        "",
        "How far common coefficients, or standard deviations around them, moved in each round.",
    ),
    Metric(
        "between_clients",
        "Standard deviation of clients' coefficients around the common ones",
        "",
        "Root mean square of all coefficients, in units of the noise.",
    ),
    Metric("apart", "Share of clients left apart", "", "Clients that do not count in the common coefficients."),
    Metric("active_clients", "Active clients", "", "Clients that took part in each round."),
    Metric("centre_step"),
    Metric("clients"),
    Metric("fitted"),
    Metric("gain", follows_data=True),
    Metric("log_likelihood", follows_data=True),
    Metric("noise"),
    Metric("robust"),
    Metric("rows"),
    Metric("second_starts"),
)


def first_state(config: MixedEffectsConfig, public: PublicFacts) -> MixedEffectsState:
    """Raises ConfigError if the population has no column for an input."""
    p = config.inputs(public.features)
    if p < 1:
        raise ConfigError(
            "a regression needs an input or an intercept, besides the response.",
            "Set intercept = true, or add a column.",
        )
    return MixedEffectsState(
        "start",
        0,
        public.seed,
        public.clients or 0,
        centres=np.zeros((0, p)),
        orders=np.zeros((0, config.components), np.int32),
    )


def start_message(config: MixedEffectsConfig, state: MixedEffectsState) -> StartMessage:
    """Asks all clients for their own fits, or those with the smallest uniform numbers."""
    return StartMessage(compared_up_to(state.seed, state.population, config.aligned_clients), state.seed)


class MixedEffects(NonPrivateMethod[MixedEffectsConfig, MixedEffectsState]):
    """Linear regressions of clients that differ: mean and covariance of their coefficients, estimated from sums.

    A client's coefficients are taken as beta_k ~ N(m, D) with a full D, and its rows as y = x.beta_k + N(0, s2). m, D
    and s2 are found by EM (Laird, Ware 1982); clients that are far out may count less. The response is the last column.
    """

    name: ClassVar[str] = "mixed_effects"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "mixed-effects-2"
    Config = MixedEffectsConfig
    State = MixedEffectsState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    main_settings: ClassVar[tuple[str, ...]] = ("components", "intercept", "robust", "rounds", "tolerance")
    moved_settings: ClassVar[Mapping[str, str]] = MOVED
    fixed_settings: ClassVar[Mapping[str, Any]] = {
        "alignment": "auto",
        "shuffles": MixedEffectsConfig.shuffles,
        "start_steps": MixedEffectsConfig.start_steps,
    }
    scores_use_memories: ClassVar[bool] = True

    @property
    def not_private_because(self) -> str:
        return "clients' own coefficients, or exact sums of them, reach the server without noise"

    # --- rounds -----------------------------------------------------------------------------------------------------

    def init(self, public: PublicFacts) -> MixedEffectsState:
        return first_state(self.config, public)

    def total_rounds(self, state: MixedEffectsState) -> int:
        trial = robust_trial.TRIAL_ROUNDS + 1 if self.config.robust == "auto" else 0
        return 1 + trial + self.config.rounds

    def message(self, state: MixedEffectsState) -> Message | None:
        if state.phase == "done":
            return None
        if state.phase == "start":
            return start_message(self.config, state)
        rounds = regression_rounds.message if self.config.components == 1 else mixture_rounds.message
        return rounds(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        rounds = regression_rounds.client_update if self.config.components == 1 else mixture_rounds.client_update
        return rounds(self.config, message, cast(RowsBlock, block), cast(Memory, memory))  # the start leaves a memory

    def server_update(self, state: MixedEffectsState, result: Mapping[str, Any]) -> tuple[MixedEffectsState, RoundInfo]:
        rounds = regression_rounds.server_update if self.config.components == 1 else mixture_rounds.server_update
        return rounds(self.config, state, result)

    def phase(self, state: MixedEffectsState, message: Message) -> str:
        return state.phase

    def clients_kept_apart(self, clients: int) -> int:
        """Those whose own fits are compared in the start."""
        return self.config.aligned_clients

    # --- what a run shows -------------------------------------------------------------------------------------------

    def outcome(self, state: MixedEffectsState) -> str:
        return ending("coefficients", state.round, self.config.rounds, state.moved, state.change)

    def result(self, state: MixedEffectsState, features: Features) -> Result:
        """Common coefficients and how clients differ from them; see `fedcore.methods.mixed_effects.result`."""
        return result_of(self.config, state, features)

    # --- for each client --------------------------------------------------------------------------------------------

    def personalise(self, state: MixedEffectsState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Coefficients, fitted values and distance; see `fedcore.methods.mixed_effects.result`."""
        return result.personalise(self.config, state, cast(RowsBlock, block), memory)

    def outlier_distances(self, state: MixedEffectsState, block: ClientBlock, memory: Memory | None) -> np.ndarray:
        """(C, R), 1 where a client begins to be apart."""
        result.check_started(state)
        rows = result.rows_of(self.config, state, cast(RowsBlock, block))
        return result.coefficients(self.config, state, rows, memory).distance

    # --- scores on held-out data ------------------------------------------------------------------------------------

    def score_block(self, state: MixedEffectsState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.mixed_effects.result`."""
        return result.score_block(self.config, state, cast(RowsBlock, block), memories)

    def score_table(self, statistics: Mapping[str, np.ndarray]) -> ScoreTable:
        return result.score_table(statistics)
