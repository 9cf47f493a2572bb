"""Entries of one client and one calendar period, for budgets whose privacy unit is such an entry.

The operator declares the calendar, from its first to its last period. It is never taken from the data, and also
contains periods without data. Every period is a cohort. The id of an entry is `LABEL/CLIENT`, as in `2026-03/u17`, so
the id alone determines the cohort.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from typing import Final, NamedTuple, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedcore.population.choices import PeriodUnit
from fedcore.population.identifiers import Rule, spelled
from fedcore.storage.ranges import Ranges

UNITS: Final[tuple[PeriodUnit, ...]] = get_args(PeriodUnit)
EXAMPLES: Final = {"day": "2026-03-15", "week": "2026-W11", "month": "2026-03", "quarter": "2026-Q1", "year": "2026"}
MOST: Final = 1 << 15  # periods of a calendar
EPOCH: Final = date(1970, 1, 1)
BETWEEN: Final = "/"  # label and client; no label holds it


class Periods(BaseModel):
    """How the rows of a population are dealt to periods.

    column: of the time stamp; unit: of the calendar; zone: whose days these are, a name of the IANA database
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    column: str
    unit: PeriodUnit
    zone: str


def label_of(entry: str) -> str:
    """The label in the id of an entry; empty if there is none."""
    label, between, _ = entry.partition(BETWEEN)
    return label if between else ""


def client_of(entry: str) -> str:
    """The client in the id of an entry."""
    return entry.partition(BETWEEN)[2]


def clients_of(ids: list[str], entries: bool) -> list[str]:
    """The clients whose ids these are, or, of entries, that are in them."""
    return [client_of(one) for one in ids] if entries else ids


def stored_ids(ids: list[str], rule: Rule, entries: bool) -> list[str]:
    """Ids as a population stores them (`fedcore.population.identifiers.spelled`). entries: they are ids of entries, in
    which the rule applies to the client alone. Raises PopulationError for an id that the rule refuses.
    """
    made = spelled(clients_of(ids, entries), rule)
    if not entries:
        return made
    return [f"{label_of(one)}{BETWEEN}{own}" if one else one for one, own in zip(ids, made, strict=True)]


# --- labels -----------------------------------------------------------------------------------------------------------


def _first_day(unit: PeriodUnit, label: str) -> date:
    """Raises ValueError unless the label is one of this unit, spelled as `label_at` does."""
    if unit == "day":
        found = date.fromisoformat(label)
    elif unit == "week":
        found = datetime.strptime(f"{label}-1", "%G-W%V-%u").date()
    elif unit == "quarter":
        year, _, quarter = label.partition("-Q")
        found = date(int(year), 3 * int(quarter) - 2, 1)
    else:
        found = datetime.strptime(label, "%Y-%m" if unit == "month" else "%Y").date()
    if label_at(unit, found) != label:
        raise ValueError(label)
    return found


def label_at(unit: PeriodUnit, day: date) -> str:
    """The label of the period that holds this day."""
    if unit == "day":
        return day.isoformat()
    if unit == "week":
        year, week, _ = day.isocalendar()
        return f"{year:04d}-W{week:02d}"
    if unit == "quarter":
        return f"{day.year:04d}-Q{(day.month + 2) // 3}"
    return f"{day.year:04d}-{day.month:02d}" if unit == "month" else f"{day.year:04d}"


