"""Figures of a run as PNG bytes: rounds, budget, profiles of the centres, evaluation, seconds.

Every function takes plain values and returns a whole PNG. A figure without data states that, instead of failing. Only
objects of matplotlib are used, never its global state, so runs in one process cannot disturb each other. The colours
are those of Okabe and Ito (2008), which people with colour-blindness can distinguish.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache

import numpy as np

from fedcore.errors import needs

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, SOFT, GRID = "#262626", "#6b6b6b", "#e3e3e3"
DPI = 120
SIZE = (7.2, 3.1)  # inches
MARKED = 40  # points or bars up to which each one is drawn as such
LONGEST = 18  # characters of a label
PANELS, COLUMNS = 12, 3
FAR = 2.5  # an evaluated method this many times worse than the best one would squeeze the others: it becomes text
MEASURED = ("kl", "perplexity", "se", "standard_error", "difference", "difference_se")  # never what a row is
Z95 = 1.959964  # 97.5 % quantile of the normal distribution
PARTS = {"seconds_clients": "clients", "seconds_release": "release", "seconds_server": "server"}
WHOLE = "seconds_round"  # all of a round; what no part covers is drawn as "rest"


def data_uri(png: bytes) -> str:
    """The PNG as a data URI, for `src` attributes and markdown."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


# --- figures --------------------------------------------------------------------------------------------------------


def rounds_figure(metrics: Sequence[Mapping], names: Sequence[str], title: str, unit: str = "") -> bytes:
    """A line over the rounds for each named column.

    metrics: rows with "round" and columns; a column that a row lacks is skipped there. unit: of all columns, for the
    axis. The axis is logarithmic where all values are positive and span more than two decades.
    """
    figure, axes = _figure()
    lines = [(name, *_column(metrics, name)) for name in names]
    lines = [line for line in lines if len(line[1])]
    axes.set_title(title, **_title())
    if not lines:
        return _nothing(figure, axes, "no round has such a value yet")
    values = np.concatenate([y for _, _, y in lines])
    if values.min() > 0 and values.max() / values.min() > 100:
        axes.set_yscale("log")
        axes.yaxis.minorticks_off()  # which would be invisible, and half of the time that the figure takes
    elif (values == np.round(values)).all():
        _whole_numbers(axes.yaxis)
    for colour, (_, x, y) in zip(_colours(), lines, strict=False):
        marker = "o" if len(x) <= MARKED else None
        axes.plot(x, y, color=colour, linewidth=1.8, marker=marker, markersize=4, clip_on=False)
    shown = lines[0][0].replace("_", " ") if len(lines) == 1 else ""
    axes.set_ylabel(f"{shown} ({unit})".strip() if unit else shown, **_text())
    _rounds_axis(axes, np.concatenate([x for _, x, _ in lines]))
    _label_ends(
        axes,
        [
            (y[-1], _brief(y[-1]) if len(lines) == 1 else f"{name.replace('_', ' ')} {_brief(y[-1])}")
            for name, _, y in lines
        ],
    )
    return _png(figure)


def budget_figure(
    plan: Sequence[Mapping], published: Set[str], rho_max: float | None, rho_spent_before: float = 0.0
) -> bytes:
    """The budget spent after each release of the run, in rho.

    plan: releases in order, with "name", "round" and "rho" (`PlannedRelease.to_json`); published: names of those that
    were charged. rho_max: the budget of the population; None leaves the limit out. rho_spent_before: the most that
    other runs have spent for a client of this run.
    """
    figure, axes = _figure()
    axes.set_title("Privacy budget over the run's releases", **_title())
    axes.set_ylabel("ρ spent", **_text())
    if not plan:
        return _nothing(figure, axes, "nothing is released")
    paid = [item["rho"] for item in plan if item["name"] in published]
    ahead = [item["rho"] for item in plan if item["name"] not in published]
    done, end = len(paid), len(plan) + 0.6
    x = np.append(np.arange(len(plan) + 1), end)  # after x releases; the last step is drawn out to be seen
    y = rho_spent_before + np.concatenate([[0.0], np.cumsum(paid + ahead)])
    y = np.append(y, y[-1])
    top = max(y[-1], rho_max or 0.0)
    if rho_spent_before > 0:
        axes.axhspan(0, rho_spent_before, color=GRID, linewidth=0)
        roomy = rho_spent_before > 0.12 * top  # then the text fits into the band, else it stands on it
        axes.text(
            end,
            rho_spent_before / 2 if roomy else rho_spent_before,
            f"by other runs {_brief(float(rho_spent_before))} ",
            ha="right",
            va="center" if roomy else "bottom",
            **_text(SOFT),
        )
    stop = done + 1 if ahead else done + 2
    axes.fill_between(x[:stop], rho_spent_before, y[:stop], step="post", color=COLOURS[0], alpha=0.15, linewidth=0)
    axes.plot(x[:stop], y[:stop], color=COLOURS[0], linewidth=1.8, drawstyle="steps-post")
    if len(plan) <= MARKED:
        axes.plot(x[: done + 1], y[: done + 1], color=COLOURS[0], linewidth=0, marker="o", markersize=4, clip_on=False)
    if ahead:
        axes.plot(x[done:], y[done:], color=COLOURS[0], linewidth=1.2, linestyle=":", drawstyle="steps-post")
        axes.annotate(
            f"spent {_brief(float(y[done]))}",
            (done, y[done]),
            xytext=(6, -5),
            textcoords="offset points",
            va="top",
            **_text(COLOURS[0]),
        )
    if rho_max is not None:
        axes.axhline(rho_max, color=COLOURS[1], linewidth=1.4)
        axes.annotate(
            f"budget {_brief(float(rho_max))}",
            (0, rho_max),
            xytext=(0, 2.5),
            textcoords="offset points",
            va="bottom",
            **_text(COLOURS[1]),
        )
    axes.set_ylim(0, 1.14 * top)
    axes.set_xlim(-0.02 * len(plan), end)
    axes.set_xlabel(f"releases charged ({done} of {len(plan)} planned)", **_text())
    _whole_numbers(axes.xaxis)
    _label_ends(axes, [(y[-1], f"{'planned' if ahead else 'spent'} {_brief(float(y[-1]))}")], COLOURS[0])
    return _png(figure)


