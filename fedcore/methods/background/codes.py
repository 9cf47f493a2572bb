"""Codes of a frame: its gain, its offset, and how much of each further image is in it, by robust regression."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.methods.background.frames import (
    BIWEIGHT,
    DARKEST,
    EXPOSURE_CUT,
    FLAT,
    MOST_GAIN,
    TO_STANDARD_DEVIATION,
    exposures,
    shows_the_scene,
)

HUBER_STEPS, BIWEIGHT_STEPS = 4, 3  # of the regression of a frame
BOUND = 1.7  # of a code, in roots of its mode's energy
RIDGE = 1e-9  # of the trace: what keeps a system of equations solvable


class Codes(NamedTuple):
    """gains, offsets, spreads: (n,); shown: (n,) bool, frames that show the scene; modes: (n, K), 0 for others."""

    gains: np.ndarray
    offsets: np.ndarray
    spreads: np.ndarray
    shown: np.ndarray
    modes: np.ndarray


def codes_of(samples: np.ndarray, images: np.ndarray, energies: np.ndarray) -> Codes:
    """Robust regression of pixels of frames (n, m) on those of images (1 + K, m), the background and its modes.

    From `exposures` on, by Huber's weights and then the biweight, in which an object does not count at all. Codes have
    a normal prior of variance energies (K,), and are cut to BOUND of its root.
    """
    y, b = np.asarray(samples, np.float64), np.asarray(images, np.float64)
    gains, offsets, spreads = exposures(y, b[0])
    width = TO_STANDARD_DEVIATION * float(np.median(np.abs(b[0] - np.median(b[0]))))
    shown, codes = shows_the_scene(gains, spreads, width), np.zeros((len(y), len(b) - 1))
    tried = (gains >= 1 / DARKEST) & (gains <= MOST_GAIN)  # of a dark frame the codes decide
    middle = float(b[0].mean())
    b = b.copy()
    b[0] -= middle
    if not tried.any() or (b[0] @ b[0]) <= FLAT * b.shape[1] * middle**2:
        return Codes(gains, offsets, spreads, shown, codes)
    found = _regression(y[tried], b, gains[tried], offsets[tried] + gains[tried] * middle, energies)
    bound = BOUND * np.sqrt(energies)
    gains[tried], codes[tried] = found[:, 0], np.clip(found[:, 2:], -bound, bound)
    offsets[tried] = found[:, 1] - found[:, 0] * middle
    rest = np.abs(y[tried] - gains[tried, None] * b[0] - found[:, 1:2] - codes[tried] @ b[1:])
    spreads[tried] = TO_STANDARD_DEVIATION * np.median(rest, axis=1)
    shown = shows_the_scene(gains, spreads, width)
    codes[~shown] = 0.0
    return Codes(gains, offsets, spreads, shown, codes)


def _regression(
    y: np.ndarray, images: np.ndarray, gains: np.ndarray, offsets: np.ndarray, energies: np.ndarray
) -> np.ndarray:
    """(n, 2 + K) coefficients of frames (n, m) on image, 1, and modes, by reweighting from given gains and offsets."""
    columns = np.vstack([images[:1], np.ones((1, images.shape[1])), images[1:]])
    count = len(columns)
    above = np.triu_indices(count)
    products = columns[above[0]] * columns[above[1]]
    found = np.zeros((len(y), count))
    found[:, 0], found[:, 1] = gains, offsets
    prior = np.concatenate([np.zeros(2), 1.0 / energies])
    tiny = np.finfo(float).tiny
    system = np.empty((len(y), count, count))
    for step in range(HUBER_STEPS + BIWEIGHT_STEPS):
        rest = np.abs(y - found @ columns)
        scale = np.maximum(TO_STANDARD_DEVIATION * np.median(rest, axis=1)[:, None], tiny)
        if step < HUBER_STEPS:
            w = 1.0 / np.maximum(rest / (EXPOSURE_CUT * scale), 1.0)
        else:
            w = np.minimum(rest / (BIWEIGHT * scale), 1.0)
            w = (1.0 - w * w) ** 2
        sums = w @ products.T
        system[:, above[0], above[1]] = system[:, above[1], above[0]] = sums
        ridge = RIDGE * np.trace(system, axis1=1, axis2=2)[:, None]
        np.einsum("nkk->nk", system)[...] += np.maximum(scale**2 * prior + ridge, tiny)
        found = np.linalg.solve(system, ((w * y) @ columns.T)[..., None])[..., 0]
    return found
