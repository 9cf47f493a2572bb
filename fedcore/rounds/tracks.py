"""Boxes of the objects in masks, and tracks of them from picture to picture."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Box(NamedTuple):
    """An object of a mask, in pixels from the top left corner. track: number of the object that it continues."""

    track: int
    top: int
    left: int
    height: int
    width: int
    pixels: int


class Tracker:
    """Gives each object of consecutive masks of a camera the number of a track.

    An object is a connected group of pixels (8 neighbours). It continues the object of the mask before whose box
    overlaps its own most (intersection over union), or else the nearest whose centre is not farther than the larger of
    the two boxes is long. Pairs are made one after the other, the best first; each object has one successor. Other
    objects begin a track. A track ends where an object is in no mask.
    """

    def __init__(self) -> None:
        self.before: list[Box] = []
        self.count = 0

    def begin(self) -> None:
        """The next mask is one of another sequence, and continues nothing."""
        self.before = []

    def boxes(self, mask: np.ndarray) -> list[Box]:
        """Of the objects in a mask (H, W) bool, the next one of the sequence; from the top, then from the left."""
        from scipy.ndimage import find_objects, label

        numbers, count = label(mask, np.ones((3, 3), bool))
        sizes = np.bincount(numbers.ravel(), minlength=count + 1)[1:]
        found = [
            Box(-1, down.start, across.start, down.stop - down.start, across.stop - across.start, int(size))
            for (down, across), size in zip(find_objects(numbers), sizes, strict=True)
        ]
        found.sort(key=lambda box: box[1:])
        pairs = sorted((-_alike(old, new), i, j) for i, old in enumerate(self.before) for j, new in enumerate(found))
        continued: set[int] = set()
        for score, i, j in pairs:
            if score == 0:
                break
            if i not in continued and found[j].track < 0:
                found[j] = found[j]._replace(track=self.before[i].track)
                continued.add(i)
        for j, box in enumerate(found):
            if box.track < 0:
                found[j], self.count = box._replace(track=self.count), self.count + 1
        self.before = found
        return found


def _alike(a: Box, b: Box) -> float:
    """1 + intersection over union of boxes that overlap; less than 1 for others, 0 for those too far apart."""
    rows = min(a.top + a.height, b.top + b.height) - max(a.top, b.top)
    columns = min(a.left + a.width, b.left + b.width) - max(a.left, b.left)
    if rows > 0 and columns > 0:
        shared = rows * columns
        return 1.0 + shared / (a.height * a.width + b.height * b.width - shared)
    apart = np.hypot(a.top - b.top + (a.height - b.height) / 2, a.left - b.left + (a.width - b.width) / 2)
    reach = max(a.height, a.width, b.height, b.width)
    return max(0.0, 1.0 - float(apart) / reach)
