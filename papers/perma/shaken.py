"""Clips of a camera that shakes, with fractions of a pixel and real borders.

The scene is painted twice as fine as the camera sees it and larger than its picture. The camera looks at another place
in each frame: a pixel is the mean of 2 x 2 fine ones, read between them by bilinear weights. So what comes in at a
border was not seen before, and no frame is an interpolation of another one. Objects cover whole pixels.
"""

from __future__ import annotations

import numpy as np
from fedcore.papers.perma.clips import HEIGHT, MARGIN, WIDTH, Clip, Conditions, moving_objects, scene, with_noise

from fedcore.randomness import stream

FINE = 2  # pixels of the scene for one of the camera, in each direction


def shaken(seed: int, conditions: Conditions, pixels: float, height: int = HEIGHT, width: int = WIDTH) -> Clip:
    """A clip of height x width x 3 pixels of 8 bits, divided by 255, of a camera that is moved by up to `pixels` down
    and across, uniformly and anew for each frame; its background (F, H, W, 3) is what each frame would show without
    objects and noise. conditions: without what sways and without light."""
    generator, frames = stream(seed, "dictionaries/shaken-video"), conditions.frames
    wide = scene(generator, FINE * (height + 2 * MARGIN), FINE * (width + 2 * MARGIN))
    moves = MARGIN + generator.uniform(-pixels, pixels, (frames, 2))
    background = np.stack([_seen(wide, by, (height, width)) for by in moves])
    clip = Clip(background.copy(), background, np.zeros((frames, height, width), bool))
    moving_objects(generator, clip, conditions, wide.mean(axis=(0, 1)))
    brightness = 1.0 + conditions.gain * generator.standard_normal((frames, 1, 1, 1))
    noisy = with_noise(generator, brightness * clip.frames, conditions)
    eight_bits = np.rint(np.clip(noisy, 0.0, 1.0) * 255.0) / 255.0
    return Clip(eight_bits, np.clip(brightness * background, 0.0, 1.0), clip.masks)


def _seen(fine: np.ndarray, by: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(H, W, C) what a camera sees of a fine picture, `by` (down, across) of its pixels from the top left corner."""
    whole, rest = np.divmod(FINE * by, 1.0)
    low = whole.astype(int)
    part = fine[low[0] : low[0] + FINE * size[0] + 1, low[1] : low[1] + FINE * size[1] + 1].astype(float)
    part = (1 - rest[0]) * part[:-1] + rest[0] * part[1:]
    part = (1 - rest[1]) * part[:, :-1] + rest[1] * part[:, 1:]
    return part.reshape(size[0], FINE, size[1], FINE, -1).mean(axis=(1, 3))
