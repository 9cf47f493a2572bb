"""The method `profile`: a first look at a private table, from one release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from fedcore.methods.profile.clients import vector_of
from fedcore.methods.profile.config import ProfileConfig
from fedcore.methods.profile.layout import declared_categories, layout_of
from fedcore.methods.profile.plan import NAME, planned_release
from fedcore.methods.profile.result import noise_of_a_quantile, outcome_of, result_of
from fedcore.methods.profile.start import warm_start_of
from fedcore.methods.profile.state import ProfileState
from fedcore.population.blocks import ClientBlock, Kind, RowsBlock
from fedcore.population.columns import ColumnEntry
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import Memory, PrivateMethod, PublicFacts, RoundInfo, Worth
from fedcore.rounds.results import Features, Result
from fedcore.rounds.statistics import IntegerSum, Statistics

WORDS: tuple[tuple[float, str], ...] = ((0.01, "good"), (0.03, "fair"), (0.1, "weak"))  # largest noise of a share


@dataclass(frozen=True, slots=True)
class Message:
    """by_client: whether the unit of the budget is a client."""

    by_client: bool


class Profile(PrivateMethod[ProfileConfig, ProfileState]):
    """A first look at a private table: histograms, missing values, quantiles, categories and groups.

    One release of noisy counts. Every row counts: a missing value is counted as missing. Where columns have public
    bounds, their means are estimated too. The privacy argument is in docs/privacy/profile.md. The budget's unit may be
    a client or a record.
    """

    name: ClassVar[str] = "profile"
    kinds: ClassVar[tuple[Kind, ...]] = ("rows",)
    arithmetic_version: ClassVar[str] = "profile-1"
    Config = ProfileConfig
    State = ProfileState
    main_settings: ClassVar[tuple[str, ...]] = ("epsilon", "by", "nominal_clients", "anyway")
    streams_rows: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("client", "record")
    facts_in_state: ClassVar[tuple[str, ...]] = ("unit", "relation")
    usual_share: ClassVar[Fraction | None] = Fraction(1, 10)
    warm_starts_for: ClassVar[tuple[str, ...]] = ("private_mixture",)

    def plan(self, public: PublicFacts) -> Sequence[PlannedRelease]:
        """Raises ConfigError without a budget, or for settings that do not fit the columns."""
        return [planned_release(self.config, public)]

    def settings_of_columns(self, columns: Sequence[ColumnEntry]) -> Mapping[str, Any]:
        """Declared categories and bounds, unless the settings say otherwise; names in `by` as numbers of categories."""
        found: dict[str, Any] = {}
        declared = declared_categories(columns)
        if self.config.categories is None and declared:
            found["categories"] = tuple(declared.values())
            names = list(declared)
            found["by"] = tuple(str(names.index(name)) if name in names else name for name in self.config.by)
        if self.config.bounds is None and any(column.low is not None for column in columns):
            found["bounds"] = tuple(
                None if column.low is None or column.high is None else (column.low, column.high) for column in columns
            )
        return found

    def worth(self, public: PublicFacts) -> Worth | None:
        """By the noise in the share of rows below a number; None without a declared number of clients."""
        if public.nominal_clients is None:
            return None
        scale = planned_release(self.config, public).scale
        noise = noise_of_a_quantile(layout_of(self.config, public.features), scale) / public.nominal_clients
        word = next((word for most, word in WORDS if noise <= most), "none")
        expect = f"shares of all rows with noise of about {float(f'{100 * noise:.2g}'):g} percentage points"
        return Worth(word, expect, 100 * noise, "percentage points of a share")  # type: ignore[arg-type]

    def init(self, public: PublicFacts) -> ProfileState:
        """Raises ConfigError for what `plan` refuses."""
        noise = planned_release(self.config, public).scale
        return ProfileState(public.features, public.unit, public.relation, noise, np.zeros(0, np.int64))

    def total_rounds(self, state: ProfileState) -> int:
        return 1

    def message(self, state: ProfileState) -> Message | None:
        return None if len(state.released) else Message(state.unit == "client")

    def client_update(
        self, message: Message, block: ClientBlock, memory: Memory | None
    ) -> tuple[Statistics, Memory | None]:
        if not isinstance(block, RowsBlock):
            raise TypeError(f"profile reads blocks of rows, not {type(block).__name__}")
        layout = layout_of(self.config, block.features)
        return {NAME: IntegerSum(vector_of(layout, block, message.by_client))}, None

    def server_update(self, state: ProfileState, result: Mapping[str, Any]) -> tuple[ProfileState, RoundInfo]:
        return replace(state, released=np.array(result[NAME], np.int64)), RoundInfo()

    def warm_start_of(self, state: ProfileState) -> dict[str, np.ndarray]:
        """The range of each column; see `fedcore.methods.profile.start`."""
        return warm_start_of(self.config, state)

    def outcome(self, state: ProfileState) -> str:
        """How many units were counted, and in how many columns."""
        return outcome_of(self.config, state)

    def result(self, state: ProfileState, features: Features) -> Result:
        """Tables of columns, quantiles, point masses, categories and groups, and a figure of histograms."""
        return result_of(self.config, state, features)
