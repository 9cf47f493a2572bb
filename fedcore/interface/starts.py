"""Parameters that a user gives a mixture to start from, as the arrays that a run takes as its start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedcore.errors import ConfigError
from fedcore.interface.densities import in_standard_units
from fedcore.methods.mixture_models.client_sums import divisors_of
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.initialisation import cluster_sums, parameters_from_clusters
from fedcore.population.blocks import RowsBlock
from fedcore.population.store import Population
from fedcore.rounds.fitted import CovarianceType


def given_start(
    kind: CovarianceType,
    components: int,
    population: Population,
    weight_column: int | None,
    weights: Any,
    means: Any,
    precisions: Any,
) -> dict[str, np.ndarray]:
    """The arrays of a start: weights, means and covariances of standardised rows, with centre and scale.

    weights (k,), means (k, d) and precisions by kind (k, d, d), (d, d), (k, d) or (k,), in the units of the data.
    Weights or precisions that are None are those of the rows that are nearest to each mean, which takes two passes over
    the rows. weight_column: the column of the population that says how much a row counts.
    Raises ConfigError without means, and for arrays of other shapes or that are no weights or precisions.
    """
    if means is None:
        raise ConfigError(
            "weights_init and precisions_init need means_init, which says which component they belong to.",
            "Give means_init too.",
        )
    d = population.features - (weight_column is not None)
    means = _of_shape("means_init", means, (components, d))
    shape = {"full": (components, d, d), "tied": (d, d), "diag": (components, d), "spherical": (components,)}[kind]
    covariances = None if precisions is None else _inverse(kind, _of_shape("precisions_init", precisions, shape))
    if weights is not None:
        weights = _of_shape("weights_init", weights, (components,))
        if (weights < 0).any() or not np.isclose(weights.sum(), 1.0):
            raise ConfigError("weights_init must be numbers of 0 or more that add up to 1.")
    if weights is not None and covariances is not None:
        return in_standard_units(kind, weights, means, covariances)
    found = _of_nearest_rows(kind, means, population, weight_column)
    found |= {} if weights is None else {"weights": weights}
    if covariances is not None:
        return in_standard_units(kind, found["weights"], means, covariances)
    return found


def _of_shape(name: str, given: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(given, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ConfigError(f"{name} must be finite numbers of the shape {shape}, and has the shape {array.shape}.")
    return array


def _inverse(kind: CovarianceType, precisions: np.ndarray) -> np.ndarray:
    if kind in ("full", "tied"):
        symmetric = np.allclose(precisions, np.swapaxes(precisions, -1, -2))
        if not symmetric or not (np.linalg.eigvalsh(precisions) > 0).all():
            raise ConfigError(f"precisions_init of {kind} covariances must be symmetric and positive definite.")
        inverse: np.ndarray = np.linalg.inv(precisions)
        return (inverse + np.swapaxes(inverse, -1, -2)) / 2
    if not (precisions > 0).all():
        raise ConfigError(f"precisions_init of {kind} covariances must be positive.")
    return np.reciprocal(precisions)


def _of_nearest_rows(
    kind: CovarianceType, means: np.ndarray, population: Population, weight_column: int | None
) -> dict[str, np.ndarray]:
    """Weights and covariances of the rows nearest to each mean, in units of the columns' standard deviations."""
    count, total, squares = np.zeros((3, means.shape[1]))
    for x, weights in _rows(population, weight_column):
        moved = x - means[0]
        seen, moved = weights @ np.isfinite(moved), np.nan_to_num(moved)
        count, total, squares = count + seen, total + weights @ moved, squares + weights @ moved**2
    mean = total / divisors_of(count)
    variance = np.maximum(squares / divisors_of(count) - mean**2, 0.0)
    variance = np.full_like(variance, variance.mean()) if kind == "spherical" else variance
    centre, scale = means[0] + mean, np.where(variance > 0, np.sqrt(variance), 1.0)
    centres = (means - centre) / scale
    sums = np.zeros((len(means), 1 + 3 * len(scale)))
    for x, weights in _rows(population, weight_column):
        sums += cluster_sums((x - centre) / scale, centres, True, weights)
    theta = parameters_from_clusters(
        GaussianMixture(len(means), len(scale), kind), centres, sums, np.zeros(len(scale)), np.ones(len(scale))
    )
    return {**theta, "means": centres, "centre": centre, "scale": scale}


def _rows(population: Population, weight_column: int | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(x (n, d) float64, weights (n,)) of each block."""
    for index in range(len(population.blocks)):
        block = population.read(index)
        assert isinstance(block, RowsBlock)
        x = np.asarray(block.x, np.float64)
        if weight_column is None:
            yield x, np.ones(len(x))
        else:
            yield np.delete(x, weight_column, axis=1), x[:, weight_column]
