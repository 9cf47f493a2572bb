"""Settings of the method `profile`: one validated model for the TOML file, the command line and the flow."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from fedcore.rounds.private_settings import PrivateRunSettings

Categories: TypeAlias = tuple[tuple[int, ...], ...]  # the columns of each
Range: TypeAlias = tuple[float, float] | None


def _names(given: Any) -> Any:
    return tuple(name.strip() for name in given.split(",")) if isinstance(given, str) else given


def _in_order(bounds: tuple[Range, ...] | None) -> tuple[Range, ...] | None:
    for one in bounds or ():
        if one is not None and not -1e300 < one[0] < one[1] < 1e300:
            raise ValueError(f"the bounds {one[0]:g} and {one[1]:g} are not two finite numbers, the lower one first")
    return bounds


class ProfileConfig(PrivateRunSettings):
    """A first look at a private table. One noisy release gives histograms, missing values, quantiles and counts."""

    epsilon: float | None = Field(
        None, gt=0, le=100, description="this run's part of the population's budget; None: a tenth of the whole budget"
    )
    by: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        (),
        max_length=2,
        description="names of one or two categories: sizes, means and quantiles for each of their values",
    )
    categories: Categories | None = Field(
        None,
        description="columns of each category, counted from 0: one column of 0 and 1 for each of its values, or a "
        "single column; None: the categories and booleans that the population declares; []: all columns are numbers",
    )
    bounds: Annotated[tuple[Range, ...] | None, AfterValidator(_in_order)] = Field(
        None,
        description="public lower and upper bound of each column, null for a column without; None: as the population "
        "declares",
    )
