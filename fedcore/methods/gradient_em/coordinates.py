"""Three units: those of the data, standardised ones, and the model's, in which components have unit covariance.

The state and the clients' memories hold centres in standardised units; clients compute in the model's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.methods.mixture_models.local_steps import Rows, finite_rows, regression_rows
from fedcore.population.blocks import RowsBlock

NO_VARIANCE = 1e-12
POOLED_ROWS = 0.01
SMALLEST_VARIANCE = 1e-6  # of a shared covariance, relative to its mean variance


@dataclass(frozen=True, slots=True)
class Coordinates:
    """How rows become what the model sees: standardised by mean and scale, then whitened by the covariance.

    mean, scale: (d,), or (0,) if rows are not standardised by common moments
    covariance:  (d, d), of a regression (1, 1), (R, d, d) if components have their own, or (0, 0) for the identity
    """

    mean: np.ndarray
    scale: np.ndarray
    covariance: np.ndarray


def coordinates_of(state: GradientEMState) -> Coordinates:
    return Coordinates(state.mean, state.scale, state.covariance)


def rows_of(
    config: GradientEMConfig, coordinates: Coordinates, block: RowsBlock, moments_of: RowsBlock | None = None
) -> Rows:
    """The rows of a leaf in the model's units.

    moments_of: rows of the same clients, whose moments are used where every client has its own units; None: the leaf's.
    Raises PopulationError if a row is not finite.
    """
    if config.model == "regression":
        noise = float(coordinates.covariance[0, 0]) if len(coordinates.covariance) else None
        return regression_rows(block, noise, config.intercept)
    x = finite_rows(block)
    if config.standardise == "clients":
        mean, scale = own_moments(block if moments_of is None else moments_of)
        sizes = np.diff(block.ptr)
        x = (x - np.repeat(mean, sizes, axis=0)) / np.repeat(scale, sizes, axis=0)
    elif len(coordinates.scale):
        x = (x - coordinates.mean) / coordinates.scale
    if coordinates.covariance.ndim == 3:
        return Rows(np.ascontiguousarray(x), None, block.ptr, whitening(coordinates))
    return Rows(to_model(config, coordinates, x), None, block.ptr)


def own_moments(block: RowsBlock) -> tuple[np.ndarray, np.ndarray]:
    """(C, d) mean and standard deviation of each client's rows; 1 for a constant column."""
    sizes = np.maximum(np.diff(block.ptr), 1)[:, None]
    owner = np.repeat(np.arange(block.clients), np.diff(block.ptr))
    x = block.x.astype(np.float64)
    mean = np.zeros((block.clients, x.shape[1]))
    np.add.at(mean, owner, x)
    mean /= sizes
    squares = np.zeros_like(mean)
    np.add.at(squares, owner, (x - mean[owner]) ** 2)
    scale = np.sqrt(squares / sizes)
    return mean, np.where(scale > 1e-9 * (1.0 + np.abs(mean)), scale, 1.0)


def whitening(coordinates: Coordinates) -> np.ndarray:
    """(R, d, d) of `Rows`, for components with separate covariances."""
    return np.linalg.inv(np.linalg.cholesky(coordinates.covariance)).transpose(0, 2, 1)


def _factor(coordinates: Coordinates) -> np.ndarray:
    return np.linalg.cholesky(coordinates.covariance)


def to_model(config: GradientEMConfig, coordinates: Coordinates, centres: np.ndarray) -> np.ndarray:
    """Centres (..., p) from standardised units to those of the model; (..., R, p) if components have covariances of
    their own."""
    if not len(coordinates.covariance):
        return centres
    if coordinates.covariance.ndim == 3:
        return np.einsum("...rp,rpq->...rq", centres, whitening(coordinates))
    if config.model == "regression":
        return centres / np.sqrt(coordinates.covariance[0, 0])
    # The inverse once, then a product: solving for many right-hand sides takes several times as long.
    inverse = scipy.linalg.solve_triangular(
        _factor(coordinates), np.eye(centres.shape[-1]), lower=True, check_finite=False
    )
    return centres @ inverse.T


def to_standardised(config: GradientEMConfig, coordinates: Coordinates, centres: np.ndarray) -> np.ndarray:
    """Centres (..., p) from the units of the model to standardised ones; (..., R, p) as in `to_model`."""
    if not len(coordinates.covariance):
        return centres
    if coordinates.covariance.ndim == 3:
        return np.einsum("...rp,rqp->...rq", centres, np.linalg.cholesky(coordinates.covariance))
    if config.model == "regression":
        return centres * np.sqrt(coordinates.covariance[0, 0])
    return centres @ _factor(coordinates).T


def to_data(
    config: GradientEMConfig, coordinates: Coordinates, centres: np.ndarray, block: RowsBlock | None
) -> np.ndarray:
    """Centres (C, R, p) of clients, or common ones (R, p), from standardised units to those of the data.

    block: the clients' rows, for their own moments. Common centres (block: None) stay standardised where every client
    has its own units.
    """
    if config.standardise == "clients" and block is not None:
        mean, scale = own_moments(block)
        return centres * scale[:, None] + mean[:, None]
    return centres * coordinates.scale + coordinates.mean if len(coordinates.scale) else centres


def log_volume(coordinates: Coordinates) -> float:
    """By how much a log-density in the model's units is larger than one in standardised units."""
    if coordinates.covariance.ndim == 3 or not len(coordinates.covariance):
        return 0.0
    return 0.5 * float(np.linalg.slogdet(coordinates.covariance)[1])


def log_scale(config: GradientEMConfig, coordinates: Coordinates, block: RowsBlock) -> np.ndarray:
    """(C,) by how much a log-density in the model's units is larger than one in the units of the data.

    block: the clients' rows, for their own moments.
    """
    found = np.full(block.clients, log_volume(coordinates))
    if config.standardise == "clients":
        return found + np.log(own_moments(block)[1]).sum(axis=1)
    return found + (np.log(coordinates.scale).sum() if len(coordinates.scale) else 0.0)


def covariance_of(config: GradientEMConfig, coordinates: Coordinates, scatter: np.ndarray) -> np.ndarray:
    """The covariance within components, standardised units, from (q + 1,) sums in the model's units.

    scatter: the sum of products, then its divisor. The result is never quite singular; if rows do not vary at all, the
    covariance stays as it was.
    """
    before = coordinates.covariance
    size = len(before)
    mean = (scatter[:-1] / scatter[-1]).reshape(size, size)
    mean = to_standardised(config, coordinates, to_standardised(config, coordinates, mean).T)
    mean = 0.5 * (mean + mean.T)
    if not np.trace(mean) > size * NO_VARIANCE:
        return before
    return mean + SMALLEST_VARIANCE * np.trace(mean) / size * np.eye(size)


def covariances_of(coordinates: Coordinates, scatter: np.ndarray) -> np.ndarray:
    """(R, d, d) the covariances of the components, standardised units, from (R, q + 1) sums in the model's units.

    Each is pooled with the mean of all by `POOLED_ROWS`; many would blur a component that is much narrower than others.
    """
    before = coordinates.covariance
    factor, size = np.linalg.cholesky(before), before.shape[1]
    products = factor @ scatter[:, :-1].reshape(before.shape) @ factor.transpose(0, 2, 1)
    mass = scatter[:, -1]
    mean = products.sum(axis=0) / mass.sum()
    if not np.trace(mean) > size * NO_VARIANCE:
        return before
    found = (products + POOLED_ROWS * mean) / (mass + POOLED_ROWS)[:, None, None]
    return 0.5 * (found + found.transpose(0, 2, 1))
