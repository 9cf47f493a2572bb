"""Settings of the method `private_mixture`: one validated model for the TOML file, the command line and the flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedcore.rounds.cohort_settings import ABLE, AtLeast, ChosenCohorts, Horizon, RecentCohorts

Categories: TypeAlias = tuple[tuple[int, ...], ...]  # the columns of each
Steps: TypeAlias = tuple[tuple[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], ...]  # by column


def _pairs(given: Any) -> Any:
    return tuple(sorted((str(name), step) for name, step in given.items())) if isinstance(given, Mapping) else given


class PrivateMixtureConfig(BaseModel):
    """A Gaussian mixture under differential privacy, with no bounds to declare and no separation to assume."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    components: int = Field(8, ge=1, le=32, description="components of the mixture, at most")
    alpha: float = Field(
        0.01, gt=0, lt=0.5, description="chance of claiming separate groups where there is one with a single peak"
    )
    depth: float = Field(
        0.6, gt=0, lt=1, description="a valley parts groups if it is at most this share of the lower peak beside it"
    )
    rounds: int = Field(5, ge=1, le=20, description="rounds of EM")
    categories: Categories | None = Field(
        None,
        description="columns of each category, from 0: one of 0 and 1 for each of its values, or a single one; None: "
        "the categories and booleans that the population declares; []: all columns are numbers",
    )
    steps: Annotated[Steps, BeforeValidator(_pairs)] = Field(
        (),
        description="of columns whose numbers come in steps, such as whole ones: {age = 1, price = 0.05}, each known "
        "without the data",
    )

    # the budget
    epsilon: float | None = Field(
        None, gt=0, le=100, description="this run's share of the population's budget; None: all that is left"
    )
    horizon: Horizon = None
    at_least: AtLeast = None
    recent_cohorts: RecentCohorts = None
    cohorts: ChosenCohorts = ABLE
    nominal_clients: int | None = Field(
        None, ge=1, description="public size of the population; None: as declared in the manifest"
    )
    nominal_records: int | None = Field(
        None, ge=1, description="public number of records, if the budget is for records; None: as many as clients"
    )
    anyway: bool = Field(False, description="make a run also if its budget is too small for it to be of any use")
    spare_releases: int = Field(
        0,
        ge=0,
        le=10,
        description="releases set aside beyond the plan, to draw one again that a crash lost. The "
        "releases of this method have unequal prices and a spare costs as much as the dearest",
    )
