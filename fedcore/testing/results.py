"""What a conformance test requires of the tables and figures of a method."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from fedcore.rounds.results import Bars, Column, Pictures, Positions, Profiles, Result, Table
from fedcore.testing.broken import require

FIGURES = (Profiles, Positions, Pictures, Bars)


def told(found: Result) -> list[dict[str, Any]]:
    """The tables as JSON holds them."""
    return [table.to_json() for table in found.tables]


def texts(table: Table) -> list[str]:
    """All texts in the cells and headings of a table."""
    found = [column.name for column in table.columns]
    for column in table.columns:
        for value in column.values:
            found += [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
    return found


def check_result(found: Result, private: bool) -> None:
    """Raises LawBroken unless tables and figures are such as can be shown and stored."""
    require(isinstance(found, Result), f"result returns a {type(found).__name__}, not a Result.")
    for table in found.tables:
        require(isinstance(table, Table), f"the result holds a {type(table).__name__}, not a Table.")
        lengths = {column.name: len(column.values) for column in table.columns}
        require(len(lengths) == len(table.columns) > 0, f"columns of table {table.name!r} share a name, or are none.")
        require(len(set(lengths.values())) <= 1, f"columns of table {table.name!r} have unequal lengths: {lengths}.")
        for column in table.columns:
            _check_column(column, table.name, private)
        json.dumps(table.to_json(), allow_nan=False)
    for figure in found.figures:
        require(isinstance(figure, FIGURES), f"the result holds a {type(figure).__name__}, not a figure.")
    for names in ([table.name for table in found.tables], [figure.name for figure in found.figures]):
        require(len(names) == len(set(names)), f"tables or figures of the result share a name: {sorted(names)}.")


def _check_column(column: Column, table: str, private: bool) -> None:
    where = f"column {column.name!r} of table {table!r}"
    for value in column.values:
        plain = value is None or isinstance(value, (str, int, float, list, tuple)) and not isinstance(value, np.generic)
        require(plain, f"{where} holds a {type(value).__name__}, not a plain number or text.")
        finite = not isinstance(value, float) or math.isfinite(value)
        require(finite, f"{where} holds a number that is not finite; None says that there is nothing.")
    if column.errors is None:
        return
    require(private, f"{where} has errors, which are those of the noise of a private run.")
    require(len(column.errors) == len(column.values), f"{where} has not one error for each value.")
    fit = all(error is None or math.isfinite(error) and error >= 0 for error in column.errors)
    require(fit, f"{where} has errors that are negative or not finite; None says that one is not known.")
