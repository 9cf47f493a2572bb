"""How the columns of a table become columns of a population: numbers, dates, booleans and categories, with bounds; and
how time stamps (ISO text, or dates and timestamps of Arrow) become numbers of calendar periods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import cast, get_args

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.columns import SECONDS_OF, SINCE, ColumnEntry, ColumnKind, DateUnit
from fedcore.population.identifiers import Rule
from fedcore.population.ingest.csv_blocks import MISSING
from fedcore.population.ingest.request import Bound
from fedcore.population.periods import Calendar, Stamp, stamp_in
from fedcore.population.words import OTHER

DAY = 86400
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
TRUE, FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Values = tuple[np.ndarray, np.ndarray, Callable[[int], str]]  # (n, width) float64; (n,) bool, bad; why a row is bad


@dataclass(frozen=True, slots=True)
class Reading:
    """A column of the source.

    kind:   number; boolean, 0 or 1; date, a number of `unit` since 1970; category, a column for each of `values`
    values: of a category. A value that is not among them makes a bad row, unless `<other>` is the last of them
    low, high: values outside of them are clipped; both None, or neither
    format: of dates in text, as strptime takes it; empty: ISO
    A missing value is NaN, in all columns of a category.
    """

    of: str
    kind: ColumnKind = "number"
    unit: str = ""
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()
    format: str = ""

    @property
    def width(self) -> int:
        """Columns of the population that it becomes."""
        return len(self.values) if self.kind == "category" else 1

    @property
    def entries(self) -> tuple[ColumnEntry, ...]:
        """These columns."""
        if self.kind == "category":
            return tuple(
                ColumnEntry(name=f"{self.of}={value}", kind="category", of=self.of, value=value, low=0.0, high=1.0)
                for value in self.values
            )
        unit = f"{self.unit} {SINCE}" if self.kind == "date" else self.unit
        low, high = (0.0, 1.0) if self.kind == "boolean" else (self.low, self.high)
        entry = ColumnEntry(name=self.of, kind=self.kind, of=self.of, unit=unit, low=low, high=high, format=self.format)
        return (entry,)

    def read(self, column, missing: frozenset[str]) -> Values:
        """column: an Arrow array, of numbers where the kind is number; missing: texts that stand for nothing"""
        if self.kind == "number":
            there = column.fill_null(np.nan) if column.null_count else column
            return there.to_numpy(zero_copy_only=False)[:, None], np.zeros(len(column), bool), str
        if self.kind == "date" and _is_time(column.type):
            return self._seconds_in_unit(_since(column))[:, None], np.zeros(len(column), bool), str
        coded = column.dictionary_encode()
        texts = [text(one) for one in coded.dictionary.to_pylist()]
        places = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False).astype(np.int64)
        table = np.full((len(texts) + 1, self.width), np.nan)
        faults = [""] * (len(texts) + 1)
        for place, one in enumerate(texts):
            if one in missing:
                continue
            try:
                table[place] = self._values_of(one)
            except (ValueError, OverflowError):
                faults[place] = self._fault(one)
        bad = np.array([bool(one) for one in faults])[places]
        return table[places], bad, lambda row: faults[int(places[row])]

    def _values_of(self, one: str) -> np.ndarray | float:
        if self.kind == "boolean":
            return float((*TRUE, *FALSE).index(one.lower()) < len(TRUE))
        if self.kind == "date":
            return float(self._seconds_in_unit(seconds_in(one, self.format)))
        held = one if one in self.values else OTHER
        values = np.zeros(len(self.values))
        values[self.values.index(held)] = 1.0
        return values

    def _seconds_in_unit(self, seconds):
        return seconds / SECONDS_OF[cast(DateUnit, self.unit)]

    def _fault(self, one: str) -> str:
        shown = f"{self.of} is {one[:40]!r}"
        if self.kind == "boolean":
            return f"{shown}, and neither true nor false"
        if self.kind == "date":
            return f"{shown}, and no date {f'of the form {self.format}' if self.format else 'in ISO form'}"
        return f"{shown}, which is not in its list"


@dataclass(frozen=True, slots=True)
class Kept:
    """How sources of a population are read besides what is requested.

    calendar: periods by which rows are dealt to entries; readings: of the columns of the version before; rule: how the
    ids of the clients are stored, as the request says if it is None
    """

    calendar: Calendar | None = None
    readings: tuple[Reading, ...] = ()
    rule: Rule | None = None


def text(one: object) -> str:
    """A value of a table as text."""
    return str(one).lower() if isinstance(one, bool) else str(one).strip()


def seconds_in(one: str, format: str = "") -> float:
    """Seconds since 1970 of a date, or date and time; without a zone taken as UTC. Raises ValueError."""
    read = datetime.strptime(one, format) if format else datetime.fromisoformat(one)
    since = (read if read.tzinfo is not None else read.replace(tzinfo=UTC)) - EPOCH
    return since.total_seconds()


def _is_time(kind) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _since(column) -> np.ndarray:
    """(n,) float64 seconds since 1970; NaN where missing."""
    import pyarrow as pa

    kind = column.type
    whole = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    numbers = column.cast(whole).cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    if pa.types.is_date(kind):
        return numbers * DAY if pa.types.is_date32(kind) else numbers / 10**3
    return numbers / PER_SECOND[kind.unit]


# --- what was said of them --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """What the user says of columns, by their names in the source.

    bounds: low and high, numbers or dates; units: of numbers, for people; dates: the unit of each, and after a comma
    its format; categories: the public list of its values; booleans: names
    """

    bounds: Mapping[str, tuple[Bound, Bound]] | None = None
    units: Mapping[str, str] | None = None
    dates: Mapping[str, str] | None = None
    categories: Mapping[str, Sequence[str]] | None = None
    booleans: Sequence[str] | None = None

    @property
    def names(self) -> list[str]:
        """Every column of which anything is said."""
        said = [*(self.bounds or ()), *(self.units or ()), *self.read_otherwise]
        return [*dict.fromkeys(said)]

    @property
    def read_otherwise(self) -> list[str]:
        """Those that are no numbers. Raises IngestError if one is said to be two things."""
        named = [*(self.dates or ()), *(self.categories or ()), *(self.booleans or ())]
        for name in named:
            if named.count(name) > 1:
                raise IngestError(
                    f"The column {name!r} is declared more than once as a date, a category or a boolean.",
                    "Declare it once.",
                )
        return named


def readings_of(columns: Sequence[str], said: Said) -> tuple[Reading, ...]:
    """How these columns of a source are read. Raises IngestError for what does not fit together."""
    for name in said.names:
        if name not in columns:
            raise IngestError(
                f"The column {name!r} has a declaration, but is not among the columns that are read.",
                f"The columns are {', '.join(columns[:20])}; add it (--columns), or remove its declaration.",
                remedy_without_values="Look at the first line of the files; or remove the declaration of that column.",
            )
    return tuple(_reading(name, said) for name in columns)


def _reading(name: str, said: Said) -> Reading:
    made = Reading(name, unit=(said.units or {}).get(name, ""))
    if name in (said.booleans or ()):
        made = replace(made, kind="boolean")
    elif name in (said.categories or {}):
        made = replace(made, kind="category", values=_checked_values(name, (said.categories or {})[name]))
    elif name in (said.dates or {}):
        unit, _, form = (said.dates or {})[name].partition(",")
        if unit not in get_args(DateUnit):
            raise IngestError(
                f"The date {name!r} cannot be counted in {unit!r}.", f"Use one of {', '.join(get_args(DateUnit))}."
            )
        made = replace(made, kind="date", unit=unit, format=form)
    if made.kind != "number" and name in (said.units or {}):
        raise IngestError(f"The column {name!r} is a {made.kind}, which has no unit.", "Leave the unit out.")
    if name not in (said.bounds or {}):
        return made
    if made.kind not in ("number", "date"):
        raise IngestError(f"The column {name!r} is a {made.kind}: its bounds are 0 and 1.", "Leave its bounds out.")
    low, high = (_bound(made, one) for one in (said.bounds or {})[name])
    if not low < high:
        raise IngestError(f"The bounds of {name!r} are {low:g} and {high:g}.", "The first one must be the smaller one.")
    return replace(made, low=low, high=high)


def _checked_values(name: str, values: Sequence[str]) -> tuple[str, ...]:
    listed = tuple(text(one) for one in values)
    if not listed or "" in listed or len(set(listed)) < len(listed):
        raise IngestError(
            f"The list of values of the category {name!r} is empty, or has an empty value or one twice.",
            "Name each of its values once; <other>, as the last one, stands for all others.",
        )
    if OTHER in listed[:-1]:
        raise IngestError(f"{OTHER} is not the last value of the category {name!r}.", "Write it last.")
    return listed


def _bound(reading: Reading, one: Bound) -> float:
    try:
        if reading.kind == "date" and isinstance(one, str):
            number = seconds_in(one) / SECONDS_OF[cast(DateUnit, reading.unit)]
        else:
            number = float(one)
    except ValueError:
        what = "an ISO date" if reading.kind == "date" else "a number"
        raise IngestError(
            f"The bound {one!r} of {reading.of!r} is not {what}.", "Bounds are two numbers, or of a date two ISO dates."
        ) from None
    if not math.isfinite(number):
        raise IngestError(f"A bound of {reading.of!r} is {number}.", "Bounds are finite numbers.")
    return number


def readings_again(columns: Sequence[ColumnEntry]) -> tuple[Reading, ...]:
    """How the columns of a population were read, for more of the same."""
    made: dict[str, Reading] = {}
    for column in columns:
        if column.kind == "category":
            before = made.get(column.of, Reading(column.of, "category"))
            made[column.of] = replace(before, values=(*before.values, column.value or ""))
            continue
        unit = column.unit.removesuffix(f" {SINCE}") if column.kind == "date" else column.unit
        low, high = (None, None) if column.kind == "boolean" else (column.low, column.high)
        made[column.of] = Reading(column.of, column.kind, unit, low, high, format=column.format)
    return tuple(made.values())


def missing_texts(na: Sequence[str]) -> frozenset[str]:
    """What stands for nothing. na: beside the usual ones"""
    return frozenset((*MISSING, *(one.strip() for one in na)))


# --- time stamps, by which rows are dealt to calendar periods ---------------------------------------------------------


def is_stamp(kind) -> bool:
    """Whether a column of this Arrow type can hold time stamps."""
    import pyarrow as pa

    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_date(kind) or types.is_timestamp(kind))


def period_of_each(column, calendar: Calendar) -> tuple[np.ndarray, Callable[[int], str]]:
    """((n,) int64, the period of each time stamp, 0 where it has none; why a row has none).

    column: an Arrow array; timestamps without a zone are taken as the clock of the calendar's zone shows them
    """
    import pyarrow as pa

    missing = column.is_null().to_numpy(zero_copy_only=False)
    unreadable = np.zeros(len(column), bool)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        coded = column.dictionary_encode()
        found = np.append(_of_texts(coded.dictionary.to_pylist(), calendar), 0)
        each = found[coded.indices.fill_null(len(found) - 1).to_numpy(zero_copy_only=False)]
        numbers, unreadable = np.maximum(each, 0), each < 0
    else:
        numbers = np.where(missing, 0, _of_numbers(column, calendar))

    def why(row: int) -> str:
        shown = column.slice(row, 1).cast(pa.string())[0].as_py()
        if missing[row] or not shown.strip():
            return "the time is missing"
        if unreadable[row]:
            return f"the time {shown!r} is no ISO date, or date and time"
        return f"the time {shown} lies outside of the calendar, {calendar}"

    return numbers, why


def _of_texts(texts: list[str], calendar: Calendar) -> np.ndarray:
    """(n,) int64, 0 outside of the calendar, -1 for what cannot be read."""
    read = [*map(_stamp, texts)]
    found = np.full(len(texts), -1, np.int64)
    found[np.array([stamp is not None for stamp in read], bool)] = calendar.of_stamps(
        [stamp for stamp in read if stamp is not None]
    )
    return found


def _stamp(text: str) -> Stamp | None:
    try:
        return stamp_in(text)
    except (ValueError, OverflowError):
        return None


def _of_numbers(column, calendar: Calendar) -> np.ndarray:
    import pyarrow as pa

    kind = column.type
    whole = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    since = column.cast(whole).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_date(kind):
        return calendar.of_days(since if pa.types.is_date32(kind) else since // (DAY * 10**3))
    seconds = since // PER_SECOND[kind.unit]
    return calendar.of_days(seconds // DAY) if kind.tz is None else calendar.of_instants(seconds)
