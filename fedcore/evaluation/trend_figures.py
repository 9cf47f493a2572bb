"""Figures of many runs over time, as PNG bytes: scores, seconds, a budget with what is foreseen of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from fedcore.evaluation.figures import (
    COLOURS,
    GRID,
    INK,
    SOFT,
    Z95,
    _brief,
    _colours,
    _figure,
    _label,
    _label_ends,
    _png,
    _text,
    _title,
)

Points = Sequence[tuple[datetime, float, float | None]]  # when, value, standard error if it is known
STEPS = Sequence[tuple[datetime, float]]
SIZE = (8.2, 2.7)  # inches
APART = 30.0  # values that span more than this factor are drawn on a logarithmic axis


def trend_figure(lines: Mapping[str, Points], title: str, axis: str, from_zero: bool = False) -> bytes:
    """A line for each name over time, with 95 % intervals where standard errors are known. Every name has points.

    from_zero: whether the axis begins there, unless values are so far apart that it is logarithmic
    """
    figure, axes = _figure(SIZE)
    axes.set_title(title, **_title())
    axes.set_ylabel(axis, **_text())
    ends = []
    for colour, (name, points) in zip(_colours(), lines.items(), strict=False):
        points = sorted(points, key=lambda point: point[0])
        x, y = [point[0] for point in points], [point[1] for point in points]
        axes.plot(x, y, color=colour, linewidth=1.6, marker="o", markersize=4)
        errors = [Z95 * (error or 0.0) for _, _, error in points]
        if any(errors):
            axes.errorbar(x, y, yerr=errors, fmt="none", ecolor=colour, elinewidth=1.0, alpha=0.6)
        ends.append((y[-1], _brief(y[-1]) if len(lines) == 1 else f"{_label(name, 26)} {_brief(y[-1])}"))
    values = [point[1] for points in lines.values() for point in points]
    if min(values) > 0 and max(values) / min(values) > APART:
        axes.set_yscale("log")
    elif from_zero:
        axes.set_ylim(0, 1.1 * max(values) or 1.0)
    _dates(axes)
    _label_ends(axes, ends)
    return _png(figure)


def budget_over_time_figure(
    spent: STEPS, ahead: STEPS, before: float, limit: float, now: datetime, unit: str = "ρ"
) -> bytes:
    """What is spent of a budget after each run, and what is foreseen, dotted, up to the limit.

    spent, ahead: (when a run began, what it charged), ascending; before: charged by what is not among them, in the same
    unit; now: where the two meet
    """
    figure, axes = _figure(SIZE)
    axes.set_title("Budget over time", **_title())
    axes.set_ylabel(f"{unit} spent", **_text())
    x, y = [spent[0][0] if spent else now], [before]
    for when, price in spent:
        x, y = [*x, when], [*y, y[-1] + price]
    x, y = [*x, max(now, x[-1])], [*y, y[-1]]
    axes.fill_between(x, 0, y, step="post", color=COLOURS[0], alpha=0.15, linewidth=0)
    axes.plot(x, y, color=COLOURS[0], linewidth=1.8, drawstyle="steps-post")
    level, ends = y[-1], [(y[-1], f"spent {_brief(float(y[-1]))}")]
    if ahead:
        later, levels = [x[-1]], [level]
        for when, price in ahead:
            later, levels = [*later, when], [*levels, levels[-1] + price]
        axes.plot(later, levels, color=COLOURS[0], linewidth=1.4, linestyle=":", drawstyle="steps-post")
        axes.axvline(now, color=GRID, linewidth=1.2)
        axes.annotate("now", (now, 0), xytext=(4, 3), textcoords="offset points", **_text(SOFT))
        ends = [(levels[-1], f"foreseen {_brief(float(levels[-1]))}")]
    axes.axhline(limit, color=COLOURS[1], linewidth=1.4)
    axes.annotate(
        f"budget {_brief(float(limit))}",
        (0.0, limit),
        xycoords=("axes fraction", "data"),
        xytext=(4, 2.5),
        textcoords="offset points",
        va="bottom",
        **_text(COLOURS[1]),
    )
    axes.set_ylim(0, 1.15 * max(limit, level))
    _dates(axes)
    _label_ends(axes, ends, INK)
    return _png(figure)


def _dates(axes) -> None:
    """Dates along the axis, in UTC, each as short as it can be."""
    from datetime import UTC

    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.xaxis.get_offset_text().set(fontsize=8.5, color=SOFT)
    axes.margins(x=0.02)
    axes.set_xlabel("start of the run (UTC)", **_text())
