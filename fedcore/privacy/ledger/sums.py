"""Exact sums for every cohort at once.

A run costs the same to all cohorts of a range, so that the sums are a step function of the cohort's number, and only
its steps are kept. An account that is not kept by cohort is one of a single cohort, the founders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from fedcore.population.cohorts import FOUNDERS
from fedcore.storage.ranges import Ranges

EVERYBODY: Ranges = ((FOUNDERS, FOUNDERS),)  # charged for a run that names no cohorts


class Totals(NamedTuple):
    """Exact sums of one cohort, or what a run adds to them."""

    rho_spent: Fraction = Fraction(0)
    rho_reserved: Fraction = Fraction(0)
    delta_spent: Fraction = Fraction(0)
    delta_reserved: Fraction = Fraction(0)


@dataclass(slots=True)
class Sums:
    """Totals of the cohorts 1, 2, ...; at first all are zero.

    steps: by what cohort k has more than cohort k - 1 (which is less where it is negative), where that is not zero
    """

    steps: dict[int, Totals] = field(default_factory=dict)

    def add(self, ranges: Ranges, price: Totals) -> None:
        """Add to every cohort of `ranges` (first, last), both included."""
        for first, last in ranges:
            self._step(first, price)
            self._step(last + 1, Totals(*(-value for value in price)))

    def take_away(self, other: Sums) -> None:
        """Subtract from every cohort what it has in `other`."""
        for cohort, step in list(other.steps.items()):
            self._step(cohort, Totals(*(-value for value in step)))

    def _step(self, cohort: int, change: Totals) -> None:
        step = _plus(self.steps.get(cohort, Totals()), change)
        if any(step):
            self.steps[cohort] = step
        else:
            self.steps.pop(cohort, None)

    def pieces(self, last: int) -> Iterator[tuple[int, int, Totals]]:
        """(first, last, totals) of consecutive cohorts that have the same, from 1 to `last`."""
        first, totals = 1, Totals()
        for cohort in sorted(self.steps):
            if cohort > last:
                break
            if first < cohort:
                yield first, cohort - 1, totals
            first = cohort
            totals = _plus(totals, self.steps[cohort])
        yield first, last, totals

    def most(self, ranges: Ranges) -> tuple[Fraction, Fraction]:
        """The largest (rho, delta), spent and reserved, that one cohort of these ranges has: each for itself."""
        found = [
            totals
            for first, last, totals in self.pieces(ranges[-1][1])
            if any(low <= last and first <= high for low, high in ranges)
        ]
        return max(t.rho_spent + t.rho_reserved for t in found), max(t.delta_spent + t.delta_reserved for t in found)

    def copy(self) -> Sums:
        return Sums(dict(self.steps))


def side_by_side(one: Sums, other: Sums, last: int) -> Iterator[tuple[int, int, Totals, Totals]]:
    """(first, last, totals in one, totals in the other) of consecutive cohorts that have the same in both."""
    pairs, others = one.pieces(last), other.pieces(last)
    (first, end, mine), (_, other_end, theirs) = next(pairs), next(others)
    while True:
        until = min(end, other_end)
        yield first, until, mine, theirs
        if until == last:
            return
        first = until + 1
        if end == until:
            _, end, mine = next(pairs)
        if other_end == until:
            _, other_end, theirs = next(others)


def _plus(one: Totals, other: Totals) -> Totals:
    """Their sums; most parts are zero, and adding fractions takes its time."""
    return Totals(*(a + b if a and b else a or b for a, b in zip(one, other, strict=True)))
