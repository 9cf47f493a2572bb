"""How the columns of a table become columns of a population: numbers, dates, booleans and categories, with bounds.

This is the only place where the texts of CSV, JSON lines, Parquet and Arrow become values, but for plain numbers, which
Arrow parses. What becomes of a value follows from this value and from what is declared, and from no other row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, cast, get_args

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.choices import Outside, Spelling
from fedcore.population.columns import SECONDS_OF, SINCE, ColumnEntry, ColumnKind, DateUnit
from fedcore.population.identifiers import Rule
from fedcore.population.ingest.csv_blocks import MISSING, number
from fedcore.population.ingest.request import Bound
from fedcore.population.ingest.spellings import found_in
from fedcore.population.ingest.time_stamps import DAY, PER_SECOND
from fedcore.population.periods import Calendar
from fedcore.population.words import OTHER

TRUE = ("true", "t", "yes", "y", "1", "ja", "j", "wahr", "oui", "vrai", "si", "s\u00ec")
FALSE = ("false", "f", "no", "n", "0", "nein", "falsch", "non", "faux")
ISO, EITHER = "iso", "|"  # a form of dates, and what separates several
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Values = tuple[np.ndarray, np.ndarray, Callable[[int], str]]  # (n, width) float64; (n,) bool, bad; why a row is bad


@dataclass(frozen=True, slots=True)
class Reading:
    """A column of the source.

    kind:   number; boolean, 0 or 1; date, a number of `unit` since 1970; category, a column for each of `values`
    values: of a category. A value that is not among them makes a bad row, unless `<other>` is the last of them
    low, high: bounds; both None, or neither
    format: of dates in text, as strptime takes it; empty: ISO; several with `|` between them, of which the first that
            fits counts
    outside: what becomes of a value out of bounds, empty is "clip"; of a category, of one that is not in its list
    marks: of numbers in text, before decimal places and between thousands; empty: those of the file
    spelling, spellings: how values of a category may differ from its list, and pairs (spelling, value)
    A missing value is NaN, in all columns of a category.
    """

    of: str
    kind: ColumnKind = "number"
    unit: str = ""
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()
    format: str = ""
    outside: Outside | Literal[""] = ""
    marks: str = ""
    spelling: Spelling = "exact"
    spellings: tuple[tuple[str, str], ...] = ()

    @property
    def width(self) -> int:
        """Columns of the population that it becomes."""
        return len(self.values) if self.kind == "category" else 1

    @property
    def entries(self) -> tuple[ColumnEntry, ...]:
        """These columns."""
        if self.kind == "category":
            return tuple(
                ColumnEntry(
                    name=f"{self.of}={value}",
                    kind="category",
                    of=self.of,
                    value=value,
                    low=0.0,
                    high=1.0,
                    outside=self.outside,
                )
                for value in self.values
            )
        unit = f"{self.unit} {SINCE}" if self.kind == "date" else self.unit
        low, high = (0.0, 1.0) if self.kind == "boolean" else (self.low, self.high)
        entry = ColumnEntry(
            name=self.of,
            kind=self.kind,
            of=self.of,
            unit=unit,
            low=low,
            high=high,
            format=self.format,
            outside=self.outside,
        )
        return (entry,)

    def read(self, column, missing: frozenset[str]) -> Values:
        """column: an Arrow array, of numbers where the kind is number and it has no marks; those may be narrower than
        float64 if none is missing, and so may the values; missing: texts that stand for nothing"""
        if self.kind == "number" and not _is_text(column.type):
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
        if self.kind == "number":
            return number(one, (), self.marks[:1], self.marks[1:])
        if self.kind == "boolean":
            return float((*TRUE, *FALSE).index(one.lower()) < len(TRUE))
        if self.kind == "date":
            return float(self._seconds_in_unit(seconds_in(one, self.format)))
        held = found_in(one, self.values, self.spelling, self.spellings)
        if held is None and OTHER not in self.values and self.outside == "missing":
            return np.nan
        values = np.zeros(len(self.values))
        values[self.values.index(OTHER if held is None else held)] = 1.0
        return values

    def _seconds_in_unit(self, seconds):
        return seconds / SECONDS_OF[cast(DateUnit, self.unit)]

    def _fault(self, one: str) -> str:
        shown = f"{self.of} is {one[:40]!r}"
        if self.kind == "number":
            signs = " and ".join(repr(mark) for mark in self.marks)
            return f"{shown}, and no number with the mark{'s' if len(self.marks) > 1 else ''} {signs} (see marks, na)"
        if self.kind == "boolean":
            return f"{shown}, and neither true nor false (see categories, na)"
        if self.kind == "date":
            form = f"of the form {self.format.replace(EITHER, ' or ')}" if self.format else "in ISO form"
            return f"{shown}, and no date {form} (see formats, na)"
        return f"{shown}, which is not in its list (see outside, spelling, spellings, na, or add {OTHER})"


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
    """Seconds since 1970 of a date, or date and time; without a zone taken as UTC. format: as a `Reading` has it.
    Raises ValueError."""
    if EITHER in format:
        for each in format.split(EITHER):
            with suppress(ValueError):
                return seconds_in(one, each)
        raise ValueError(one)
    read = datetime.fromisoformat(one) if format in ("", ISO) else datetime.strptime(one, format)
    since = (read if read.tzinfo is not None else read.replace(tzinfo=UTC)) - EPOCH
    return since.total_seconds()


def _is_text(kind) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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


# --- declarations of them ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """What the user says of columns, by their names in the source.

    bounds: low and high, numbers or dates; units: of numbers, for people; dates: the unit of each, and after a comma
    its format; categories: the public list of its values; booleans: names; outside: of columns with bounds, and of
    categories
    marks, spelling, spellings: how the values are written in the files, which no population keeps
    """

    bounds: Mapping[str, tuple[Bound, Bound]] | None = None
    units: Mapping[str, str] | None = None
    dates: Mapping[str, str] | None = None
    categories: Mapping[str, Sequence[str]] | None = None
    booleans: Sequence[str] | None = None
    outside: Mapping[str, Outside] | None = None
    marks: Mapping[str, str] | None = None
    spelling: Mapping[str, Spelling] | None = None
    spellings: Mapping[str, Mapping[str, str]] | None = None

    @property
    def names(self) -> list[str]:
        """Every column with a declaration that a population keeps."""
        said = [*(self.bounds or ()), *(self.units or ()), *self.read_otherwise, *(self.outside or ())]
        return [*dict.fromkeys(said)]

    @property
    def written(self) -> list[str]:
        """Every column with a declaration of how its values are written."""
        return [*dict.fromkeys([*(self.marks or ()), *(self.spelling or ()), *(self.spellings or ())])]

    @property
    def read_otherwise(self) -> list[str]:
        """The columns that are not read as numbers. Raises IngestError if one is declared twice."""
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
    for name in (*said.names, *said.written):
        if name not in columns:
            raise IngestError(
                f"The column {name!r} has a declaration, but is not among the columns that are read.",
                f"The columns are {', '.join(columns[:20])}; add it (--columns), or remove its declaration.",
                remedy_without_values="Look at the first line of the files; or remove the declaration of that column.",
            )
    return as_written([_reading(name, said) for name in columns], said)


def as_written(readings: Sequence[Reading], said: Said) -> tuple[Reading, ...]:
    """The same readings, of values that are written as declared. Raises IngestError for what does not go together."""
    made, named = [], {reading.of for reading in readings}
    for name in said.written:
        if name not in named:
            raise IngestError(f"There is no column {name!r}, but it has a declaration.", "Remove its declaration.")
    for reading in readings:
        name = reading.of
        marks = (said.marks or {}).get(name, "")
        spelling, other = (said.spelling or {}).get(name, "exact"), (said.spellings or {}).get(name, {})
        if marks and (reading.kind != "number" or not _are_marks(marks)):
            raise IngestError(
                f"The column {name!r} cannot be read with the marks {marks!r}.",
                "Marks are for numbers: first the one before decimal places, then another one between thousands.",
            )
        if (spelling != "exact" or other) and reading.kind != "category":
            raise IngestError(f"The column {name!r} has spellings, and no list of values.", "Give its values.")
        if wrong := [one for one in other.values() if one not in reading.values]:
            raise IngestError(
                f"A spelling of the category {name!r} stands for {wrong[0]!r}, which is not in its list.", "Add it."
            )
        pairs = tuple((text(one), value) for one, value in other.items())
        made.append(replace(reading, marks=marks, spelling=spelling, spellings=pairs))
    return tuple(made)


def _are_marks(marks: str) -> bool:
    return len({*marks}) == len(marks) <= 2 and not any(one.isalnum() or one in "+-_" for one in marks)


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
    if (outside := (said.outside or {}).get(name)) is not None:
        if made.kind == "category" and (outside == "clip" or OTHER in made.values):
            raise IngestError(
                f"The category {name!r} cannot have outside = {outside!r}.",
                f'A value that is not in its list may be "missing" or "invalid", if {OTHER} is not in the list.',
            )
        if made.kind != "category" and name not in (said.bounds or {}):
            raise IngestError(f"The column {name!r} has no bounds to be outside of.", "Give its bounds.")
        usual = "invalid" if made.kind == "category" else "clip"
        made = replace(made, outside="" if outside == usual else outside)
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
            made[column.of] = replace(before, values=(*before.values, column.value or ""), outside=column.outside)
            continue
        unit = column.unit.removesuffix(f" {SINCE}") if column.kind == "date" else column.unit
        low, high = (None, None) if column.kind == "boolean" else (column.low, column.high)
        made[column.of] = Reading(column.of, column.kind, unit, low, high, format=column.format, outside=column.outside)
    return tuple(made.values())


def missing_texts(na: Sequence[str]) -> frozenset[str]:
    """Return the texts that are read as missing. na: texts in addition to the default ones"""
    return frozenset((*MISSING, *(one.strip() for one in na)))
