"""The columns of a population of rows: their names, units and public bounds, and how each was derived from its source.

All of this is public, as the data owner declares at ingest: names and bounds are in the manifest, in results and in
statements. Values are stored in the units that are stated here, so no result needs to be converted back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedcore.population.choices import DateUnit, Outside

ColumnKind = Literal["number", "boolean", "date", "category"]
SECONDS_OF: Final[dict[DateUnit, float]] = {
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
    "days": 86400.0,
    "years": 365.25 * 86400.0,
}
SINCE: Final = "since 1970"  # what the unit of a date says after it


class ColumnEntry(BaseModel):
    """One column.

    name:   unique in the population
    kind:   "number"; "boolean", 0 or 1; "date", a number of `unit` since 1970-01-01T00:00Z; "category", 1 where the
            source's column holds `value`, else 0
    of:     the column of the source that it was derived from
    unit:   of its values, for display; empty if it was not declared
    low, high: public bounds, both or neither; every stored value is within them
    value:  of a category, else None
    format: of a date that was read from text in another form than ISO's, as strptime takes it, or several with `|`
            between them; else empty
    outside: what happens to a value out of bounds, or to one that is not in the list of the category; empty: the value
            is clipped, or its row is invalid
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str = Field(min_length=1)
    kind: ColumnKind = "number"
    of: str = Field(min_length=1)
    unit: str = ""
    low: float | None = None
    high: float | None = None
    value: str | None = None
    format: str = ""
    outside: Outside | Literal[""] = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("it has one bound, and both go together")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError("its lower bound is not below its upper one")
        if (self.value is None) == (self.kind == "category"):
            raise ValueError("a value goes with a category")
        if self.format and self.kind != "date":
            raise ValueError("a format goes with a date")
        return self


class Bounds(NamedTuple):
    """low, high: (features,) float64, infinite where a column has none."""

    low: np.ndarray
    high: np.ndarray

    @property
    def everywhere(self) -> bool:
        """Whether every column has bounds."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())


def bounds_of(columns: Sequence[ColumnEntry]) -> Bounds | None:
    """The bounds of the columns; None if none has any."""
    if all(column.low is None for column in columns):
        return None
    low = np.array([-np.inf if column.low is None else column.low for column in columns])
    high = np.array([np.inf if column.high is None else column.high for column in columns])
    return Bounds(low, high)


def fault(columns: Sequence[ColumnEntry], rows: bool, features: int) -> str:
    """Why these cannot be the columns of a population; empty if they can, or if there are none."""
    if not columns:
        return ""
    if not rows:
        return "columns go with kind 'rows'"
    if len(columns) != features:
        return f"{len(columns)} columns are named, and it has {features}"
    name, times = Counter(column.name for column in columns).most_common(1)[0]
    return f"the column {name!r} is named twice" if times > 1 else ""


def image_fault(image: tuple[int, int], rows: bool, features: int) -> str:
    """Why rows cannot be pictures of this (height, width), grey or with three colours a pixel; empty if they can."""
    height, width = image
    if min(image) < 1:
        return f"a picture of {height} x {width} has no pixel"
    if not rows:
        return "pictures go with kind 'rows'"
    return (
        ""
        if features in (height * width, 3 * height * width)
        else f"a picture of {height} x {width} is not a row of {features} columns"
    )
