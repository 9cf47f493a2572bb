"""Quantiles of noisy histograms whose cells are on a logarithmic scale.

Most cells of such a histogram are empty, and noise is in all of them: a few false cells far out would move a quantile
by orders of magnitude. So only cells that stand out are kept.
"""

from __future__ import annotations

import numpy as np

SURE, LIKELY = 4.5, 2.0  # standard deviations of a cell's noise
BELOW, ABOVE = 5, 4  # cells about the largest in which LIKELY is enough
WINDOW = 4  # neighbouring cells that hold most of a column with one typical size, if each doubles it


def standing_out(counts: np.ndarray, sd: float) -> tuple[np.ndarray, np.ndarray]:
    """Whether the best WINDOW neighbouring cells stand out of noise of standard deviation `sd` in each cell by SURE
    deviations of their sum, (...) bool, and which cells are near the largest of them, (..., cells) bool.

    counts: (..., cells).
    """
    sums = np.lib.stride_tricks.sliding_window_view(counts, WINDOW, axis=-1).sum(axis=-1)
    inside = np.arange(counts.shape[-1]) - sums.argmax(axis=-1)[..., None]
    held = np.where((inside >= 0) & (inside < WINDOW), counts, -np.inf)
    return sums.max(axis=-1) > SURE * np.sqrt(WINDOW) * sd, about(held)


def about(counts: np.ndarray) -> np.ndarray:
    """(..., cells) bool: cells from BELOW under the largest to ABOVE over it."""
    cells, top = np.arange(counts.shape[-1]), counts.argmax(axis=-1)[..., None]
    near: np.ndarray = (cells >= top - BELOW) & (cells <= top + ABOVE)
    return near


def kept(counts: np.ndarray, sd: float, near: np.ndarray | None = None) -> np.ndarray:
    """(..., cells) the counts of the cells that stand out of noise of standard deviation `sd`, and 0 for the others:
    more than SURE deviations, or more than LIKELY where `near`; the largest of those always counts, as 1 at least.

    near: (..., cells) bool; not far from the largest cell, unless given.
    """
    counts = np.asarray(counts, np.float64)
    near = about(counts) if near is None else near
    stay = (counts > SURE * sd) | (near & (counts > LIKELY * sd))
    top = np.where(near, counts, -np.inf).argmax(axis=-1)[..., None]
    found = np.where(stay, counts, 0.0)
    return np.where(np.arange(counts.shape[-1]) == top, np.maximum(counts, 1.0), found)


def certain(counts: np.ndarray, sd: float, near: np.ndarray) -> np.ndarray:
    """(..., cells) as `kept`, but what a cell may owe to noise counts in the largest of the cells that are `near`:
    LIKELY deviations there, SURE ones in the others. So one false cell, however far out, hardly moves a quantile."""
    held = kept(counts, sd, near)
    sure = np.maximum(held - np.where(near, LIKELY, SURE) * sd, 0.0)
    top = np.where(near, counts, -np.inf).argmax(axis=-1)[..., None]
    rest = (held - sure).sum(axis=-1, keepdims=True)
    return np.where(np.arange(counts.shape[-1]) == top, sure + rest, sure)


def quantile(counts: np.ndarray, edges: np.ndarray, share: float) -> np.ndarray:
    """(...,) values below which there is a fraction `share` of the counts, linear within cells.

    counts: (..., cells), not negative, some positive. edges: (cells + 1,) increasing.
    """
    total = counts.sum(axis=-1, keepdims=True)
    reached = np.cumsum(counts, axis=-1)
    at = np.minimum((reached < share * total).sum(axis=-1), counts.shape[-1] - 1)[..., None]
    here = np.take_along_axis(counts, at, axis=-1)
    before = np.take_along_axis(reached, at, axis=-1) - here
    part = np.clip((share * total - before) / np.maximum(here, 1e-300), 0.0, 1.0)
    low, high = edges[at], edges[at + 1]
    found: np.ndarray = (low + part * (high - low))[..., 0]
    return found
