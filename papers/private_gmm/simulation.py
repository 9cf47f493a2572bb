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
from typing import Literal, get_args

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.alignment import matching
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


# --- without structure ------------------------------------------------------------------------------------------------


Structureless = Literal["gaussian", "t3", "cube", "ring", "needle"]
RING_RADIUS, NEEDLE_RATIO, CUBE_SIDE = 20.0, 20.0, 12.0**0.5  # the cube's coordinates have variance 1


def structureless(kind: Structureless, features: int, rows: int, seed: int) -> np.ndarray:
    """(n, d) float64 rows without separated components.

    gaussian: N(0, I). t3: multivariate Student t with 3 degrees of freedom. cube: uniform, variance 1 in each
    coordinate. ring: a circle of radius 20 in the first two coordinates, plus N(0, I). needle: N(0, I) stretched by 20
    along the first coordinate. Raises ConfigError for another kind, or a ring in one dimension.
    """
    if kind not in get_args(Structureless):
        raise ConfigError(f"There is no data set {kind!r}.", f"Choose one of {', '.join(get_args(Structureless))}.")
    if kind == "ring" and features < 2:
        raise ConfigError("A ring needs two features or more.")
    found = [np.zeros((0, features))]
    for run, size in runs_of(rows):
        generator = stream(seed, f"private_gmm/{kind}", client=run)
        uniform, angle = generator.random((RUN, features)), generator.random(RUN) * 2 * np.pi
        x, squares = generator.standard_normal((RUN, features)), generator.chisquare(3, RUN)
        if kind == "t3":
            x /= np.sqrt(squares / 3)[:, None]
        elif kind == "cube":
            x = CUBE_SIDE * (uniform - 0.5)
        elif kind == "ring":
            x[:, 0] += RING_RADIUS * np.cos(angle)
            x[:, 1] += RING_RADIUS * np.sin(angle)
        elif kind == "needle":
            x[:, 0] *= NEEDLE_RATIO
        found.append(x[:size])
    return np.concatenate(found)


def structureless_prior(kind: Structureless, features: int, components: int, radius_factor: float = 2.0) -> Prior:
    """As `prior`, for a learner that is to find this many components of equal weight in such data."""
    longest = NEEDLE_RATIO if kind == "needle" else 1.0
    reach = RING_RADIUS if kind == "ring" else 0.0
    spread = (features - 1 + longest**2) ** 0.5 * (3**0.5 if kind == "t3" else 1.0)
    return Prior(radius_factor * (reach + spread), 0.3, longest, 0.6 / components)


@dataclass(frozen=True, slots=True)
class Scores:
    """An estimate after the best matching of components (Hungarian, by means in units of sigma_i).

    order: (k,) int64, estimate[order[i]] is component i; mean_errors: (k,) |mean - mu_i| / sigma_i; weight_error:
    largest |w - w_i|, None without weights; trace_error: largest |tr S / tr Sigma_i - 1|, None without covariances;
    accuracy: share of rows whose nearest estimated mean is their component's, None without rows.
    """

    order: np.ndarray
    mean_errors: np.ndarray
    weight_error: float | None
    trace_error: float | None
    accuracy: float | None


def scores(
    truth: Truth,
    means: np.ndarray,
    *,
    weights: np.ndarray | None = None,
    covariances: np.ndarray | None = None,
    rows: np.ndarray | None = None,
    labels: np.ndarray | None = None,
) -> Scores:
    """An estimate beside the truth. means: (k, d); weights: (k,); covariances: (k, d, d); rows: (n, d) with their true
    labels (n,). Raises ValueError for another number of components than the truth has."""
    sigmas = truth.sigmas
    order = matching(means, truth.means)
    errors = np.linalg.norm(means[order] - truth.means, axis=1) / sigmas
    weight = None if weights is None else float(np.abs(np.asarray(weights)[order] - truth.weights).max())
    trace = None
    if covariances is not None:
        found = np.trace(np.asarray(covariances)[order], axis1=1, axis2=2)
        trace = float(np.abs(found / np.trace(truth.covariances, axis1=1, axis2=2) - 1).max())
    accuracy = None
    if rows is not None and labels is not None:
        accuracy = float(np.mean(nearest(rows, means[order]) == labels))
    return Scores(order.astype(np.int64), errors, weight, trace, accuracy)


def nearest(rows: np.ndarray, means: np.ndarray) -> np.ndarray:
    """(n,) int64, the nearest of the means (k, d) to each row (n, d); the first one if several are."""
    centre = means.mean(axis=0)  # differences stay exact enough for means far from 0
    x, m = rows - centre, means - centre
    return np.argmin((m * m).sum(axis=1)[None, :] - 2 * (x @ m.T), axis=1).astype(np.int64)
