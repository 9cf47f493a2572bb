"""The coordinates of the components: those in which all rows have about mean 0 and covariance 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcore.methods.mixture_models.noisy_matrices import covariance_of
from fedcore.methods.mixture_models.whole_rows import ON_DIAGONAL, ONE, STEP, WholeMap, matrix_of_products, whole_map

FLOORS = (1e-4, 0.02)  # of the mean eigenvalue, in the two whitenings
FEWEST = 2.0  # units: a smaller noisy count is taken to be this


@dataclass(frozen=True, slots=True)
class Moments:
    """mean: (d,); values (d,) increasing and vectors (d, d) of the covariance."""

    mean: np.ndarray
    values: np.ndarray
    vectors: np.ndarray


def diagonal_noise(noise: float) -> float:
    """Standard deviation on the diagonal of the matrix that `matrix_of_products` unpacks, for noise of a published
    entry."""
    return noise / ON_DIAGONAL


def noise_edge(noise: float, d: int, clip: float, count: float) -> float:
    """The largest eigenvalue that noise alone gives to second moments of rows cut to `clip`, about.

    noise: of the published triangle, in steps; clip: in units; count: of units.
    """
    return math.sqrt(2 * d) * diagonal_noise(noise) * clip**2 / ONE / count


def moments_of(
    count: float, sums: np.ndarray, triangle: np.ndarray, noise: float, clip: float, floor: float
) -> Moments:
    """From published values in steps; mean and covariance are in units. clip: in units; noise: of the triangle."""
    d, n = len(sums), max(count, FEWEST)
    mean = sums * (clip / ONE / n)
    second = matrix_of_products(triangle, d) * (clip**2 / ONE / n)
    sd = diagonal_noise(noise) * clip**2 / ONE / n
    values, vectors = covariance_of(second - np.outer(mean, mean), sd, floor)
    return Moments(mean, values, vectors)


def identity(d: int) -> WholeMap:
    return whole_map(np.zeros(d), np.eye(d))


def whitened(before: WholeMap, found: Moments) -> WholeMap:
    """The map that follows `before` by the whitening of what was found in its coordinates."""
    root = (found.vectors / np.sqrt(found.values)) @ found.vectors.T
    linear = before.linear()
    centre = before.centre + np.linalg.lstsq(linear.T, found.mean / STEP, rcond=None)[0]
    return whole_map(centre, linear @ root)


def covariance_under(final: WholeMap) -> np.ndarray:
    """(d, d) of standardised rows, in units, if they have covariance 1 in the coordinates of the map."""
    back = np.linalg.pinv(final.linear())
    return back.T @ back


def leading(final: WholeMap, q: int) -> tuple[WholeMap, np.ndarray, np.ndarray]:
    """The map to q leading directions, each divided by the fourth root of its variance; (q,) standard deviations of all
    rows there; and (q, d) what a step there is in the coordinates of `final`, in expectation."""
    values, vectors = np.linalg.eigh(covariance_under(final))
    values, vectors = np.maximum(values[::-1][:q], 1e-12), vectors[:, ::-1][:, :q]
    root = values**0.25
    lift = (vectors * root).T @ final.linear()
    return whole_map(final.centre, vectors / root), root, lift
