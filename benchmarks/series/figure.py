"""The figure of a series: loss by week for each way to pay, and what clients have spent in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedcore.evaluation.figures import COLOURS, SOFT, _figure, _png, _text, _title

BINS = 20


def series_figure(lines: Mapping[str, Sequence[float]], spent: np.ndarray, refused: Mapping[str, int]) -> bytes:
    """Left: nats by week on a logarithmic axis, a line for each label; a label says how many runs were refused, if any
    were. Right: spent, (N,) shares of the budget of all clients who ever came.
    """
    figure, grid = _figure((11.0, 4.4), 1, 2)
    axes = grid[0, 0]
    axes.set_title("Weekly private runs: loss in the next week", **_title())
    axes.set_yscale("log")
    for number, (label, losses) in enumerate(lines.items()):
        told = f"{label} ({refused[label]} refused)" if refused.get(label) else label
        first = number == 0
        colour = COLOURS[number % len(COLOURS)]
        weeks = np.arange(1, len(losses) + 1)
        axes.plot(weeks, losses, color=colour, linewidth=2.4 if first else 1.4, label=told, zorder=3 if first else 2)
    axes.set_xlabel("week", **_text())
    axes.set_ylabel("KL to the law of the next week (nats)", **_text())
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=1)
    _spent(grid[0, 1], spent)
    return _png(figure)


def _spent(axes, spent: np.ndarray) -> None:
    axes.set_title("Spent of the account of each client who ever came", **_title())
    shares = np.histogram(spent, np.linspace(0, 1, BINS + 1))[0] / max(len(spent), 1)
    axes.bar((np.arange(BINS) + 0.5) / BINS, shares, width=0.9 / BINS, color=COLOURS[0])
    axes.axvline(1.0, color=SOFT, linewidth=1.2, linestyle=":")
    axes.set_xlabel("share of the budget that is promised for life", **_text())
    axes.set_ylabel("share of the clients", **_text())
