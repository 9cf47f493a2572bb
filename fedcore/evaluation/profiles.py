"""The figure of the tokens that distinguish each centre from the mean, as PNG bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedcore.errors import needs
from fedcore.evaluation.figures import COLOURS, COLUMNS, DPI, GRID, INK, PANELS, SOFT, _png, _text, _ticks, _token
from fedcore.rounds.results import distinguishing, heaviest


def profiles_figure(
    centres: np.ndarray,
    mean: np.ndarray,
    weights: np.ndarray | None = None,
    vocabulary: Sequence[str] | None = None,
    top: int = 8,
) -> bytes:
    """A panel for each centre: the tokens that most distinguish it from the mean, as bars of p ln(p / mean) in nats.

    centres: (K, d) and mean: (d,), non-negative. weights: (K,) non-negative shares, for titles and order; the heaviest
    12 are shown, each on its own scale, since one odd centre would flatten the others. vocabulary: d tokens; without
    one a token is shown by its index.
    """
    there = len(centres) if weights is None else max(1, int(np.count_nonzero(weights)))  # the others are empty
    chosen = heaviest(len(centres), weights, min(PANELS, there))
    tops = [distinguishing(centres[k], mean, top) for k in chosen]
    columns = min(COLUMNS, max(1, len(chosen)))
    rows = max(1, -(-len(chosen) // columns))
    longest = max((len(scores) for _, scores in tops), default=0)
    wide, high = 3.2 if columns > 1 else 5.0, 0.75 + 0.19 * longest
    sheet = _Sheet((wide * columns, 0.4 + rows * high))
    which = "first" if weights is None else "heaviest"
    left_out = "" if len(chosen) == len(centres) else f": the {which} {len(chosen)} of {len(centres)}"
    heading = {"weight": "bold", "va": "baseline"}
    sheet.text(0.08, rows * high + 0.2, f"What distinguishes each centre from the mean{left_out}", size=10.5, **heading)
    names = [[_token(int(i), vocabulary) for i in tokens] for tokens, _ in tops]
    room = 0.12 + sheet.widest(name for panel in names for name in panel)
    for place, (k, (_, scores)) in enumerate(zip(chosen, tops, strict=True)):
        left, upper = room + wide * (place % columns), high * (rows - place // columns)
        share = "" if weights is None else f": {100 * weights[k]:.3g} %"
        sheet.text(left, upper - 0.15, f"centre {k}{share}", size=10, **heading)
        if not len(scores):
            sheet.text(left, upper - 0.35, "as the mean", colour=SOFT)
            continue
        limit, lower = 1.04 * scores[0], upper - 0.3 - 0.19 * longest
        scale = (wide - room - 0.12) / limit
        for tick in _ticks(3).tick_values(0.0, limit):
            if 0 <= tick <= limit:
                sheet.line((left + scale * tick, lower), (left + scale * tick, upper - 0.25), GRID)
                sheet.text(left + scale * tick, lower - 0.12, f"{tick:g}", ha="center", colour=SOFT)
        for row, (name, score) in enumerate(zip(names[place], scores, strict=True)):
            middle = upper - 0.28 - 0.19 * (row + 0.5)
            sheet.bar(left, middle, scale * score)
            sheet.text(left - 0.05, middle, name, ha="right")
        sheet.line((left, lower), (left + scale * limit, lower), SOFT)
        if place + columns >= len(chosen):
            sheet.text(left + scale * limit / 2, lower - 0.3, "p ln(p / mean)  (nats)", ha="center")
    return sheet.png()


class _Sheet:
    """A figure of bars, lines and text at places in inches from its lower left corner. Many panels of bars drawn so
    take a fifth of the time that as many axes take. size: width and height in inches.
    """

    def __init__(self, size: tuple[float, float]) -> None:
        with needs("A figure", "matplotlib"):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure

        self.figure = Figure(figsize=size, dpi=DPI, facecolor="white")
        self.canvas = FigureCanvasAgg(self.figure)
        self.bars: list[list[tuple[float, float]]] = []
        self.lines: list[tuple[tuple[float, float], tuple[float, float]]] = []
        self.colours: list[str] = []

    def text(self, x: float, y: float, words: str, colour: str = INK, size: float = 8.5, **how: str) -> None:
        style = {**_text(colour), "fontsize": size, "va": "center_baseline", **how}
        self.figure.text(x, y, words, transform=self.figure.dpi_scale_trans, **style)

    def line(self, start: tuple[float, float], stop: tuple[float, float], colour: str) -> None:
        self.lines.append((start, stop))
        self.colours.append(colour)

    def bar(self, left: float, middle: float, length: float, half: float = 0.0625) -> None:
        right, low, high = left + length, middle - half, middle + half
        self.bars.append([(left, low), (right, low), (right, high), (left, high)])

    def widest(self, words: Iterable[str]) -> float:
        """Inches of the longest text."""
        from matplotlib.font_manager import FontProperties

        renderer, font = self.canvas.get_renderer(), FontProperties(family="DejaVu Sans", size=8.5)
        return max((renderer.get_text_width_height_descent(word, font, False)[0] for word in words), default=0.0) / DPI

    def png(self) -> bytes:
        from matplotlib.collections import LineCollection, PolyCollection

        inches = self.figure.dpi_scale_trans
        if self.lines:
            lines = LineCollection(self.lines, colors=self.colours, linewidths=0.8, zorder=0.5, transform=inches)
            self.figure.add_artist(lines)
        if self.bars:
            self.figure.add_artist(PolyCollection(self.bars, facecolors=COLOURS[0], linewidths=0, transform=inches))
        return _png(self.figure)
