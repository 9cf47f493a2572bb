"""What a later run may start from: the mixture found, in the standardised coordinates that federated EM wants, and what
the series knows, for the next run of this method on the same population.

A run that found nothing passes on what it was given. A run takes from a start what the series knows, and no more: a
mixture without that (of another population, or of a version that left nothing else) begins a series as nothing does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.released import MIXTURE_NAMES, standardised
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.passes import mixture_of_pool
from fedcore.methods.private_gmm.plan import plan, searches
from fedcore.methods.private_gmm.series import MEANS, SERIES_NAMES, arrays_of, joined, of_run, pool_in, width_of
from fedcore.methods.private_gmm.state import PrivateGMMState
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts


def warm_start_of(config: PrivateGMMConfig, state: PrivateGMMState) -> dict[str, np.ndarray]:
    """weights (m,), means (m, d) and covariances, by form, of rows standardised by centre and scale, (d,) each: the
    mean of the mixture, and its standard deviation in each column, or over all columns if covariances are spherical.
    And the arrays of `SERIES_NAMES`.

    Raises ConfigError if neither the run nor its series has found anything.
    """
    weights, means, covariances = state.weights, state.means, state.covariances
    if not state.found:
        if not len(state.pool):
            raise ConfigError(f"has not found a mixture ({state.outcome}).", "Name a run that has.")
        weights, known, covariances, _ = mixture_of_pool(config, state.pool)
        means = known.means
    return standardised(config.covariance, weights, means, covariances) | arrays_of(state.pool)


def checked_warm_start(
    config: PrivateGMMConfig, arrays: Mapping[str, np.ndarray], what: str, features: int
) -> dict[str, np.ndarray]:
    """The arrays as float64. Raises ConfigError unless they are finite numbers, with what a whole series knows or
    nothing of it."""
    unknown = sorted(set(arrays) - set(MIXTURE_NAMES) - set(SERIES_NAMES))
    if unknown:
        raise ConfigError(f"{what} holds {', '.join(unknown)}, which no run of private_gmm leaves.", "Leave it out.")
    for name, array in arrays.items():
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise ConfigError(f"{name!r} of {what} is not an array of finite numbers.")
    values = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    pool_in(values, features, config.covariance)
    return values


def likely_warm_start(config: PrivateGMMConfig, public: PublicFacts) -> dict[str, np.ndarray]:
    """What a run with these facts leaves, as far as the plans of later runs depend on it, if it finds all components:
    means anywhere, and the noise for cells of equal size and of radius 1."""
    k, d = config.components, public.features
    means = np.zeros((k, d))
    means[:, 0] = 10.0 * np.arange(k)
    moments = np.ones((k, width_of(config.covariance, d)))
    scales = {release.name: release.scale for release in plan(config, public)}
    cell = (public.nominal_clients or k) / k
    noise = np.array([scales["leaf_counts"], scales["leaf_mean_1"], scales["leaf_covariance"] / ONE]) / ONE / cell
    own = of_run(np.full(k, 1.0 / k), means, moments, np.tile(noise, (k, 1)))
    past = pool_in(public.warm_start, d, config.covariance).forgotten()
    known = np.arange(k) if len(past.found) == k else np.full(k, -1)
    return arrays_of(joined(past, own, known, config.covariance, k))


def budget_sketch(config: PrivateGMMConfig, public: PublicFacts, planned: Sequence[PlannedRelease]) -> dict[str, Any]:
    """search: whether the run looks for components. accumulated_rho: of a single run that searches and has as little
    noise in its means as the series after this run, if every run finds all components."""
    first = replace(public, warm_start=None)
    alone, pooled = (
        pool_in(likely_warm_start(config, facts), facts.features, config.covariance).noise[0, MEANS]
        for facts in (first, public)
    )
    assert public.rho is not None  # it was planned with
    return {
        "rounds": max(release.round for release in planned),
        "releases": len(planned),
        "search": searches(config, public),
        "accumulated_rho": public.rho * float(alone / pooled) ** 2,
    }


DRAWS = 64  # points for each component, of which those farthest apart become means
APART = 16.0  # standard deviations between components


def likely_rows(
    config: PrivateGMMConfig, public: PublicFacts, count: int, generator: np.random.Generator
) -> np.ndarray:
    """(count, features) float64, equally many rows of each component: of those that the series knows, if there is no
    search, else of some that a search finds, in half of the declared ball, far apart for their width."""
    k, features = config.components, public.features
    if not searches(config, public):
        known = pool_in(public.warm_start, features, config.covariance).found
        which = generator.integers(k, size=count)
        scales = known.scales(config.covariance, config.sigma_floor)
        rows: np.ndarray = known.means[which] + scales[which, None] * generator.normal(size=(count, features))
        return rows
    points = generator.normal(size=(DRAWS * k, features))
    points *= 0.5 * config.public_radius / np.linalg.norm(points, axis=1, keepdims=True)
    means = points[:1]
    distance = np.full(len(points), np.inf)
    for _ in range(k - 1):
        distance = np.minimum(distance, np.linalg.norm(points - means[-1], axis=1))
        means = np.vstack([means, points[distance.argmax()]])
    gaps = np.linalg.norm(means[:, None] - means[None], axis=2)[np.triu_indices(k, 1)]
    width = gaps.min() / APART / np.sqrt(features)
    if config.sigma_max is not None:
        width = min(width, config.sigma_max)
    return means[generator.integers(k, size=count)] + width * generator.normal(size=(count, features))
