"""Data without separated components: a learner must say that it has found none."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from fedcore.papers.private_gmm.simulation.mixtures import RUN, Prior, runs_of

from fedcore.errors import ConfigError
from fedcore.randomness import stream

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
