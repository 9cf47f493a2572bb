"""Rows that are pictures: their shape, and what of them differs from what was expected."""

from __future__ import annotations

import numpy as np

COLOURS = ("red", "green", "blue")


def picture_shape(image: tuple[int, int], count: int) -> tuple[int, ...]:
    """(height, width) of pictures whose rows have `count` numbers, or (height, width, 3)."""
    return image if image[0] * image[1] == count else (*image, 3)


def difference(frames: np.ndarray, background: np.ndarray) -> np.ndarray:
    """(F, H, W) largest over the channels of |frame - background|; background broadcasts over the frames."""
    largest: np.ndarray = np.abs(frames - background).max(axis=-1)
    return largest


def own_threshold(values: np.ndarray, deviations: float = 6.0) -> float:
    """median + deviations * MAD of all values; needs no truth. MAD: median distance from the median, unscaled."""
    middle = np.median(values)
    return float(middle + deviations * np.median(np.abs(values - middle)))
