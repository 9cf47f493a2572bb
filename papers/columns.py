"""Columns of tables: a row's condition over its seeds, as text.

In columns a quantity is a key of a result or a function of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fedcore.papers.table import Column, Found, Quantity, Row


def _text(value: float | None, form: str, none: str) -> str:
    return none if value is None else format(value, form)


def mean(of: Quantity, form: str = ".3f", at: str = "{}") -> Column:
    """Mean over seeds. at: the condition, where {} is the row's."""
    return lambda found, row: format(found.mean(at.format(row.of), of), form)


def median(of: Quantity, form: str = ".1e", none: str = "never") -> Column:
    """Median over seeds. none: the text if a seed has no number."""
    return lambda found, row: _text(found.known_median(str(row.of), of), form, none)


def mean_sd(of: Quantity, places: int = 2, at: str = "{}") -> Column:
    """Mean and standard deviation over seeds."""
    return lambda found, row: with_sd(found.values(at.format(row.of), of), places)


def mean_interval(of: Quantity, at: str = "{}") -> Column:
    """Mean and half width of the 95 % interval over seeds."""
    return lambda found, row: shown(found.values(at.format(row.of), of))


def given(found: Found, row: Row) -> str:
    """A column whose texts are the rows' own, such as published figures."""
    return ""


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and half width of the 95 % interval of Student's t over repetitions; None for a single one."""
    from scipy.stats import t

    if len(values) < 2:
        return float(np.mean(values)), None
    return float(np.mean(values)), float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)


def shown(values: Sequence[float]) -> str:
    """Mean and half width as text: 0.931 ±.004."""
    if not len(values):
        return ""
    middle, half = mean_and_interval(values)
    return f"{middle:.3f}" if half is None else f"{middle:.3f} ±{half:.3f}".replace("±0.", "±.")


def with_sd(values: Sequence[float], places: int = 2) -> str:
    """Mean and standard deviation as text: 1.13 (.47)."""
    middle = f"{np.mean(values):.{places}f}"
    return middle if len(values) < 2 else f"{middle} ({np.std(values, ddof=1):.{places}f})".replace("(0.", "(.")


def brief(value: float | None, form: str = ".1e", never: str = "never") -> str:
    return _text(value, form, never)


def verdict(met: bool) -> str:
    return "met" if met else "NOT MET"
