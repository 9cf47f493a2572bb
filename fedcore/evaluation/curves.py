"""Figures of experiments: labelled curves in one panel, as PNG bytes, in the style of `figures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedcore.evaluation.figures import MARKED, _colours, _figure, _label_ends, _nothing, _png, _text, _title

Curve = tuple[Sequence[float], Sequence[float]] | tuple[Sequence[float], Sequence[float], Sequence[float]]


def curves_figure(curves: Mapping[str, Curve], title: str, x_label: str, y_label: str, *, log_x: bool = False,
                  log_y: bool = False, ticks: Sequence[str] | None = None) -> bytes:  # fmt: skip
    """A line for each label: (x, y), or (x, y, half width of an interval). Points that are not finite are left out.

    ticks: names of x = 0, 1, 2 ..., in place of numbers.
    """
    figure, axes = _figure((7.2, 4.0))
    axes.set_title(title, **_title())
    drawn = []
    for label, (x, y, *half) in curves.items():
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        kept = np.isfinite(y) & ((y > 0) if log_y else True) & ((x > 0) if log_x else True)
        if kept.any():
            drawn.append((label, x[kept], y[kept], np.asarray(half[0], np.float64)[kept] if half else None))
    if not drawn:
        return _nothing(figure, axes, "no values yet")
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    for colour, (_, x, y, half) in zip(_colours(), drawn, strict=False):
        axes.plot(x, y, color=colour, linewidth=1.8, marker="o" if len(x) <= MARKED else None, markersize=4)
        if half is not None:
            axes.fill_between(x, y - half, y + half, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel(x_label, **_text())
    axes.set_ylabel(y_label, **_text())
    if ticks is not None:
        axes.set_xticks(range(len(ticks)), ticks)
    _label_ends(axes, [(y[-1], label) for label, _, y, _ in drawn])
    return _png(figure)
