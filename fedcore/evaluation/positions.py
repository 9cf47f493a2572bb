"""A figure of mixtures: the positions of the components in every column, as PNG bytes."""

from __future__ import annotations

import numpy as np

from fedcore.evaluation.figures import (
    COLOURS,
    COLUMNS,
    GRID,
    INK,
    LONGEST,
    PANELS,
    Z95,
    _drawable,
    _figure,
    _label,
    _png,
    _ticks,
    _title,
)
from fedcore.rounds.results import Positions

MOST_COMPONENTS = 12
WIDTH = 24  # characters that have room above one of several panels
EVERY = 1.0  # standard deviation of the rows, on both sides of a mean, that the pale band shows


def positions_figure(positions: Positions) -> bytes:
    """A panel for each column: a dot for each component's mean, a bar of 1.96 standard errors of noise, and a pale band
    of one standard deviation of the component's rows. The columns in which the components are furthest apart, in
    standard deviations, come first. At most 12 columns and 12 components are shown.
    """
    means = np.asarray(positions.means, np.float64)[:MOST_COMPONENTS]
    spread = None if positions.spread is None else np.asarray(positions.spread, np.float64)[:MOST_COMPONENTS]
    errors = None if positions.errors is None else np.asarray(positions.errors, np.float64)[:MOST_COMPONENTS]
    chosen = _furthest_apart(means, spread)[:PANELS]
    columns = min(COLUMNS, max(1, len(chosen)))
    rows, place = max(1, -(-len(chosen) // columns)), np.arange(len(means))
    size = (3.2 * columns if columns > 1 else 5.0, 0.55 + rows * (0.75 + 0.2 * len(means)))
    figure, grid = _figure(size, rows, columns)
    for axes in grid.flat[len(chosen) :]:
        axes.set_visible(False)
    for axes, column in zip(grid.flat, chosen, strict=False):
        at = means[:, column]
        longest = WIDTH if columns > 1 else 2 * LONGEST
        axes.set_title(_heading(positions.columns[column], column, longest), **_title())
        if spread is not None:
            axes.barh(place, 2 * EVERY * spread[:, column], left=at - EVERY * spread[:, column], height=0.5, color=GRID)
        half = None if errors is None else Z95 * np.nan_to_num(errors[:, column])
        axes.errorbar(at, place, xerr=half, fmt="o", color=COLOURS[0], markersize=4, elinewidth=1.6)
        axes.set_yticks(place, [_label(label, LONGEST) for label in positions.labels[: len(means)]], parse_math=False)
        axes.set_ylim(len(means) - 0.4, -0.6)
        axes.xaxis.set_major_locator(_ticks(4))
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", labelcolor=INK)
    left = f": {len(chosen)} of {means.shape[1]} columns" if len(chosen) < means.shape[1] else ""
    more = len(positions.means) - len(means)
    left += f", the first {len(means)} of {len(means) + more} components" if more else ""
    figure.suptitle(f"{positions.title}{left}", x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=INK)
    return _png(figure)


def _heading(name: str, index: int, longest: int) -> str:
    """As it can be drawn, without its middle if it is long: names often differ at the end, where units are, too. The
    number of the column if the font lacks a character."""
    head, tail = (longest - 1) // 2, longest // 2
    label = name if len(name) <= longest else f"{name[:head]}…{name[-tail:]}"
    return label if set(map(ord, label)) <= _drawable() else f"column {index}"


def _furthest_apart(means: np.ndarray, spread: np.ndarray | None) -> list[int]:
    """All columns; those first whose means differ the most, in standard deviations of the rows."""
    if means.shape[1] <= PANELS:
        return list(range(means.shape[1]))
    within = np.ones(means.shape[1]) if spread is None else np.sqrt((spread**2).mean(axis=0))
    apart = means.std(axis=0) / np.where(within > 0, within, 1.0)
    return [int(column) for column in np.argsort(-apart, kind="stable")]
