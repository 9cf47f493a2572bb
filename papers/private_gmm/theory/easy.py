"""Algorithm 1: spherical components of equal weight and like variance. privacy: none (simulated noise)."""

from __future__ import annotations

import math

import numpy as np
from fedcore.papers.private_gmm.theory.estimate import Component, spherical
from fedcore.papers.private_gmm.theory.mechanisms import Ball, check_budget, only, per_call_budget, within
from fedcore.papers.private_gmm.theory.one_cluster import locate, outside_of
from fedcore.papers.private_gmm.theory.pca import principal_components

DIMENSION_CONSTANT = 512.0  # of l = max(512 ln(nk/beta), k)
INFLATION = 4 * math.sqrt(3)  # a ball of half of a component becomes one of all of it
LIFT_NOISE, LIFT_SPREAD = 10.0, 2 * math.sqrt(3)  # r + 10 sqrt(l) sigma_max + 2 r sqrt(3 d/l)


def projected_dimension(nominal: int, components: int, beta: float, constant: float = DIMENSION_CONSTANT) -> int:
    """l = max(512 ln(nk/beta), k), as published: above the dimension of most data, so that PCA keeps everything."""
    return max(math.ceil(constant * math.log(nominal * components / beta)), components)


def record_halves(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Y, Z): the records of even and of odd pairs, the others absent. By the record's place, never by its data."""
    odd = np.arange(len(rows)) // 2 % 2 == 1
    return only(rows, ~odd), only(rows, odd)


def learn_spherical(
    rows: np.ndarray,
    components: int,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    radius: float,
    sigma_min: float,
    sigma_max: float,
    nominal: int,
    beta: float = 0.05,
    dimension: int | None = None,
    inflation: float = INFLATION,
    lift_noise: float = LIFT_NOISE,
    lift_spread: float = LIFT_SPREAD,
    paired: bool = True,
) -> list[Component] | None:
    """k components of weight 1/k, or None if k balls with rows were not found. (epsilon, delta)-DP in total.

    One half of the records gives the subspace (epsilon, delta), the other one the clusters (a half of both) and, cell
    by cell in parallel, the estimates (the other half). radius: of a ball about 0 with all means; nominal: a public
    number of rows (slip S9). dimension: l; published by default, k in practice. Slip S7 does not arise, because the
    subspace does not depend on the rows that are clustered.
    """
    check_budget(epsilon, delta)
    d, half = rows.shape[1], max(nominal // 2, 2)
    first, second = record_halves(rows)
    kept = min(d, projected_dimension(half, components, beta) if dimension is None else dimension)
    bound = radius + 2 * math.sqrt(d) * sigma_max
    basis = principal_components(first, Ball(np.zeros(d), bound), kept, epsilon, delta, rng)
    left = second @ basis
    each, slack = per_call_budget(epsilon / 2, delta / 2, components)
    size = max(1, half // (2 * components))
    balls = []
    for _ in range(components):
        ball = locate(
            left, size, each, slack, rng, bound=bound, sigma_min=sigma_min, nominal=half, beta=beta / components
        )
        if ball is None:
            return None
        balls.append(Ball(ball.centre, inflation * ball.radius))
        left = outside_of(left, balls[-1])
    found, left = [], second
    for ball in balls:
        reach = ball.radius + lift_noise * math.sqrt(kept) * sigma_max + lift_spread * ball.radius * math.sqrt(d / kept)
        lifted = Ball(basis @ ball.centre, reach)
        own = spherical(only(left, within(left, lifted)), lifted, epsilon / 2, delta / 2, rng, paired=paired)
        if own is None:
            return None
        found.append(own)
        left = outside_of(left, lifted)
    return found
