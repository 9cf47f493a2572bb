"""Settings of the method `private_mixture`: one validated model for the TOML file, the command line and the flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from fedcore.rounds.private_settings import PrivateRunSettings

Categories: TypeAlias = tuple[tuple[int, ...], ...]  # the columns of each
Steps: TypeAlias = tuple[tuple[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], ...]  # by column


def _pairs(given: Any) -> Any:
    return tuple(sorted((str(name), step) for name, step in given.items())) if isinstance(given, Mapping) else given


class PrivateMixtureConfig(PrivateRunSettings):
    """A Gaussian mixture under differential privacy, with no bounds to declare and no separation to assume."""

    components: int = Field(8, ge=1, le=32, description="maximum number of components")
    alpha: float = Field(
        0.01, gt=0, lt=0.5, description="false-positive rate: chance of separate groups where there is only one peak"
    )
    depth: float = Field(
        0.6, gt=0, lt=1, description="a density dip separates groups if it is at most this fraction of the lower peak"
    )
    rounds: int = Field(5, ge=1, le=20, description="rounds of EM")
    categories: Categories | None = Field(
        None,
        description="columns of each category, counted from 0: one column of 0 and 1 for each of its values, or a "
        "single column; None: the categories and booleans that the population declares; []: all columns are numbers",
    )
    steps: Annotated[Steps, BeforeValidator(_pairs)] = Field(
        (),
        description="rounding step of each column with whole or rounded numbers, such as {age = 1, price = 0.05}; must "
        "be known without the data",
    )

    # the budget
    nominal_records: int | None = Field(
        None, ge=1, description="declared number of records, if the budget is for records; None: as many as clients"
    )
