"""The cells that a number falls into. They are public: they follow from declared bounds alone.

A column has LEAVES leaves in increasing order. With bounds, the first leaf is the lower bound itself (and what is
below), the last one the upper bound (and what is above), and the others have equal width. Without bounds, leaves are
eighths of octaves of the absolute value, from 2^-30 to 2^31, and one leaf for zero and what is smaller.
"""

from __future__ import annotations

import numpy as np

LEVELS = 10  # of the binary tree above the leaves
LEAVES = 2**LEVELS
INNER = LEAVES - 2  # leaves of equal width between two bounds
EXPONENTS = 30  # log2 of absolute values, from -30 to 30
PARTS = 8  # of an octave, of equal width
SIGN = PARTS * (2 * EXPONENTS + 1)  # leaves of one sign
ZERO = LEAVES // 2 - 1  # the leaf of zero where there are no bounds


def leaf_of(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """(n,) int64 leaf of each number, -1 if it is missing or not finite. A function of each number alone.

    x: (n,) float64. low, high: the bounds of the column, both NaN if it has none.
    """
    finite = np.isfinite(x)
    found = _between(np.where(finite, x, low), low, high) if low < high else _octaves(np.where(finite, x, 0.0))
    return np.where(finite, found, -1)


def _between(x: np.ndarray, low: float, high: float) -> np.ndarray:
    cut = np.clip(x, low, high)
    inner = np.clip(np.floor((cut - low) / (high - low) * INNER), 0, INNER - 1).astype(np.int64) + 1
    return np.where(x <= low, 0, np.where(x >= high, LEAVES - 1, inner))


def _octaves(x: np.ndarray) -> np.ndarray:
    part, exponent = np.frexp(np.abs(x))
    octave = exponent.astype(np.int64) - 1 + EXPONENTS
    place = PARTS * octave + np.floor((part - 0.5) * 2 * PARTS).astype(np.int64)  # exact: part is from 0.5 to 1
    place = np.minimum(place, SIGN - 1)
    nothing = (x == 0) | (place < 0)
    return np.where(nothing, ZERO, np.where(x < 0, ZERO - 1 - place, ZERO + 1 + place))


def edges_of(low: float, high: float) -> np.ndarray:
    """(LEAVES + 1,) float64 edges of the leaves, not decreasing, in the unit of the column. The leaves of the two
    bounds, or that of zero, have no width."""
    if low < high:
        return np.concatenate([[low], np.linspace(low, high, INNER + 1), [high]])
    octaves = 2.0 ** np.arange(-EXPONENTS, EXPONENTS + 1)
    positive = np.append((octaves[:, None] * (1 + np.arange(PARTS) / PARTS)).ravel(), 2 * octaves[-1])
    positive[0] = 0.0  # so that the leaf of zero has no width
    edges = np.concatenate([-positive[::-1], positive])
    before = ZERO - SIGN
    return np.pad(edges, (before, LEAVES + 1 - len(edges) - before), mode="edge")
