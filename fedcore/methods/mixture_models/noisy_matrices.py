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


def spiked(values: np.ndarray, sd: float) -> np.ndarray:
    """(d,) as `oracle`: eigenvalues that noise alone could part from their mean become that mean, others lose what
    noise adds to a spike. values: (d,) increasing."""
    d = len(values)
    edge, v = 2 * np.sqrt(d / 2) * sd, d * sd**2 / 2
    inside = np.ones(d, bool)
    for _ in range(d):
        mean = values[inside].mean()
        now = np.abs(values - mean) <= edge
        if not now.any() or (now == inside).all():
            break
        inside = now
    mean = values[inside].mean() if inside.any() else values.mean()
    away = np.where(inside, 1.0, values - mean)
    spike = (away + np.sign(away) * np.sqrt(np.maximum(away**2 - 4 * v, 0.0))) / 2
    return increasing(np.where(inside, mean, mean + spike))


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


def covariance_of(matrix: np.ndarray, sd: float, floor: float, rule=oracle) -> tuple[np.ndarray, np.ndarray]:
    """(d,) eigenvalues, increasing and positive, and (d, d) eigenvectors in columns, of a noisy matrix (d, d).

    sd: of the noise on the diagonal. floor: of the mean eigenvalue that every eigenvalue has at least.
    """
    values, vectors = np.linalg.eigh(matrix)
    found = rule(values, sd)
    mean = max(float(found.mean()), sd, 1e-12)
    return np.maximum(found, max(FLOOR_OF_NOISE * sd, floor * mean)), vectors
