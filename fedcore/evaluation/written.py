"""How values and tables of a result are written for people: rounded, with their errors, and cut where they are long."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedcore.evaluation.figures import printable
from fedcore.rounds.results import Column, Table

MOST_ROWS, MOST_COLUMNS = 30, 14  # of a table that is shown; nothing is cut from the table itself
FIRST_ROWS, FIRST_COLUMNS = 4, 5  # of the table on a first page
ERRORS = "± is one standard error of the privacy noise; sampling error is not included."
UNKNOWN = "± – where it is unknown."
NOTHING = "–"
STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)[T-](\d\d)(\d\d)(\d\d)?")  # how runs keep when they began, UTC


@dataclass(frozen=True, slots=True)
class Shown:
    """A table as it is shown.

    headings: with units; numeric: whether a column holds numbers; cells: rows of texts, or of lists of texts; notes:
        sentences that belong below, among them how much was left out; whole: whether nothing was
    """

    title: str
    headings: list[str]
    numeric: list[bool]
    cells: list[list[str | list[str]]]
    notes: list[str]
    whole: bool = True


def shown_table(
    table: Table, rows: int = MOST_ROWS, columns: int = MOST_COLUMNS, rest: str = "which the table has as JSON"
) -> Shown:
    """The first rows and columns of a table, in words. rest: where the others are."""
    kept, length = table.columns[:columns], len(table)
    written = [[_cell(column, i) for i in range(min(length, rows))] for column in kept]
    notes = [table.note] if table.note else []
    if any(column.errors is not None for column in kept):
        notes += [ERRORS, UNKNOWN] if any(f"± {NOTHING}" in cell for each in written for cell in each) else [ERRORS]
    more = [(length - rows, "row"), (len(table.columns) - columns, "column")]
    if said := " and ".join(f"{number:,} more {what}{'s' * (number > 1)}" for number, what in more if number > 0):
        notes.append(f"And {said}, {rest}.")
    return Shown(
        table.title,
        [_heading(column) for column in kept],
        [all(isinstance(value, (int, float, type(None))) for value in column.values) for column in kept],
        [list(row) for row in zip(*written, strict=True)],
        notes,
        not said,
    )


def first_table(tables: Sequence[Table]) -> Shown | None:
    """The first of the tables, as a first page has it: few rows and columns. Of segments without the numbers that their
    components have in arrays. None if there are no tables, or reports do not show the first."""
    if not tables or not tables[0].shown:
        return None
    named = {column.name for column in tables[0].columns} >= {"segment", "component"}
    kept = tuple(column for column in tables[0].columns if not (named and column.name == "component"))
    return shown_table(replace(tables[0], columns=kept), FIRST_ROWS, FIRST_COLUMNS, "in the full result below")


def shown_tables(tables: Sequence[Table], rows: int = MOST_ROWS, columns: int = MOST_COLUMNS) -> list[Shown]:
    """Those that are shown, one below the other. What ± means stands once, below the first that has it."""
    written = [shown_table(table, rows, columns) for table in tables if table.shown]
    for note in (ERRORS, UNKNOWN):
        for one in [one for one in written if note in one.notes][1:]:
            one.notes.remove(note)
    return written


def _heading(column: Column) -> str:
    return f"{column.name} ({column.unit})" if column.unit not in ("", "%") else column.name


def _cell(column: Column, index: int) -> str | list[str]:
    value, error = column.values[index], None if column.errors is None else column.errors[index]
    if isinstance(value, (list, tuple)):
        return [printable(str(item)) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return NOTHING
    percent = column.unit == "%" and isinstance(value, (int, float))
    if column.errors is not None and isinstance(value, (int, float)):
        return _with_error(float(value), error, percent)
    return f"{100 * value:.3g} %" if percent and isinstance(value, float) else show(value)


def _with_error(value: float, error: float | None, percent: bool) -> str:
    """The number to as many places as the second digit of its error."""
    factor, unit = (100.0, " %") if percent else (1.0, "")
    if error is None or not math.isfinite(error):
        return f"{show(value * factor)}{unit} ± {NOTHING}"
    if not 0 < error * factor < 1e15 or abs(value * factor) >= 1e15:
        return f"{value * factor:.5g} ± {error * factor:.2g}{unit}"
    places = 1 - math.floor(math.log10(error * factor))
    if places > 8:
        return f"{value * factor:.6g} ± {error * factor:.2g}{unit}"
    rounded = f"{round(value * factor, places):.{max(places, 0)}f}"
    return f"{rounded} ± {round(error * factor, places):.{max(places, 0)}f}{unit}"


# --- values -----------------------------------------------------------------------------------------------------------


def show(value: Any) -> str:
    """A value for a table: five significant digits, thousands apart, a dash for nothing."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    if isinstance(value, float):
        whole = math.isfinite(value) and value == int(value) and abs(value) < 1e15
        return show(int(value)) if whole else f"{value:.5g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def show_bytes(value: float | None) -> str:
    """Bytes in the unit in which they are easily read."""
    if value is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, "TiB"
    return f"{value:.4g} {unit}"


def iso_date(stamp: Any) -> Any:
    """When a run began, as ISO 8601 in UTC; what is no such time stays as it is."""
    found = STAMP.fullmatch(str(stamp))
    return stamp if found is None else "{}-{}-{}T{}:{}:{}Z".format(*found.groups("00"))


def in_markdown(text: Any) -> str:
    """Text that markdown and HTML leave as it is."""
    return re.sub(r"([\\`*_{}\[\]()#!|~$])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))
