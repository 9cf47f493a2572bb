"""exp, log, normal quantiles and shares from additions, products, quotients and roots in a fixed order: the same bits
in any tile, on any machine.

NumPy's exp and log may take another path for the last entries of an array, or on another processor. These functions
are used where neighbouring rows must not affect a row. Their exp and log are accurate to about 1e-11.
"""

from __future__ import annotations

import math

import numpy as np

LOG2_E = 1.0 / math.log(2.0)
LN_2 = math.log(2.0)
COEFFICIENTS = tuple(LN_2**power / math.factorial(power) for power in range(11))  # of 2^t about 0
WINITZKI = 0.147
LEAST = -1000.0  # of exponents of 2: below it the answer is taken to be 2^-1000


def exp(x: np.ndarray) -> np.ndarray:
    """exp of numbers of at most 0, as float64."""
    y = np.maximum(x * LOG2_E, LEAST)
    whole = np.rint(y)
    y -= whole
    total = np.full_like(y, COEFFICIENTS[-1])
    for coefficient in COEFFICIENTS[-2::-1]:
        total *= y
        total += coefficient
    answer: np.ndarray = np.ldexp(total, whole.astype(np.int32))
    return answer


def log(x: np.ndarray) -> np.ndarray:
    """log of positive numbers, as float64."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    exponent = exponent - low
    t = (mantissa - 1.0) / (mantissa + 1.0)
    square = t * t
    total = np.full_like(t, 1.0 / 15.0)
    for odd in (13, 11, 9, 7, 5, 3, 1):
        total *= square
        total += 1.0 / odd
    answer: np.ndarray = exponent * LN_2 + 2.0 * t * total
    return answer


def normal_quantile(u: np.ndarray) -> np.ndarray:
    """The number below which a standard normal one is with probability u in [0, 1), as float64, to 0.2 %.

    Source: Winitzki 2008, "A handy approximation for the error function and its inverse".
    """
    inside = np.maximum(u, 2.0**-54)
    logs = log(4.0 * inside * (1.0 - inside))
    half = 2.0 / (math.pi * WINITZKI) + 0.5 * logs
    size = np.sqrt(np.maximum(np.sqrt(half * half - logs / WINITZKI) - half, 0.0))
    answer: np.ndarray = math.sqrt(2.0) * np.where(inside < 0.5, -size, size)
    return answer


def shares(joint: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(k, n) shares exp(joint) / sum, and (n,) the log of the sum; both float64. joint: (k, n) finite."""
    top = joint.max(axis=0)
    parts = exp(joint - top)
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return parts / total, top + log(total)
