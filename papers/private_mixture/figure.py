"""The figure of `fedcore reproduce private-mixture`: how well labels agree, against separation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedcore.evaluation.figures import COLOURS, SOFT, _figure, _png, _text, _title

Line = tuple[Sequence[float], Sequence[float]]
DRAWN = ("private_mixture", "private_gmm", "DP-Lloyd", "DP-Lloyd, wide box", "diffprivlib", "S&A, averages")
BESIDE = {"EM": "EM, no privacy", "k-means": "k-means, no privacy"}


def labels_by_separation(panels: Mapping[str, Mapping[str, Line]], epsilon: float) -> bytes:
    """A panel for each shape, with a line for each learner that it has; learners without privacy are grey. epsilon: of
    the others."""
    figure, grid = _figure((11.0, 4.2), 1, max(len(panels), 1))
    if not panels:
        grid.flat[0].set_axis_off()
        grid.flat[0].text(0, 0.9, "no mixture was computed", transform=grid.flat[0].transAxes, va="top", **_text())
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
        axes.set_title(title, **_title())
        axes.set_xscale("log", base=2)
        ticks = sorted({place for x, _ in lines.values() for place in x})
        axes.set_xticks(ticks, [f"{place:g}" for place in ticks])
        axes.set_ylim(-0.05, 1.05)
        for (name, label), style in zip(BESIDE.items(), ("-", ":"), strict=True):
            if name in lines:
                axes.plot(*lines[name], color=SOFT, linewidth=1.4, linestyle=style, label=label)
        for colour, name in zip(COLOURS, DRAWN, strict=False):
            if name in lines:
                wide = 2.4 if name == "private_mixture" else 1.4
                axes.plot(*lines[name], color=colour, linewidth=wide, marker="o", markersize=4, label=name)
        axes.set_xlabel("separation, in the largest standard deviation", **_text())
    if panels:
        grid.flat[0].set_ylabel(f"adjusted Rand index, median; ε = {epsilon:g}", **_text())
        handles, names = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, names, frameon=False, fontsize=8, loc="outside lower center", ncols=4)
    return _png(figure)
