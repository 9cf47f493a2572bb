"""Units: the data's, standardised ones, and those of the model, in which components have unit covariance.

The state and the clients' memories hold centres in standardised units; clients compute in the model's.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from fedcore.errors import PopulationError
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.local_steps import Rows
from fedcore.methods.gradient_em.state import Frame
from fedcore.population.blocks import RowsBlock


def rows_of(config: GradientEMConfig, frame: Frame, block: RowsBlock, like: RowsBlock | None = None) -> Rows:
    """The rows of a leaf in the model's units. like: rows of the same clients, whose moments are used where every
    client has its own units. Raises PopulationError if a row is not finite."""
    x = block.x.astype(np.float64, copy=False)
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        client = block.first + int(np.searchsorted(block.ptr, row, "right")) - 1
        raise PopulationError(
            f"row {row - block.ptr[client - block.first]} of client {client} has no finite number in column {column}.",
            "Fill in or leave out what is missing.",
        )
    if config.model == "regression":
        y = x[:, -1]
        if len(frame.covariance):
            y = y / np.sqrt(frame.covariance[0, 0])
        x = np.column_stack([x[:, :-1], np.ones(len(x))]) if config.intercept else x[:, :-1]
        return Rows(np.ascontiguousarray(x), np.ascontiguousarray(y), block.ptr)
    if config.standardise == "clients":
        mean, scale = own_moments(block if like is None else like)
        sizes = np.diff(block.ptr)
        x = (x - np.repeat(mean, sizes, axis=0)) / np.repeat(scale, sizes, axis=0)
    elif len(frame.scale):
        x = (x - frame.mean) / frame.scale
    return Rows(inward(config, frame, x), None, block.ptr)


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


def _factor(frame: Frame) -> np.ndarray:
    return np.linalg.cholesky(frame.covariance)


def inward(config: GradientEMConfig, frame: Frame, centres: np.ndarray) -> np.ndarray:
    """Centres (..., p) from standardised units to those of the model."""
    if not len(frame.covariance):
        return centres
    if config.model == "regression":
        return centres / np.sqrt(frame.covariance[0, 0])
    # The inverse once, then a product: solving for so many right-hand sides takes several times as long.
    inverse = solve_triangular(_factor(frame), np.eye(centres.shape[-1]), lower=True, check_finite=False)
    return centres @ inverse.T


def outward(config: GradientEMConfig, frame: Frame, centres: np.ndarray) -> np.ndarray:
    """The inverse of `inward`."""
    if not len(frame.covariance):
        return centres
    if config.model == "regression":
        return centres * np.sqrt(frame.covariance[0, 0])
    return centres @ _factor(frame).T


def log_scale(config: GradientEMConfig, frame: Frame, block: RowsBlock) -> np.ndarray:
    """(C,) what a log-density in the model's units is larger by than one in the units of the data. block: for clients'
    own moments."""
    found = np.zeros(block.clients)
    if len(frame.covariance):
        found += 0.5 * np.linalg.slogdet(frame.covariance)[1]
    if config.standardise == "clients":
        return found + np.log(own_moments(block)[1]).sum(axis=1)
    return found + (np.log(frame.scale).sum() if len(frame.scale) else 0.0)


def in_data_units(config: GradientEMConfig, frame: Frame, centres: np.ndarray, block: RowsBlock | None) -> np.ndarray:
    """Centres (C, R, p), or (R, p) common ones, from standardised units to those of the data. block: of the clients,
    for their own moments; common centres stay standardised where every client has its own units."""
    if config.standardise == "clients" and block is not None:
        mean, scale = own_moments(block)
        return centres * scale[:, None] + mean[:, None]
    return centres * frame.scale + frame.mean if len(frame.scale) else centres
