"""Figures of experiments: labelled curves in panels, as PNG bytes, in the style of `figures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.evaluation.figures import MARKED, _colours, _figure, _label_ends, _png, _text, _title

Curve = tuple[Sequence[float], Sequence[float]] | tuple[Sequence[float], Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves that share axes. curves: a line for each label: (x, y), or (x, y, half width of an interval). Points that
    are not finite, or not positive on a logarithmic axis, are left out. ticks: names of x = 0, 1, 2 ..., in place of
    numbers.
    """

    curves: Mapping[str, Curve]
    title: str
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[str] | None = None


def curves_figure(
    curves: Mapping[str, Curve],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    ticks: Sequence[str] | None = None,
) -> bytes:
    """One `Panel`."""
    return panels_figure([Panel(curves, title, x_label, y_label, log_x, log_y, ticks)])


def panels_figure(panels: Sequence[Panel]) -> bytes:
    """Panels one below the other."""
    figure, grid = _figure((7.2, 4.0 * len(panels)), len(panels))
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        _draw(axes, panel)
    return _png(figure)


def _draw(axes, panel: Panel) -> None:
    axes.set_title(panel.title, **_title())
    drawn = []
    for label, (*line, half) in ((label, (*curve, None)[:3]) for label, curve in panel.curves.items()):
        x, y = (np.asarray(values, np.float64) for values in line)
        kept = np.isfinite(y) & ((y > 0) if panel.log_y else True) & ((x > 0) if panel.log_x else True)
        if kept.any():
            drawn.append((label, x[kept], y[kept], None if half is None else np.asarray(half, np.float64)[kept]))
    if not drawn:
        axes.set_axis_off()
        axes.text(0, 0.9, "no values yet", transform=axes.transAxes, va="top", **_text())
        return
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    for colour, (_, x, y, deviation) in zip(_colours(), drawn, strict=False):
        axes.plot(x, y, color=colour, linewidth=1.8, marker="o" if len(x) <= MARKED else None, markersize=4)
        if deviation is not None:
            axes.fill_between(x, y - deviation, y + deviation, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel(panel.x_label, **_text())
    axes.set_ylabel(panel.y_label, **_text())
    if panel.ticks is not None:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
    _label_ends(axes, [(y[-1], label) for label, _, y, _ in drawn])
