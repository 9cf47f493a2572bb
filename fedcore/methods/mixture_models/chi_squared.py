"""The chi-squared distribution, which squared distances of normal rows have: to the last bit that of scipy.stats, but
without its import, which takes longer than a small run.

Arguments broadcast; degrees are positive. Results are float64 of the common shape.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import ArrayLike


def cdf(x: ArrayLike, degrees: ArrayLike) -> np.ndarray:
    """The probability of at most x >= 0."""
    value: np.ndarray = scipy.special.chdtr(degrees, x)
    return value


def sf(x: ArrayLike, degrees: ArrayLike) -> np.ndarray:
    """The probability of more than x >= 0."""
    value: np.ndarray = scipy.special.chdtrc(degrees, x)
    return value


def ppf(share: float, degrees: ArrayLike) -> np.ndarray:
    """The value that is exceeded with probability 1 - share; share is between 0 and 1."""
    value: np.ndarray = 2 * scipy.special.gammaincinv(np.asarray(degrees) / 2, share)
    return value


def median(degrees: ArrayLike) -> np.ndarray:
    return ppf(0.5, degrees)