def evaluation_figure(
    rows: Sequence[Mapping], column: str = "kl", axis: str = "mean KL(held out ‖ estimate) over clients (nats)"
) -> bytes:
    """A dot for each method's mean loss, with its 95 % interval (1.96 standard errors).

    rows: "method", the loss in `column`, "se" (or "standard_error"); best at the top. A method more than 2.5 times
    worse than the best is beyond the axis and written as a number. axis: what the loss is.
    """
    rows = [row for row in rows if _is_number(row.get(column))]
    order = sorted(range(len(rows)), key=lambda i: rows[i][column])
    labels = ["\n".join(_label(part, 48) for part in label if part) for label in row_labels(rows)]
    rows, labels = [rows[i] for i in order], [labels[i] for i in order]
    figure, axes = _figure((SIZE[0] + 1.0, 1.0 + 0.36 * max(2, len(rows))))
    axes.set_title("Held-out loss by method, 95 % intervals", **_title())
    if not rows:
        return _nothing(figure, axes, "nothing was evaluated")
    loss = np.array([row[column] for row in rows], np.float64)
    half = Z95 * np.array([_standard_error(row) for row in rows])
    near = loss <= FAR * loss[0] if loss[0] > 0 else np.ones(len(loss), bool)
    low, high = float((loss - half)[near].min()), float((loss + half)[near].max())
    pad = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_xlim(low - pad, high + (1 if near.all() else 2) * pad)
    place = np.arange(len(rows))
    axes.errorbar(loss[near], place[near], xerr=half[near], fmt="o", color=COLOURS[0], markersize=5, elinewidth=1.6)
    for y in place[near]:
        axes.annotate(
            f"{loss[y]:.3f}", (loss[y], y), xytext=(0, 5), textcoords="offset points", ha="center", **_text(SOFT)
        )
    for y in place[~near]:
        axes.text(
            0.995,
            y,
            f"{loss[y]:.3g} ± {half[y]:.2g}, beyond the axis →",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            **_text(COLOURS[1]),
        )
    axes.set_yticks(place, labels, parse_math=False, linespacing=1.0)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(len(rows) - 0.5, -0.7)
    axes.set_xlabel(f"{axis}; lower is better", **_text())
    return _png(figure)


def seconds_figure(metrics: Sequence[Mapping]) -> bytes:
    """Wall seconds of each round, stacked: clients (map and reduce), release (charge, draw, publish), server.

    metrics: rows with "round" and any of "seconds_clients", "seconds_release", "seconds_server"; where "seconds_round"
    is longer than all of them, the rest (waiting, storing) is drawn too.
    """
    figure, axes = _figure()
    axes.set_title("Seconds of each round", **_title())
    rows = [row for row in metrics if any(_is_number(row.get(part)) for part in (*PARTS, WHOLE))]
    if not rows:
        return _nothing(figure, axes, "no round yet")
    x = np.array([row["round"] for row in rows])
    parts = {label: np.array([_seconds(row, part) for row in rows]) for part, label in PARTS.items()}
    parts["rest"] = np.maximum(0.0, np.array([_seconds(row, WHOLE) for row in rows]) - sum(parts.values()))
    base = np.zeros(len(rows))
    for colour, (label, y) in zip((*COLOURS[:3], "#bdbdbd"), parts.items(), strict=True):
        if not y.any():
            continue
        if len(rows) <= MARKED:
            axes.bar(x, y, 0.8, base, color=colour, label=label)
        else:
            axes.fill_between(x, base, base + y, step="mid", color=colour, linewidth=0, label=label)
        base = base + y
    axes.set_ylim(0, 1.05 * base.max() or 1.0)
    axes.set_ylabel("wall time (s)", **_text())
    _rounds_axis(axes, x, pad=0.6 if len(rows) <= MARKED else 0.0)
    if base.any():
        axes.legend(
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            ncols=4,
            frameon=False,
            fontsize=8.5,
            labelcolor=INK,
            handlelength=1.0,
            borderaxespad=0.1,
        )
    return _png(figure)