def _next_first_day(unit: PeriodUnit, day: date) -> date:
    if unit in ("day", "week"):
        return date.fromordinal(day.toordinal() + (1 if unit == "day" else 7))
    months = {"month": 1, "quarter": 3, "year": 12}[unit]
    after = 12 * day.year + day.month - 1 + months
    return date(after // 12, after % 12 + 1, 1)


def labels_in_words(unit: PeriodUnit, first: str, ranges: Ranges) -> str:
    """Format numbers of periods in a calendar that begins with the label `first`, as "2026-01 to 2026-03, 2026-06";
    "none" for no number. Works also for periods that are not declared yet. Raises ValueError for an invalid label and
    for a number below 1.
    """
    if any(low < 1 for low, _ in ranges):
        raise ValueError("periods are numbered from 1")
    day, number, wanted = _first_day(unit, first), 1, {number for pair in ranges for number in pair}
    labels: dict[int, str] = {}
    while wanted - labels.keys():
        labels[number] = label_at(unit, day)
        day, number = _next_first_day(unit, day), number + 1
    return (
        ", ".join(labels[low] if low == high else f"{labels[low]} to {labels[high]}" for low, high in ranges) or "none"
    )


def _first_days(unit: PeriodUnit, first: str, through: str) -> list[date]:
    """First days of the periods from `first` to `through`, and of the one after. Raises ValueError with the reason."""
    bounds = []
    for label in (first, through):
        try:
            bounds.append(_first_day(unit, label))
        except ValueError:
            raise ValueError(f"{label!r} is no {unit}; one is {EXAMPLES[unit]}") from None
    days = [bounds[0]]
    try:
        while days[-1] <= bounds[1] and len(days) <= MOST:
            days.append(_next_first_day(unit, days[-1]))
    except ValueError:
        raise ValueError(f"no {unit} follows {through}") from None
    if len(days) == 1:
        raise ValueError(f"{through} is before {first}")
    if days[-1] <= bounds[1]:
        raise ValueError(f"there are more than {MOST} of them")
    return days


def fault(periods: Periods | None, labels: Sequence[str | None]) -> str | None:
    """What contradicts itself in the labels of a manifest's cohorts; None if nothing does."""
    if periods is None:
        return "a cohort has a calendar period, and the population has none" if any(labels) else None
    if not labels or labels[0] is None or labels[-1] is None:
        return "a cohort has no calendar period"
    try:
        days = _first_days(periods.unit, labels[0], labels[-1])
    except ValueError as error:
        return f"the calendar of the cohorts is none: {error}"
    if [label_at(periods.unit, day) for day in days[:-1]] != list(labels):
        return "the periods of the cohorts do not follow each other"
    return None


# --- which period a time stamp is in ----------------------------------------------------------------------------------


class Stamp(NamedTuple):
    """A time stamp in text. instant: seconds since 1970, if it says how far it is from UTC; day: else, since 1970, by
    the clock of wherever it was written"""

    instant: int | None
    day: int | None


def stamp_in(text: str) -> Stamp:
    """Of an ISO date, or date and time. Raises ValueError."""
    read = datetime.fromisoformat(text.strip())
    if read.tzinfo is None:
        return Stamp(None, (read.date() - EPOCH).days)
    since = read - datetime(1970, 1, 1, tzinfo=UTC)
    return Stamp(since.days * 86400 + since.seconds, None)


@dataclass(frozen=True, slots=True)
class Calendar:
    """Consecutive periods, numbered from 1.

    days:    (n + 1,) int64, days since 1970 of the first day of each, and of the day after the last
    seconds: (n + 1,) int64, seconds since 1970 at which these days begin in the zone

    A time stamp that says how far it is from UTC is an instant; any other is taken as the clock of the zone shows it.
    """

    unit: PeriodUnit
    zone: str
    labels: tuple[str, ...]
    days: np.ndarray
    seconds: np.ndarray

    @classmethod
    def between(cls, unit: PeriodUnit, zone: str, first: str, through: str) -> Calendar:
        """The periods from one label to another. Raises ValueError with the reason if there are none."""
        known = _zone(zone)
        days = _first_days(unit, first, through)
        labels = tuple(label_at(unit, day) for day in days[:-1])
        begins = [round(datetime(day.year, day.month, day.day, tzinfo=known).timestamp()) for day in days]
        since = [(day - EPOCH).days for day in days]
        return cls(unit, zone, labels, np.array(since, np.int64), np.array(begins, np.int64))

    def of_days(self, days: np.ndarray) -> np.ndarray:
        """(n,) int64, numbers of the periods of days since 1970 by the zone's clock; 0 outside of the calendar."""
        return self._within(self.days, days)

    def of_instants(self, seconds: np.ndarray) -> np.ndarray:
        """(n,) int64, numbers of the periods of instants, whole seconds since 1970; 0 outside of the calendar."""
        return self._within(self.seconds, seconds)

    def of_stamps(self, stamps: Sequence[Stamp]) -> np.ndarray:
        """(n,) int64, numbers of the periods of time stamps in text; 0 outside of the calendar."""
        says = np.array([stamp.instant is not None for stamp in stamps], bool)
        values = np.array([stamp.day if stamp.instant is None else stamp.instant for stamp in stamps], np.int64)
        return np.where(says, self.of_instants(values), self.of_days(values))

    def _within(self, bounds: np.ndarray, values: np.ndarray) -> np.ndarray:
        number = np.searchsorted(bounds, values, side="right").astype(np.int64)
        return np.where(number <= len(self.labels), number, 0)

    def numbers(self, entries: Iterable[str]) -> np.ndarray:
        """(n,) int64, the period of each entry's id. Raises KeyError with the label of one that there is not."""
        number = {label: place for place, label in enumerate(self.labels, 1)}
        return np.fromiter((number[label_of(one)] for one in entries), np.int64)

    def __str__(self) -> str:
        return f"{self.labels[0]} to {self.labels[-1]} ({self.zone})"


def _zone(name: str) -> tzinfo:
    """Raises ValueError."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"this machine knows no time zone {name!r}; one is Europe/Zurich") from None


def calendar_of(periods: Periods, labels: Sequence[str | None], through: str | None = None) -> Calendar:
    """The calendar of a manifest; through: up to this period instead. Raises ValueError with the reason."""
    first, last = str(labels[0]), str(labels[-1])
    made = Calendar.between(periods.unit, periods.zone, first, through or last)
    if len(made.labels) < len(labels):
        raise ValueError(f"{through} is before {last}, which was declared, and a calendar only grows")
    return made
