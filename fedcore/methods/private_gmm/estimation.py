"""Estimation: weights, means and covariances of the components, one for each cell (Algorithm 4, steps 3 and 4)."""

from __future__ import annotations

import math

import numpy as np

from fedcore.methods.private_gmm.bounding import radius_of
from fedcore.methods.private_gmm.config import Covariance
from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.projection import second_moment

TAIL = 0.005  # of a cell: rows that its radius may leave out
WIDER = 1.1  # the ratio of the grid of radii: one bin is added
LARGEST_NOISE = 0.25  # of the smallest eigenvalue: beyond, a full covariance is not reliable


def weights_of(counts: np.ndarray) -> np.ndarray:
    """(m,) shares, positive. counts: (m,) noised."""
    kept = np.maximum(counts, 1e-9 * max(float(counts.max()), 1.0))
    return kept / kept.sum()


def reach_of(
    radii: np.ndarray, counts: np.ndarray, edges: np.ndarray, noise: float, step: np.ndarray, d: int
) -> np.ndarray:
    """(m,) radii that rows of the cells are cut to next.

    radii: (m, bins) of units, with upper edges (bins,); counts: (m,) of units; noise: of a bin; step: (m,) of the grid
    of rows.
    """
    found = [radius_of(row, edges, noise, n, TAIL * max(n, 0.0)) for row, n in zip(radii, counts, strict=True)]
    return WIDER * np.array(found) + 0.5 * math.sqrt(d) * step


def square_units(counts: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """(m,) what a squared step of a sum over a cell is worth in its second moment, in the units of the data."""
    unit: np.ndarray = (reach / ONE) ** 2 / np.maximum(counts, 1.0)
    return unit


def covariances_of(
    moments: np.ndarray, unit: np.ndarray, d: int, form: Covariance, noise: np.ndarray, smallest: float
) -> tuple[np.ndarray, np.ndarray]:
    """(covariances, unreliable): (m,), (m, d) or (m, d, d), at least smallest**2 in every direction; and (m,) bool.

    moments: (m, width) as published, in the unit (m,); noise: (m,) its standard deviation, in that unit. Where the
    noise of a full covariance is not small beside its eigenvalues, the matrix is replaced by its diagonal, or by a
    sphere.
    """
    floor = smallest**2
    if form == "spherical":
        return np.maximum(moments[:, 0] * unit / d, floor), np.zeros(len(unit), bool)
    if form == "diag":
        return np.maximum(moments * unit[:, None], floor), np.zeros(len(unit), bool)
    made = [_full(row, scale, d, sd * scale, floor) for row, scale, sd in zip(moments, unit, noise, strict=True)]
    return np.stack([matrix for matrix, _ in made]), np.array([bad for _, bad in made])


def _full(triangle: np.ndarray, scale: float, d: int, noise: float, floor: float) -> tuple[np.ndarray, bool]:
    """noise: standard deviation of an entry off the diagonal; that of an eigenvalue is about 2 sqrt(d) times this."""
    matrix = second_moment(triangle, d) * scale
    values, vectors = np.linalg.eigh(matrix)
    of_a_value = 2.0 * math.sqrt(d) * noise
    sphere = max(float(np.trace(matrix)) / d, floor)
    if of_a_value <= LARGEST_NOISE * sphere:
        # Eigenvalues below the noise are noise: the directions are kept, and the trace is not made larger by the floor.
        smallest = max(floor, min(of_a_value, sphere))
        return (vectors * np.maximum(values, smallest)) @ vectors.T, False
    variances = np.diagonal(matrix)
    if math.sqrt(2.0) * noise <= LARGEST_NOISE * sphere:
        return np.diag(np.maximum(variances, max(floor, 0.1 * sphere))), True
    return np.eye(d) * sphere, True
