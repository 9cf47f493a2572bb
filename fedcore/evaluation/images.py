"""Figures of images as PNG bytes: atoms, reconstructions, background and foreground, in rows with a title each; and
single pictures."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.evaluation.figures import INK, LONGEST, SOFT, _figure, _label, _png, _text
from fedcore.rounds.results import Pictures

CELL = 0.95  # inches of an image's longer side
COLUMNS = 10
ROOM = 0.24  # inches between rows, for their titles
SIGNED = 0.2  # of the largest value; less below 0 is noise


def grid_figure(rows: Mapping[str, np.ndarray], title: str, columns: int = COLUMNS) -> bytes:
    """A row of images for each title. rows: (n, H, W) grey or (n, H, W, 3) colour, n up to `columns` are shown.

    Values of [0, 1] are shown as they are, beyond clipped. An image with values well below 0 is shown around middle
    grey on its own scale: atoms have no natural one. A bool row is a mask.
    """
    shown = {name: np.asarray(images)[:columns] for name, images in rows.items()}
    width = max(len(images) for images in shown.values())
    first = next(iter(shown.values()))
    tall = first.shape[1] / first.shape[2]
    figure, grid = _figure(
        (CELL * width * max(1.0, 1 / tall), (CELL * max(1.0, tall) + ROOM) * len(shown) + 0.3), len(shown), width
    )
    figure.get_layout_engine().set(w_pad=0.02, h_pad=ROOM / 2)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold", color=_text()["color"])
    for axes, (name, images) in zip(grid, shown.items(), strict=True):
        for place, cell in enumerate(axes):
            cell.set_axis_off()
            if place < len(images):
                cell.imshow(displayed(images[place]), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
        # Not a title: that would widen the first column where it is longer than its image.
        axes[0].text(0.0, 1.04, name, transform=axes[0].transAxes, va="bottom", in_layout=False, **_text())
    return _png(figure)


def displayed(image: np.ndarray) -> np.ndarray:
    """The image with values of [0, 1]; see `grid_figure`."""
    image = np.asarray(image, np.float64)
    if image.min() < -SIGNED * image.max():
        return 0.5 + 0.5 * image / np.abs(image).max()
    return np.clip(image, 0.0, 1.0)


MOST = 60  # pictures that are shown
ACROSS = 10  # in a line
PLACE, GAP = 1.15, 0.34  # what a picture takes across, and the room above it for its label, in its own width
SIDE = 7.2 / (PLACE * ACROSS)  # inches of a picture's width
COLOURS = "RdBu_r"  # blue below 0, white, red above; distinguishable with colour-blindness


def pictures_figure(pictures: Pictures) -> bytes:
    """The first 60 pictures, ten in a line, each with its label above. Brightness is shown as it is. Otherwise colours
    go from minus to plus the largest |value| of each picture, and 0 is white; of pictures in colour it is grey.
    """
    images = np.asarray(pictures.images, np.float64)[:MOST]
    count, height, width = images.shape[:3]
    across = min(ACROSS, count)
    tall = min(max(height / width, 0.2), 5.0)  # of a picture of width 1
    lines = -(-count // across)
    right, bottom = across * PLACE, lines * (tall + GAP)
    figure, axes = _figure((max(right * SIDE, 3.0), 0.4 + bottom * SIDE))
    axes.set_axis_off()
    for number, (image, label) in enumerate(zip(images, pictures.labels, strict=False)):
        x, y = number % across * PLACE, number // across * (tall + GAP) + GAP
        largest = float(np.abs(image).max()) or 1.0
        at = (x, x + 1, y + tall, y)
        shown, colours, low, high = image, COLOURS, -largest, largest
        if pictures.brightness:
            shown, colours, low, high = np.clip(image, 0.0, 1.0), "gray", 0.0, 1.0
        elif image.ndim == 3:
            shown = 0.5 + 0.5 * image / largest
        axes.imshow(shown, colours, vmin=low, vmax=high, interpolation="nearest", extent=at, aspect="equal")
        axes.plot((x, x + 1, x + 1, x, x), (y, y, y + tall, y + tall, y), color=SOFT, linewidth=0.5)
        axes.text(x, y - 0.06, _label(label, LONGEST), va="bottom", **_text() | {"fontsize": 7})
    axes.set_xlim(-0.02, max(right, 3.0 / SIDE))
    axes.set_ylim(bottom + 0.02, 0)
    more = len(pictures.images) - count
    title = f"{pictures.title}: the first {count} of {count + more}" if more else pictures.title
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=INK)
    return _png(figure)
