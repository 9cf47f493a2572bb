"""Declarations of calendar periods, checked against each other and against the population that is appended to."""

from __future__ import annotations

from dataclasses import dataclass

from fedcore.errors import IngestError
from fedcore.population.ingest.request import CalendarPeriods, IngestRequest
from fedcore.population.periods import Calendar, Periods, calendar_of
from fedcore.population.store import Population


@dataclass(frozen=True, slots=True)
class Dealt:
    """How a source is dealt to entries; nothing if it is not.

    calendar: all periods of the version that is made; labels: those that are new in it
    """

    period: Periods | None = None
    calendar: Calendar | None = None
    labels: tuple[str, ...] = ()


def declared(parent: Population | None, request: IngestRequest) -> Dealt:
    """The calendar of a version that is made, or appended to `parent`. Raises IngestError if it does not fit."""
    if parent is not None:
        return _going_on(parent, request)
    if request.period is None:
        if said := _first_said(request):
            raise IngestError(f"The option {said!r} needs a period.", "Pass one, such as --period month.")
        return Dealt()
    if request.time is None or request.first is None or request.through is None:
        raise IngestError(
            "A calendar is declared, and not taken from the data: by the column of the time, the first and the last "
            "period.",
            "Give --time COLUMN --from LABEL --through LABEL, such as --from 2025-01 --through 2026-03.",
        )
    period = Periods(column=request.time, unit=request.period, zone=request.zone or "UTC")
    try:
        made = Calendar.between(period.unit, period.zone, request.first, request.through)
    except ValueError as error:
        raise _no_calendar(error) from None
    return Dealt(period, made, made.labels)


def _going_on(parent: Population, request: IngestRequest) -> Dealt:
    old = parent.manifest
    if old.period is None:
        if said := _first_said(request):
            raise IngestError(
                f"The population {parent.path} has clients, not entries of periods: {said!r} cannot be set.",
                "Its rows have no time stamps any more: make another population.",
            )
        return Dealt()
    labels = [cohort.period for cohort in old.cohorts]
    fixed = {"period": old.period.unit, "time": old.period.column, "zone": old.period.zone, "first": labels[0]}
    for name, before in fixed.items():
        if (now := getattr(request, name)) not in (None, before):
            raise IngestError(
                f"The population {parent.path} was made with {name} {before!r}, and is appended to with {now!r}.",
                "Leave it out; only the end of a calendar moves (through).",
            )
    try:
        made = calendar_of(old.period, labels, request.through)
    except ValueError as error:
        raise _no_calendar(error) from None
    new = made.labels[len(labels) :]
    if request.declared_clients is not None and not new:
        raise IngestError(
            "The declared number of clients is that of the new periods, and this version declares no period.",
            "Leave it out, or extend the calendar (through).",
        )
    return Dealt(old.period, made, new)


def _first_said(request: IngestRequest) -> str | None:
    return next((name for name in CalendarPeriods.model_fields if getattr(request, name) is not None), None)


def _no_calendar(error: ValueError) -> IngestError:
    return IngestError(f"There is no such calendar: {error}.", "Correct the labels, or the zone.")
