"""Slow, direct EM for Gaussian mixtures in the space of parameters, and the data that several tests share."""

from __future__ import annotations

import numpy as np
from scipy.stats import multivariate_normal

COVARIANCE = np.array([[1.0, 0.3], [0.3, 0.8]])
START = {"weights": np.array([0.5, 0.5]), "means": np.array([[-0.5, 0.5], [0.5, -0.5]])}


def responsibilities(theta, y: np.ndarray) -> np.ndarray:
    """(N, G) densities times weights; their logarithms and shares follow from it."""
    covariances = theta.get("covariances", np.tile(np.eye(y.shape[1]), (len(theta["weights"]), 1, 1)))
    parts = zip(theta["weights"], theta["means"], covariances, strict=True)
    return np.stack([weight * multivariate_normal(mean, own).pdf(y) for weight, mean, own in parts], axis=1)


def em_step(theta, y: np.ndarray, weights: np.ndarray, known: bool = False) -> dict[str, np.ndarray]:
    """One EM step on weighted rows; no penalty."""
    joint = responsibilities(theta, y)
    r = weights[:, None] * joint / joint.sum(axis=1, keepdims=True)
    means = np.stack([np.average(y, axis=0, weights=own) for own in r.T])
    new = {"weights": r.sum(axis=0) / r.sum(), "means": means}
    if known:
        return new
    covariances = [np.cov(y.T, aweights=own, bias=True) for own in r.T]
    return {**new, "covariances": np.stack(covariances)}


def loss(theta, y: np.ndarray) -> float:
    """Mean negative log-likelihood of the rows, nats."""
    return float(-np.log(responsibilities(theta, y).sum(axis=1)).mean())


def two_components(rows: int = 10_000, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows of two Gaussians with one covariance, sorted by the first coordinate, so that clients who hold runs of them
    differ as much as they can; then whitened by that covariance, with a start whitened likewise.
    """
    generator = np.random.default_rng(seed)
    first = generator.random(rows) < 0.3
    y = np.where(first[:, None], [-1.0, 0.0], [1.0, 1.0]) + generator.multivariate_normal([0, 0], COVARIANCE, rows)
    whitening = np.linalg.inv(np.linalg.cholesky(COVARIANCE))
    return y[np.argsort(y[:, 0])] @ whitening.T, {**START, "means": START["means"] @ whitening.T}


def three_components(rows: int = 10_000, seed: int = 1) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows of three Gaussians in four dimensions, sorted by component, and a start near the data."""
    generator = np.random.default_rng(seed)
    means = 2 * generator.normal(size=(3, 4))
    factors = [np.linalg.qr(generator.normal(size=(4, 4)))[0] * generator.uniform(0.5, 1.5, 4) for _ in range(3)]
    labels = np.sort(generator.integers(0, 3, rows))
    noise = generator.normal(size=(rows, 4))
    y = np.stack([means[label] + factors[label] @ own for label, own in zip(labels, noise, strict=True)])
    start = {
        "weights": np.full(3, 1 / 3),
        "means": means + generator.normal(size=(3, 4)) * 0.7,
        "covariances": np.tile(np.eye(4), (3, 1, 1)),
    }
    return y, start
