"""Figures of images: atoms, reconstructions, background and foreground, in rows with a title each, as PNG bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedcore.evaluation.figures import _figure, _png, _text

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
