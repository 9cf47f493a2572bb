"""Which values of a result differ from those of the run before, beyond what the noise of the two runs explains.

Everything compared is in the results of the two runs. Rows are matched by their labels: the texts and whole numbers
that stand before the first measured value of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

from fedcore.rounds.results import Column, Result, Table

FALSE_LINES = 0.05  # expected number of values per run that noise alone reports as changed
LEAST = 0.1  # relative difference that is reported where no standard error is known and the runs are not private
MOST = 5  # values that are reported


@dataclass(frozen=True, slots=True)
class Moved:
    """A value that changed. what: its table, row and column; size: by which such values are ordered, largest first;
    errors: how many standard errors of the noise the difference is, None if they are not known.
    """

    what: str
    before: float
    now: float
    size: float
    errors: float | None = None


def sizes_changed(before: Result, now: Result) -> list[tuple[str, int, int]]:
    """(title of a shown table, number of rows before, number of rows now) where the numbers differ. Only of tables with
    one row for each value of their first column: the length of others follows from these.
    """
    old = {table.name: table for table in before.tables if _is_a_list(table)}
    return [
        (table.title, len(old[table.name]), len(table))
        for table in now.tables
        if table.shown and table.name in old and _is_a_list(table) and len(old[table.name]) != len(table)
    ]


def _is_a_list(table: Table) -> bool:
    first = [str(value) for value in table.columns[0].values] if table.columns else []
    return len(first) == len({*first})


def values_changed(before: Result, now: Result, private: bool) -> tuple[list[Moved], int]:
    """(the most changed values of the shown tables, how many changed in all).

    With standard errors a value has changed if its difference is larger than noise explains: among all values compared,
    noise alone is expected to report FALSE_LINES. private: values without standard errors are then left out, because
    their noise is not known; else they have changed if they differ by more than LEAST of the larger one.
    """
    pairs = list(_pairs(before, now))
    noisy = [pair for pair in pairs if pair[3]]
    limit = NormalDist().inv_cdf(1 - FALSE_LINES / (2 * len(noisy))) if noisy else math.inf
    found = []
    for what, old, new, error in pairs:
        if error:
            ratio = abs(new - old) / error
            if ratio > limit:
                found.append(Moved(what, old, new, ratio / limit, ratio))
        elif not private and (ratio := _relative(old, new)) > LEAST:
            found.append(Moved(what, old, new, ratio / LEAST))
    found.sort(key=lambda one: (-one.size, one.what))
    return found[:MOST], len(found)


def _relative(old: float, new: float) -> float:
    largest = max(abs(old), abs(new))
    return abs(new - old) / largest if largest else 0.0


def _pairs(before: Result, now: Result) -> Iterator[tuple[str, float, float, float]]:
    """(what, value before, value now, standard error of their difference, 0 if it is not known)."""
    tables = {table.name: table for table in before.tables}
    for table in now.tables:
        if table.shown and table.name in tables:
            old = _values(tables[table.name])
            for what, (value, error) in _values(table).items():
                if what in old:
                    earlier, its_error = old[what]
                    both = math.hypot(error, its_error) if error and its_error else 0.0
                    yield f"{table.title}: {what}", earlier, value, both


def _values(table: Table) -> dict[str, tuple[float, float]]:
    """What a value is -> (value, standard error or 0); without labels that several rows have."""
    labels = _labels(table)
    measured = [column for column in table.columns if any(isinstance(value, float) for value in column.values)]
    found: dict[str, tuple[float, float]] = {}
    twice = {label for label in labels if labels.count(label) > 1}
    for column in measured:
        for label, value, error in zip(labels, column.values, _errors(column), strict=True):
            if label not in twice and isinstance(value, float) and math.isfinite(value):
                found[f"{label}, {column.name}" if label else column.name] = (value, error)
    return found


def _errors(column: Column) -> list[float]:
    errors = [None] * len(column.values) if column.errors is None else column.errors
    return [0.0 if error is None or not math.isfinite(error) else float(error) for error in errors]


def _labels(table: Table) -> list[str]:
    """Of each row: what its columns of texts and whole numbers hold, up to the first measured column."""
    heads: list[Column] = []
    for column in table.columns:
        if not all(isinstance(value, str | int) for value in column.values):
            break
        heads.append(column)
    return [
        " ".join(
            str(head.values[row]) if isinstance(head.values[row], str) else f"{head.name} {head.values[row]}"
            for head in heads
        )
        for row in range(len(table))
    ]
