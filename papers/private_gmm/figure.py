"""The figure of `fedcore reproduce private-gmm`: what a run publishes of its recursion, and rows against columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedcore.evaluation.figures import COLOURS, SOFT, _figure, _png, _text, _title

Line = tuple[Sequence[float], Sequence[float]]


def recursion_and_growth(picture: Mapping, lines: Mapping[str, Line]) -> bytes:
    """Left: candidates, balls and cells of `private_gmm_runs.pictured`, released values only. Right: n against d with
    logarithmic axes, a line for each label; without lines it says so."""
    figure, grid = _figure((11.0, 4.6), 1, 2)
    _recursion(grid[0, 0], picture)
    _growth(grid[0, 1], lines)
    return _png(figure)


def _recursion(axes, picture: Mapping) -> None:
    from matplotlib.patches import Circle

    axes.set_title("One run, from released values only", **_title())
    for radius in picture["radii"][1:]:
        axes.add_patch(Circle((0, 0), radius, fill=False, color=SOFT, linewidth=1.0, linestyle=":"))
    for x, y, radius in picture["balls"]:
        axes.add_patch(Circle((x, y), radius, fill=False, color=COLOURS[1], linewidth=1.6))
    for x, y, spread in picture["leaves"]:
        axes.add_patch(Circle((x, y), 2 * spread, color=COLOURS[0], alpha=0.18, linewidth=0))
    for points, marker, colour, label in (
        (picture["candidates"], "o", COLOURS[2], "candidate centres"),
        ([leaf[:2] for leaf in picture["leaves"]], "x", COLOURS[0], "means, and 2 standard deviations"),
    ):
        at = np.asarray(points, np.float64).reshape(-1, 2)
        axes.plot(at[:, 0], at[:, 1], marker, color=colour, markersize=5, label=label)
    axes.plot([], [], color=COLOURS[1], label="terrific balls")
    axes.plot([], [], color=SOFT, linestyle=":", label="ball that rows are cut to, as it shrinks")
    axes.set_aspect("equal", adjustable="datalim")
    axes.autoscale_view()
    axes.set_xlabel("first direction of the released basis", **_text())
    axes.set_ylabel("second direction", **_text())
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def _growth(axes, lines: Mapping[str, Line]) -> None:
    axes.set_title("Rows needed against columns", **_title())
    if not lines:
        axes.set_axis_off()
        axes.text(0, 0.9, "not part of the quick version", transform=axes.transAxes, va="top", **_text())
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    for colour, (label, (x, y)) in zip(COLOURS, lines.items(), strict=False):
        axes.plot(x, y, color=colour, linewidth=1.8, marker="o", markersize=4, label=label)
    ticks = sorted({value for x, _ in lines.values() for value in x})
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    rows = [value for _, y in lines.values() for value in y]
    steps = [step * 10**power for power in range(2, 8) for step in (1, 2, 5)]
    shown = [step for step in steps if min(rows) <= 2 * step and step <= 2 * max(rows)]
    axes.set_yticks(shown, [f"{step:,}".replace(",", " ") for step in shown])
    axes.minorticks_off()
    axes.set_xlabel("columns d", **_text())
    axes.set_ylabel("rows n", **_text())
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
