"""Symmetric matrices that were released with Gaussian noise, made into covariances.

The noise of a packed second moment is a multiple of the Gaussian orthogonal ensemble: standard deviation sd on the
diagonal and sd / sqrt(2) off it, the same in every basis. So only eigenvalues are changed.
"""

from __future__ import annotations

import numpy as np

FLOOR_OF_NOISE = 0.1  # eigenvalues are at least this many sd


def oracle(values: np.ndarray, sd: float) -> np.ndarray:
    """(d,) eigenvalues of the best estimate with the noisy eigenvectors, increasing. values: (d,) increasing; sd: of
    the noise on the diagonal.

    Source: the rotation-invariant oracle for additive noise of Bun, Allez, Bouchaud, Potters, "Rotational invariant
    estimator for general noisy matrices" (2016): lambda - 2 v h(lambda), v = d sd^2 / 2, with h the mean of
    1 / (lambda - lambda_j), smoothed at the spacing of the noise; then the nearest increasing sequence.
    """
    d = len(values)
    v = d * sd**2 / 2
    if v <= 0:
        return values.copy()
    gaps = values[:, None] - values
    h = (gaps / (gaps**2 + v / d)).mean(axis=1)
    return increasing(values - 2 * v * h)


def increasing(values: np.ndarray) -> np.ndarray:
    """(n,) the increasing sequence nearest in squares (pool adjacent violators)."""
    level, weight = list[float](), list[int]()
    for value in values:
        level.append(float(value))
        weight.append(1)
        while len(level) > 1 and level[-2] > level[-1]:
            both = weight[-2] + weight[-1]
            level[-2] = (level[-2] * weight[-2] + level[-1] * weight[-1]) / both
            weight[-2] = both
            level.pop(), weight.pop()
    return np.repeat(level, weight)


def covariance_of(matrix: np.ndarray, sd: float, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """(d,) eigenvalues, increasing and positive, and (d, d) eigenvectors in columns, of a noisy matrix (d, d).

    sd: of the noise on the diagonal. floor: of the mean eigenvalue that every eigenvalue has at least.
    """
    values, vectors = np.linalg.eigh(matrix)
    found = oracle(values, sd)
    mean = max(float(found.mean()), sd, 1e-12)
    return np.maximum(found, max(FLOOR_OF_NOISE * sd, floor * mean)), vectors
