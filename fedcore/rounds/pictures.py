"""Rows that are pictures: their shape, and what of them differs from what was expected."""

from __future__ import annotations

import numpy as np

COLOURS = ("red", "green", "blue")
WEAK, STRONG, NEAR = 5.0, 7.0, 4.0  # deviations of a pixel that may move, of one that moves, and of it from all nearby
REACH = 2  # pixels by which an edge may sway
FARTHER, LESS = 3, 3.0  # pixels by which one may sway now and then, and deviations of a pixel that moves from those
FAINT = 0.5  # of the least change, which a pixel of an object need not reach
FEWEST, SMALLEST = 4, 1e-4  # pixels of an object, and their share of the picture
SOLID = 0.2  # least share of the pixels of an object that are strong
DARKEST, LIGHTEST = 0.5, 0.95  # brightness of a pixel in a shadow, in that of its background
SAME_COLOUR = 5 / 20  # of the least change, by which a channel of a pixel in a shadow may differ from that
LIT = 2.0  # least brightness of the background of a shadow, in least changes


def picture_shape(image: tuple[int, int], count: int) -> tuple[int, ...]:
    """(height, width) of pictures whose rows have `count` numbers, or (height, width, 3)."""
    return image if image[0] * image[1] == count else (*image, 3)


def shifted(picture: np.ndarray, by: np.ndarray, beyond: float | None = None) -> np.ndarray:
    """A picture (H, W[, C]) moved by whole pixels (down, across), which are fewer than it has. beyond: what comes in at
    the borders; None: the nearest pixel, again and again."""
    found = picture
    for axis, step in enumerate(map(int, by)):
        if step == 0:
            continue
        before, found = np.moveaxis(found, axis, 0), np.empty_like(picture)
        after = np.moveaxis(found, axis, 0)
        kept, new = (slice(step, None), slice(0, step)) if step > 0 else (slice(0, step), slice(step, None))
        after[kept] = before[: len(before) - step] if step > 0 else before[-step:]
        after[new] = (before[:1] if step > 0 else before[-1:]) if beyond is None else beyond
    return found


def difference(frames: np.ndarray, background: np.ndarray) -> np.ndarray:
    """(F, H, W) largest over the channels of |frame - background|; background broadcasts over the frames."""
    largest: np.ndarray = np.abs(frames - background).max(axis=-1)
    return largest


def foreground(
    frames: np.ndarray,
    background: np.ndarray,
    noise: np.ndarray,
    least: float,
    shifts: np.ndarray | None = None,
    shadows: bool = True,
) -> np.ndarray:
    """(F, H, W) bool: the objects before a background, by hysteresis.

    frames, background: (F, H, W) or (F, H, W, 3) pixels and what they would be without objects; noise: (H, W[, 3]) > 0
    standard deviation of each; least: change in a channel, in the units of the pixels, below which nothing moves;
    shifts: (F, 2) pixels down and across by which a camera that shook moved the scene of each frame, and so its noise.
    What came in at the borders has no noise that is known, and is in no mask. shadows: whether they may be in masks. If
    not, a pixel whose channels are all about q times those of its background, q between 0.5 and 0.95, does not change.

    A pixel is weak where it changes by more than 5 deviations and by more than half of `least`. It is strong where it
    changes by more than 7 deviations and by more than `least`, and by more than 4 deviations from all of the 5 x 5
    pixels of the background around it, and by more than 3 from the 7 x 7; so an edge that sways by
    3 pixels is not. A majority of 3 x 3 pixels decides.
    An object is a connected part of the weak pixels (8 neighbours) that has at least 4 of them, 1e-4 of the picture,
    and a fifth of them strong.

    Source: Canny, "A computational approach to edge detection" (1986), for the two thresholds.
    """
    still, found = _planes(1.0 / noise), np.zeros(frames.shape[:3], bool)
    whole = np.zeros((len(frames), 2)) if shifts is None else np.rint(shifts)
    for mask, one, behind, by in zip(found, frames, background, whole, strict=True):
        inverse = _planes(shifted(1.0 / noise, by, 0.0)) if by.any() else still
        planes, expected = _planes(one), _planes(behind)
        if not shadows:
            planes = np.where(_in_shadow(planes, expected, inverse, least), expected, planes)
        mask[:] = _objects(planes, expected, inverse, least)
    return found


def _in_shadow(frame: np.ndarray, background: np.ndarray, inverse: np.ndarray, least: float) -> np.ndarray:
    """(H, W) bool of channels (C, H, W): darker than the background by one factor in all channels, within 2 deviations
    or SAME_COLOUR of the least change (Horprasert, Harwood, Davis 1999)."""
    factor = (frame * background).sum(axis=0) / np.maximum((background**2).sum(axis=0), np.finfo(np.float32).tiny)
    rest = np.abs(frame - factor * background)
    same = ((rest * inverse < 2.0) | (rest < SAME_COLOUR * least)).all(axis=0)
    darker = (factor > DARKEST) & (factor < LIGHTEST)
    found: np.ndarray = darker & same & (background.max(axis=0) > LIT * least)
    return found


def _planes(picture: np.ndarray) -> np.ndarray:
    """(C, H, W) float32 channels of a picture (H, W[, C])."""
    return np.ascontiguousarray(np.moveaxis(np.atleast_3d(picture), -1, 0), np.float32)


def _objects(frame: np.ndarray, background: np.ndarray, inverse: np.ndarray, least: float) -> np.ndarray:
    """(H, W) bool of channels (C, H, W); inverse: 1 / noise."""
    from scipy.ndimage import label

    change = np.abs(frame - background)
    size, deviations = change.max(axis=0), (change * inverse).max(axis=0)
    weak = (deviations > WEAK) & (size > FAINT * least)
    certain: np.ndarray = (deviations > STRONG) & (size > least)
    if not certain.any():
        return certain
    lines, columns = np.nonzero(certain)
    own, scale = frame[:, lines, columns], inverse[:, lines, columns]
    edged = np.pad(background, ((0, 0), (FARTHER, FARTHER), (FARTHER, FARTHER)), mode="edge")
    wide, flat = edged.shape[2], edged.reshape(len(edged), -1)
    corner = lines * wide + columns
    near = np.full((2, len(lines)), np.inf, np.float32)  # from pixels within REACH, and from those beyond
    for down, across in np.ndindex(2 * FARTHER + 1, 2 * FARTHER + 1):
        beyond = int(max(abs(down - FARTHER), abs(across - FARTHER)) > REACH)
        rest = np.abs(own - flat.take(corner + (down * wide + across), axis=1)) * scale
        np.minimum(near[beyond], rest.max(axis=0), out=near[beyond])
    certain[lines, columns] = (near[0] > NEAR) & (near[1] > LESS)
    around = np.pad(certain, 1, mode="edge").astype(np.uint8)
    rows = around[:-2] + around[1:-1] + around[2:]
    strong = (rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] >= 5) & weak
    numbers, count = label(weak, np.ones((3, 3), bool))
    sizes = np.bincount(numbers.ravel(), minlength=count + 1)
    solid = np.bincount(numbers[strong], minlength=count + 1)
    kept = (sizes >= max(FEWEST, SMALLEST * weak.size)) & (solid >= np.maximum(SOLID * sizes, 1))
    kept[0] = False
    objects: np.ndarray = kept[numbers]
    return objects


def own_threshold(values: np.ndarray, deviations: float = 6.0) -> float:
    """median + deviations * MAD of all values; needs no truth. MAD: median distance from the median, unscaled."""
    middle = np.median(values)
    return float(middle + deviations * np.median(np.abs(values - middle)))
