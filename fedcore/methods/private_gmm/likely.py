"""Rows as clients may hold them, by the settings alone: what a plan of a run is timed with."""

from __future__ import annotations

import numpy as np

from fedcore.methods.private_gmm.config import PrivateGMMConfig

DRAWS = 64  # points for each component, of which those that lie farthest apart become means
APART = 16.0  # standard deviations between components


def likely_rows(config: PrivateGMMConfig, features: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """(count, features) float64 of components that a search finds: equally many rows of each, in half of the declared
    ball, far apart for their width."""
    k = config.components
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
