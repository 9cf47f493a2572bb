"""The method `private_mixture`: a Gaussian mixture for data as they are, under differential privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedcore.methods.mixture_models.profiled import PROFILED_NAMES
from fedcore.methods.mixture_models.released import NATS_OF_NOISE
from fedcore.methods.private_mixture import clients, profiled, series, server, start
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.density import PrivateMixtureModel
from fedcore.methods.private_mixture.feasibility import worth
from fedcore.methods.private_mixture.fitted import fitted_model_of
from fedcore.methods.private_mixture.layout import declared_categories, layout_of, numbered
from fedcore.methods.private_mixture.personal import personalise
from fedcore.methods.private_mixture.plan import plan
from fedcore.methods.private_mixture.result import MORE, model_of, outcome_of, result_of, rows_left_out
from fedcore.methods.private_mixture.round_metrics import METRICS
from fedcore.methods.private_mixture.scores import score_block, score_table
from fedcore.methods.private_mixture.state import MixedState, PrivateMixtureState
from fedcore.population.blocks import ClientBlock, Kind, RowsBlock
from fedcore.population.columns import ColumnEntry
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.fitted import FittedMixture
from fedcore.rounds.method import ClientOutputs, Memory, Message, PrivateMethod, PublicFacts, RoundInfo, Worth
from fedcore.rounds.results import Features, Metric, Result, heaviest
from fedcore.rounds.scores import KnownMemories, ScoreTable
from fedcore.rounds.statistics import Statistics


class PrivateMixture(PrivateMethod[PrivateMixtureConfig, PrivateMixtureState]):
    """A Gaussian mixture under differential privacy: no bounds to declare, no separation to assume.

    Touching components are answered. Every row of finite numbers has a finite density. *Groups* of components are
    reported only where a calibrated test found a density dip. The outline of a run is in
    `fedcore.methods.private_mixture.plan`, the privacy argument in docs/privacy/private-mixture.md. The budget's unit
    may be a client or a record.
    """

    name: ClassVar[str] = "private_mixture"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "private-mixture-8"
    Config = PrivateMixtureConfig
    State: type[PrivateMixtureState] = PrivateMixtureState
    metrics: ClassVar[tuple[Metric, ...]] = METRICS
    main_settings: ClassVar[tuple[str, ...]] = (
        "epsilon",
        "nominal_clients",
        "nominal_records",
        "components",
        "alpha",
        "categories",
        "steps",
        "anyway",
    )
    streams_rows: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("client", "record")
    facts_in_state: ClassVar[tuple[str, ...]] = ("unit", "relation")
    accepts_warm_start: ClassVar[bool] = True
    warm_starts_for: ClassVar[tuple[str, ...]] = ("federated_em",)
    series_arrays: ClassVar[tuple[str, ...]] = (*series.WITH_ANSWERS, NATS_OF_NOISE)

    def __init__(self, config: PrivateMixtureConfig | None = None):
        super().__init__(config)
        if self.config.categories:
            self.State = MixedState

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError without a budget or a size, for too many columns, or for a relation or unit that the
        method does not know."""
        return plan(self.config, public)

    def settings_of_columns(self, columns: Sequence[ColumnEntry]) -> Mapping[str, Any]:
        """Declared categories and booleans, unless the settings say otherwise; names of columns with steps as
        numbers."""
        found: dict[str, Any] = {}
        if self.config.categories is None and (declared := declared_categories(columns)):
            found["categories"] = declared
        if self.config.steps:
            found["steps"] = numbered(self.config.steps, columns)
        return found

    def worth(self, public: PublicFacts) -> Worth:
        """By the noise of the plan; see `fedcore.methods.private_mixture.feasibility`."""
        return worth(self.config, public)

    def left_out(self, columns: Features) -> str:
        """No row with a number; what is done about missing ones."""
        categories = layout_of(self.config, columns.count).categories
        answers = " A missing category only gives no answer." if categories else ""
        return f"Missing numbers are filled by draws from the released mixture, given the rest of the row.{answers}"

    def init(self, public: PublicFacts) -> PrivateMixtureState:
        """Raises ConfigError for what `plan` refuses."""
        return server.init(self.config, public)

    def total_rounds(self, state: PrivateMixtureState) -> int:
        return len(server.context_of(self.config, state).design.phases)

    def message(self, state: PrivateMixtureState) -> Message | None:
        return server.message(self.config, state)

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        return clients.client_update(message, _rows(block)), None

    def server_update(
        self, state: PrivateMixtureState, result: Mapping[str, Any]
    ) -> tuple[PrivateMixtureState, RoundInfo]:
        return server.server_update(self.config, state, result)

    def model(self, state: PrivateMixtureState) -> PrivateMixtureModel:
        """The mixture of a finished run. Raises RunError before."""
        return model_of(self.config, state)

    def outcome(self, state: PrivateMixtureState) -> str:
        """How many components and groups there are, what was left out (columns, rows) or filled, and whether the
        expected utility is less than before the run."""
        return outcome_of(self.config, state)

    def rows_used(self, state: PrivateMixtureState) -> tuple[float, float] | None:
        """By the released count of rows and the declared number of clients or records."""
        share, error = rows_left_out(self.config, state)
        return None if share <= -MORE * error else (1.0 - max(share, 0.0), error)

    def result(self, state: PrivateMixtureState, features: Features) -> Result:
        """Weights, groups, means, standard deviations and correlations of the components, and the unimodality tests."""
        return result_of(self.config, state, features)

    def segments(self, state: PrivateMixtureState) -> Sequence[int]:
        """Components, the largest first."""
        return heaviest(len(state.means), state.weights[: len(state.means)], len(state.means))

    def fitted_model(self, state: PrivateMixtureState) -> FittedMixture:
        """The background is the last component. Raises RunError before the run has finished, ConfigError for one with
        categories or with columns that stand alone."""
        return fitted_model_of(self.config, state)

    def warm_start_of(self, state: PrivateMixtureState) -> dict[str, np.ndarray]:
        """Arrays from which the next run of the series continues, and federated EM may start; see
        `fedcore.methods.private_mixture.start`."""
        return start.warm_start_of(self.config, state)

    def checked_warm_start(self, arrays: Mapping[str, np.ndarray], what: str, features: int) -> dict[str, np.ndarray]:
        """Raises ConfigError for anything else than what a run of the series or a profile leaves."""
        layout = layout_of(self.config, features)
        if profiled.is_of_profile(arrays):
            profiled.checked(arrays, layout, what)
            return {name: np.asarray(arrays[name], np.float64) for name in PROFILED_NAMES}
        pool = series.checked(arrays, layout, self.config.components, what)
        return {name: np.asarray(arrays[name], np.float64) for name in series.names_of(pool)}

    def likely_warm_start(self, public: PublicFacts) -> dict[str, np.ndarray]:
        """As many components as are asked for."""
        return series.likely(self.config.components, layout_of(self.config, public.features))

    def personalise(self, state: PrivateMixtureState, block: ClientBlock, memory: Memory | None) -> ClientOutputs:
        """Components and groups of the clients' own rows, for them alone; see
        `fedcore.methods.private_mixture.personal`."""
        return personalise(model_of(self.config, state), _rows(block))

    def score_block(self, state: PrivateMixtureState, block: ClientBlock, memories: KnownMemories | None) -> Statistics:
        """See `fedcore.methods.private_mixture.scores`."""
        return score_block(model_of(self.config, state), _rows(block))

    def score_table(self, statistics: Mapping[str, Any]) -> ScoreTable:
        return score_table(statistics)

    def phase(self, state: PrivateMixtureState, message: Message) -> str:
        """Of the run: what the round asks for."""
        return str(message.kind)


def _rows(block: ClientBlock) -> RowsBlock:
    """The block. Raises TypeError unless it is one of rows."""
    if not isinstance(block, RowsBlock):
        raise TypeError(f"private_mixture reads blocks of rows, not {type(block).__name__}")
    return block
