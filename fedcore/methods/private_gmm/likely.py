"""Rows as clients may hold them, by settings and public facts alone: what a plan of a run is timed with."""

from __future__ import annotations

import numpy as np

from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.plan import searches
from fedcore.methods.private_gmm.series import pool_in
from fedcore.rounds.method import PublicFacts

DRAWS = 64  # points for each component, of which those that lie farthest apart become means
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
