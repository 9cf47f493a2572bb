"""Cohorts of clients: one for each append, so that each has its own privacy budget.

New clients always follow known ones, so the clients of a cohort are ranges of indices. Nothing is stored for each
client. `order` of a manifest lists these ranges as pairs (cohort, number of clients). Cohort 0 stands for holes, whose
clients were forgotten. A population without a budget for each cohort has an order only if it has holes. All its other
clients are then in cohort 1.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedcore.storage.ranges import Ranges, holds, merged

FOUNDERS: Final = 1  # number of the cohort of all clients when cohorts began
HOLE: Final = 0
Order = tuple[tuple[int, int], ...]


class Cohort(BaseModel):
    """One cohort: the clients that came with one append.

    number:  counts from 1, the initial cohort. Each later append on a schedule opens the next one, also without new
             clients
    token:   128 random bits, by which a ledger notices that two copies of a population were appended to separately
    `nominal`: declared number of clients in this cohort, which is public; None: not declared
    opened:  day of the append, UTC, as YYYY-MM-DD; for an append by a pipeline, the day for which it was made
    period:  label of the calendar period, where the unit is a client's data in one period; else None
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    number: int = Field(ge=1)
    token: str = Field(pattern=r"^[0-9a-f]{32}$")
    nominal: int | None = Field(default=None, ge=0)
    opened: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    period: str | None = None


def opened(number: int, nominal: int | None, period: str | None = None, day: str | None = None) -> Cohort:
    """Return a cohort with this number and a new random token. day: on which it opens, YYYY-MM-DD; None: today."""
    day = day or datetime.now(UTC).date().isoformat()
    return Cohort(number=number, token=new_token(), nominal=nominal, opened=day, period=period)


def new_token() -> str:
    return secrets.token_hex(16)


def joined(order: Iterable[tuple[int, int]]) -> Order:
    """The order without empty runs, and with neighbours of one cohort as one run."""
    made: list[list[int]] = []
    for cohort, clients in order:
        if clients and made and made[-1][0] == cohort:
            made[-1][1] += clients
        elif clients:
            made.append([cohort, clients])
    return tuple((cohort, clients) for cohort, clients in made)


def fault(cohorts: Sequence[Cohort], order: Order, n_clients: int) -> str | None:
    """What contradicts itself in the cohorts of a manifest; None if nothing does."""
    if not cohorts and not order:
        return None
    if not cohorts and HOLE not in {cohort for cohort, _ in order}:
        return "there is an order of clients without cohorts"
    if [cohort.number for cohort in cohorts] != list(range(FOUNDERS, FOUNDERS + len(cohorts))):
        return "the cohorts are not numbered one by one from 1"
    if len({cohort.token for cohort in cohorts}) != len(cohorts):
        return "two cohorts have one token"
    if any(clients < 1 for _, clients in order) or sum(clients for _, clients in order) != n_clients:
        return f"the order of the cohorts does not hold {n_clients} clients"
    most = len(cohorts) or FOUNDERS
    if order != joined(order) or not all(HOLE <= cohort <= most for cohort, _ in order):
        return "the order of the cohorts has a run twice, or of a cohort that there is not"
    return None


def clients_of(order: Order, ranges: Ranges) -> Ranges:
    """Index ranges [first, stop) of the clients whose cohort is in one of `ranges` (first, last), merged, ascending.

    Holes belong to no range.
    """
    return _where(order, lambda cohort: cohort != HOLE and holds(ranges, cohort))


def holes_of(order: Order) -> Ranges:
    """Index ranges [first, stop) of the clients that were forgotten."""
    return _where(order, lambda cohort: cohort == HOLE)


def of_each(order: Order, first: int, clients: int) -> np.ndarray:
    """Return (clients,) int64: the cohorts of the clients from index `first` on. `Runs` has them for many blocks."""
    return Runs.of(order).of_each(first, clients)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """An order as arrays, from which the clients of a block are cut out without looking at all of its R runs.

    cohorts: (R,) int64
    bounds:  (R + 1,) int64, the clients before each run, and all of them
    """

    cohorts: np.ndarray
    bounds: np.ndarray

    @classmethod
    def of(cls, order: Order) -> Runs:
        numbers, clients = np.array(order, np.int64).reshape(-1, 2).T
        return cls(numbers, np.concatenate([[0], np.cumsum(clients)]))

    def between(self, first: int, stop: int) -> Order:
        """The order of the clients first .. stop - 1 alone."""
        numbers, held = self._cut(first, stop)
        return tuple(zip(numbers.tolist(), held.tolist(), strict=True))

    def of_each(self, first: int, clients: int) -> np.ndarray:
        """Return (clients,) int64: the cohorts of the clients from index `first` on."""
        return np.repeat(*self._cut(first, first + clients))

    def _cut(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        start = np.searchsorted(self.bounds, first, side="right") - 1
        end = np.searchsorted(self.bounds, stop)
        held = np.diff(np.clip(self.bounds[start : end + 1], first, stop))
        there = held > 0
        return self.cohorts[start:end][there], held[there]


def mask(ranges: Ranges, first: int, clients: int) -> np.ndarray:
    """Return (clients,) bool: which clients, counted from index `first`, are in these ranges [first, stop)."""
    bounds = np.array(ranges, np.int64).ravel()
    return np.searchsorted(bounds, np.arange(first, first + clients), side="right") % 2 == 1


def covered(ranges: Ranges, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Return (B,) bool: which of the ranges first .. stop - 1, of a client at least, are in one of `ranges`
    [first, stop), which are merged."""
    bounds = np.array(ranges, np.int64).ravel()
    at = np.searchsorted(bounds, first, side="right")
    return (at % 2 == 1) & (np.searchsorted(bounds, stop) == at)


def _where(order: Order, chosen: Callable[[int], bool]) -> Ranges:
    made, first = [], 0
    for cohort, clients in order:
        if chosen(cohort):
            made.append((first, first + clients - 1))
        first += clients
    return tuple((low, high + 1) for low, high in merged(made))
