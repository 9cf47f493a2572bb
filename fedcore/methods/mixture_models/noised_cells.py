"""Quantiles of noised histograms whose cells lie on a logarithmic scale.

Most cells of such a histogram are empty, and noise is in all of them: a few false cells far out would move a quantile
by orders of magnitude. So only cells that stand out are kept.
"""

from __future__ import annotations

import numpy as np

SURE, LIKELY = 4.5, 2.0  # standard deviations of a cell's noise
BELOW, ABOVE = 5, 4  # cells about the largest in which LIKELY is enough


def kept(counts: np.ndarray, sd: float) -> np.ndarray:
    """(..., cells) the counts of the cells that stand out of noise of standard deviation `sd`, and 0 for the others:
    more than SURE deviations, or more than LIKELY not far from the largest; the largest itself always counts, as 1 at
    least.
    """
    counts = np.asarray(counts, np.float64)
    cells, top = np.arange(counts.shape[-1]), counts.argmax(axis=-1)[..., None]
    near = (cells >= top - BELOW) & (cells <= top + ABOVE)
    stay = (counts > SURE * sd) | (near & (counts > LIKELY * sd))
    found = np.where(stay, counts, 0.0)
    return np.where((cells == top), np.maximum(counts, 1.0), found)


def quantile(counts: np.ndarray, edges: np.ndarray, share: float) -> np.ndarray:
    """(...,) below which `share` of the counts lie, linear within cells.

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
