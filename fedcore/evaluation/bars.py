"""A figure of a table: a small panel of bars for each column, as PNG bytes."""

from __future__ import annotations

import numpy as np

from fedcore.evaluation.figures import COLOURS, COLUMNS, _figure, _label, _png, _text, _ticks, _title
from fedcore.rounds.results import Bars

MOST_PANELS = 36
WIDTH = 28  # characters above a panel
LABELLED = 5  # labels of a panel with more ticks: the others are left out
LETTERS, SHORT = 36, 6  # of all labels of a panel together; that each may have at least


def bars_figure(bars: Bars) -> bytes:
    """The first 36 panels, three in a line. Each has its own scale, from 0, in per cent."""
    shown = bars.panels[:MOST_PANELS]
    columns = min(COLUMNS, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure, grid = _figure((3.0 * columns if columns > 1 else 5.0, 0.5 + 1.5 * rows), rows, columns)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, shown, strict=False):
        axes.set_title(_label(panel.title, WIDTH), **_title())
        axes.bar(np.arange(len(panel.shares)), 100 * panel.shares, 0.9, color=COLOURS[0])
        kept = panel.ticks[:: -(-len(panel.ticks) // LABELLED)] or panel.ticks
        longest = max(LETTERS // len(kept), SHORT)
        axes.set_xticks([at for at, _ in kept], [_label(label, longest) for _, label in kept], parse_math=False)
        axes.set_xlim(-0.7, len(panel.shares) - 0.3)
        axes.yaxis.set_major_locator(_ticks(3))
        axes.set_ylim(0, 105 * float(panel.shares.max(initial=0.0)) or 1.0)
        axes.set_ylabel("%", **_text())
        axes.grid(False, axis="x")
    left = f": the first {len(shown)} of {len(bars.panels)}" if len(shown) < len(bars.panels) else ""
    figure.suptitle(f"{bars.title}{left}", x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=_text()["color"])
    return _png(figure)