# --- what the figures and the report's tables share -----------------------------------------------------------------


def row_labels(rows: Sequence[Mapping]) -> list[tuple[str, str]]:
    """(method, detail) of each row; the detail names what differs between rows of the same method, numbers first."""
    names = [str(row.get("method", "")) for row in rows]
    labels = []
    for row, name in zip(rows, names, strict=True):
        same = [other for other, other_name in zip(rows, names, strict=True) if other_name == name]
        keys = [key for key in row if key not in ("method", *MEASURED)]
        differ = [key for key in keys if len({repr(other.get(key)) for other in same}) > 1]
        details = [
            key.replace("_", " ") if row[key] is True else f"{key.replace('_', ' ')} {_brief(row[key])}"
            for key in sorted(differ, key=lambda key: not _is_number(row[key]))
            if row[key] not in (None, False, "")
        ]
        labels.append((name, ", ".join(details)))
    return labels


def printable(text: str) -> str:
    """The token itself, or its Python spelling where it would be invisible (empty, blanks, control characters)."""
    return text if text and text.isprintable() and text == text.strip() else repr(text)


# --- drawing --------------------------------------------------------------------------------------------------------


def _figure(size: tuple[float, float] = SIZE, rows: int | None = None, columns: int = 1):
    """A figure and its axes; a (rows, columns) array of axes if rows is given. Raises ExtraMissing."""
    with needs("A figure", "matplotlib"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor="white")
    if not rows:
        figure.set_layout_engine("tight", pad=0.3)  # in one pass, which is enough for one panel
    grid = figure.subplots(rows or 1, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_facecolor("white")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(SOFT)
        axes.set_axisbelow(True)
        axes.grid(True, axis="both", color=GRID, linewidth=0.8)
        axes.tick_params(which="both", length=0, labelsize=8.5, labelcolor=SOFT, labelfontfamily="DejaVu Sans")
    return (figure, grid) if rows else (figure, grid[0, 0])


def _text(colour: str = INK) -> dict:
    return {"fontsize": 8.5, "color": colour, "parse_math": False, "fontfamily": "DejaVu Sans"}


def _title() -> dict:
    return {
        "loc": "left",
        "y": 1.0,  # so that Matplotlib does not look for a place above all else, in each of its passes
        "fontsize": 10,
        "fontweight": "bold",
        "color": INK,
        "parse_math": False,
        "fontfamily": "DejaVu Sans",
    }


def _nothing(figure, axes, text: str) -> bytes:
    """A figure that says why it is empty."""
    figure.set_size_inches(SIZE[0], 1.2)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel("")
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", **_text(SOFT))
    return _png(figure)


def _png(figure) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})  # same bytes with every release
    return buffer.getvalue()


def _colours() -> Iterable[str]:
    while True:
        yield from COLOURS


def _ticks(count: int):
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=count, steps=[1, 2, 5, 10])


def _whole_numbers(axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))


def _rounds_axis(axes, x: np.ndarray, pad: float = 0.0) -> None:
    low, high = float(x.min()) - pad, float(x.max()) + pad
    axes.set_xlim((low - 0.5, high + 0.5) if low == high else (low, high))
    _whole_numbers(axes.xaxis)
    axes.set_xlabel("round", **_text())


def _label_ends(axes, ends: Sequence[tuple[float, str]], colour: str | None = None) -> None:
    """Write each line's label next to its last value, moved apart where labels would overlap."""
    left = axes.get_xlim()[0]
    heights = axes.transAxes.inverted().transform(axes.transData.transform([(left, y) for y, _ in ends]))[:, 1]
    last = -math.inf
    for place in np.argsort(heights, kind="stable"):
        last = max(heights[place], last + 0.085)
        own = colour or (INK if len(ends) == 1 else COLOURS[place % len(COLOURS)])
        axes.annotate(
            ends[place][1],
            (1.0, last),
            xycoords="axes fraction",
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            **_text(own),
        )


def _column(metrics: Sequence[Mapping], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds and values of the rows that have a finite number there."""
    rows = [(row["round"], row[name]) for row in metrics if _is_number(row.get(name))]
    return np.array([x for x, _ in rows], np.float64), np.array([y for _, y in rows], np.float64)


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _seconds(row: Mapping, name: str) -> float:
    return float(row[name]) if _is_number(row.get(name)) else 0.0


def _standard_error(row: Mapping) -> float:
    value = row.get("se", row.get("standard_error"))
    return float(value) if _is_number(value) else 0.0


def _brief(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _label(text: str, longest: int = LONGEST) -> str:
    text = printable(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _token(index: int, vocabulary: Sequence[str] | None) -> str:
    """How a token is written on an axis; by its index if the font lacks a character of it."""
    if vocabulary is None or index >= len(vocabulary):
        return f"token {index}"
    label = _label(str(vocabulary[index]))
    return label if set(map(ord, label)) <= _drawable() else f"token {index}"


@cache
def _drawable() -> frozenset[int]:
    """The characters of the figures' font."""
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(findfont("DejaVu Sans")).get_charmap())
