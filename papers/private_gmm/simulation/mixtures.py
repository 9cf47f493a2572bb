"""Separated Gaussian mixtures whose truth is known.

    mu_i = s * u_i, u_i random unit vectors; s such that min_{i != j} |mu_i - mu_j| / max(sigma_i, sigma_j) = separation
    Sigma_i = scale_i^2 A_i A_i',  A_i = I, or an axis spread: random rotation times log-uniform standard deviations
    label ~ Categorical(weights),  x = mu_label + scale_label A_label z,  z ~ N(0, I)

sigma_i is the largest directional standard deviation of component i. Rows are drawn in runs of 1024 from streams named
(seed, purpose, run), so the first n rows of a mixture do not depend on how many follow. The data are nobody's; nothing
here is private, and nothing needs to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.errors import ConfigError
from fedcore.randomness import stream

RUN = 1024  # rows drawn together; part of the definition of the data


@dataclass(frozen=True, slots=True)
class Truth:
    """A mixture. weights: (k,); means: (k, d); roots: (k, d, d) with Sigma_i = roots_i roots_i'. All float64."""

    weights: np.ndarray
    means: np.ndarray
    roots: np.ndarray

    @property
    def components(self) -> int:
        return len(self.weights)

    @property
    def features(self) -> int:
        return self.means.shape[1]

    @property
    def covariances(self) -> np.ndarray:
        """(k, d, d)."""
        return self.roots @ self.roots.transpose(0, 2, 1)

    @property
    def sigmas(self) -> np.ndarray:
        """(k,) largest directional standard deviations."""
        return np.linalg.norm(self.roots, ord=2, axis=(1, 2))

    @property
    def separation(self) -> float:
        """min over pairs of |mu_i - mu_j| / max(sigma_i, sigma_j); infinite for one component."""
        return _separation(self.means, self.sigmas)


@dataclass(frozen=True, slots=True)
class Prior:
    """What a learner may know of a mixture, all public.

    radius: of a ball about 0 with nearly all rows; sigma_min, sigma_max: bounds on every directional standard
    deviation; least_weight: a lower bound on every weight.
    """

    radius: float
    sigma_min: float
    sigma_max: float
    least_weight: float


def _separation(means: np.ndarray, sigmas: np.ndarray) -> float:
    if len(means) < 2:
        return float("inf")
    first, second = np.triu_indices(len(means), 1)
    distances = np.linalg.norm(means[first] - means[second], axis=1)
    return float(np.min(distances / np.maximum(sigmas[first], sigmas[second])))


def mixture(
    features: int,
    components: int,
    separation: float,
    seed: int,
    *,
    weights: Sequence[float] | None = None,
    scales: Sequence[float] | None = None,
    axis_spread: tuple[float, float] | None = None,
) -> Truth:
    """A mixture of exactly this separation.

    weights: (k,), equal by default. scales: (k,), 1 by default. axis_spread: (low, high) of the log-uniform standard
    deviations along the axes of each component, in its scale; None for spherical components. Raises ConfigError for
    sizes below 1, a separation that is not positive, or weights and scales that do not fit.
    """
    if features < 1 or components < 1 or not (np.isfinite(separation) and separation > 0):
        raise ConfigError("A mixture needs features >= 1, components >= 1 and a positive finite separation.")
    share = np.full(components, 1 / components) if weights is None else np.asarray(weights, np.float64)
    scale = np.ones(components) if scales is None else np.asarray(scales, np.float64)
    if share.shape != (components,) or not np.all(share > 0) or abs(share.sum() - 1) > 1e-9:
        raise ConfigError(f"weights must be {components} positive numbers with sum 1.")
    if scale.shape != (components,) or not np.all(scale > 0):
        raise ConfigError(f"scales must be {components} positive numbers.")
    roots = scale[:, None, None] * _shapes(features, components, seed, axis_spread)
    means = stream(seed, "private_gmm/means").standard_normal((components, features))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    if components == 1:
        return Truth(share, np.zeros_like(means), roots)
    found = _separation(means, np.linalg.norm(roots, ord=2, axis=(1, 2)))
    if not found > 1e-9:
        raise ConfigError(f"{components} directions coincide in {features} dimensions.", "Use more features.")
    return Truth(share, means * (separation / found), roots)


def _shapes(features: int, components: int, seed: int, axis_spread: tuple[float, float] | None) -> np.ndarray:
    if axis_spread is None:
        return np.broadcast_to(np.eye(features), (components, features, features))
    low, high = axis_spread
    if not 0 < low <= high:
        raise ConfigError("axis_spread must be (low, high) with 0 < low <= high.")
    generator = stream(seed, "private_gmm/shapes")
    rotations = np.linalg.qr(generator.standard_normal((components, features, features)))[0]
    return rotations * np.exp(generator.uniform(np.log(low), np.log(high), (components, 1, features)))


def sample(truth: Truth, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) float64 rows and their (n,) int64 components. Other names than `mixture`'s, so one seed serves both."""
    bounds = np.cumsum(truth.weights)[:-1]
    found, labels = [], []
    for run, size in runs_of(rows):
        generator = stream(seed, "private_gmm/rows", client=run)
        label = np.searchsorted(bounds, generator.random(RUN), side="right")[:size]
        z = generator.standard_normal((RUN, truth.features))[:size]
        x = np.empty_like(z)
        for component in range(truth.components):
            own = label == component
            x[own] = truth.means[component] + z[own] @ truth.roots[component].T
        found.append(x)
        labels.append(label)
    if not found:
        return np.zeros((0, truth.features)), np.zeros(0, np.int64)
    return np.concatenate(found), np.concatenate(labels).astype(np.int64)


def runs_of(rows: int) -> list[tuple[int, int]]:
    """(number, rows) of the runs in which so many rows are drawn."""
    return [(run, min(RUN, rows - run * RUN)) for run in range(-(-rows // RUN))]


def prior(truth: Truth, radius_factor: float = 2.0) -> Prior:
    """The public inputs of the acceptance experiments: radius_factor * (max |mu| + sqrt(d) sigma_max), 0.3 times the
    smallest and once the largest directional standard deviation, 0.6 times the smallest weight."""
    spreads = np.linalg.svd(truth.roots, compute_uv=False)
    largest = float(spreads.max())
    radius = radius_factor * (float(np.linalg.norm(truth.means, axis=1).max()) + truth.features**0.5 * largest)
    return Prior(radius, 0.3 * float(spreads.min()), largest, 0.6 * float(truth.weights.min()))
