"""Algorithms 1, 3 and 4: spherical components of like variance; RPGMP and PGME. privacy: none (simulated noise).

A record is in one node of a level at most, so it is the depth that composes, not the number of nodes. Slip S1: that is
true for add/remove; under substitution the new value may be in another branch, which doubles the cost. Slip S7: the
subspace of a node and the rows that it splits are the same, and the projection is treated as if it were independent; a
matter of utility, not of privacy. Slip S11: rows between a ball and its five-fold are dropped at every split, which
moves weights by up to (k - 1) 2 Gamma / n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from fedcore.papers.private_gmm.theory.estimate import Component, gaussian, spherical
from fedcore.papers.private_gmm.theory.mechanisms import (
    Ball,
    advanced_epsilon,
    check_budget,
    clipped_to,
    noisy_count,
    only,
    per_call_budget,
    principal_components,
    within,
)
from fedcore.papers.private_gmm.theory.one_cluster import FACTOR, locate, outside_of, terrific_ball

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


# --- Algorithms 3 and 4 -----------------------------------------------------------------------------------------------


BOUNDING = 12.0  # r = 12 r''
COUNT_SHARE = 1 / 20  # n' = |X| + Lap(2/eps) - n w_min / 20
LEVEL_CALLS = 4  # a level costs (4 eps, 4 delta): count and PGLoc, two terrific balls, PCA


@dataclass(frozen=True, slots=True)
class PublicInputs:
    """What is public. nominal: number of rows; radius: of a ball about 0 with all means; least_weight, sigma_min,
    sigma_max: bounds on every component; beta: probability of failure of every step."""

    nominal: int
    radius: float
    least_weight: float
    sigma_min: float
    sigma_max: float
    beta: float = 0.05

    @property
    def size(self) -> int:
        """t = n w_min / 2, of the nominal n (slip S9)."""
        return max(1, math.ceil(self.nominal * self.least_weight / 2))


@dataclass(frozen=True, slots=True)
class UnitBudget:
    """(epsilon, delta) of one step of one level."""

    epsilon: float
    delta: float


def unit_budget(epsilon: float, delta: float, components: int) -> UnitBudget:
    """The unit of which k levels of four and the two of the cells are (epsilon, delta) together.

    The better one of basic composition, (4k + 2) eps_0, and of advanced composition of 4 eps_0 over k levels, plus
    2 eps_0.
    """
    check_budget(epsilon, delta)
    basic = UnitBudget(epsilon / (LEVEL_CALLS * components + 2), delta / (LEVEL_CALLS * components + 1))
    low, high = 0.0, epsilon
    for _ in range(100):
        middle = (low + high) / 2
        total = advanced_epsilon(LEVEL_CALLS * middle, components, delta / 2) + 2 * middle
        low, high = (middle, high) if total <= epsilon else (low, middle)
    return UnitBudget(low, delta / (2 * (LEVEL_CALLS * components + 1))) if low > basic.epsilon else basic


def split(rows: np.ndarray, by: np.ndarray, ball: Ball, factor: float = FACTOR) -> tuple[np.ndarray, np.ndarray]:
    """Records in the ball and records beyond its c-fold. by: (n, q), the coordinates that the ball is in."""
    inside = within(by, ball)
    beyond = np.isfinite(outside_of(by, ball, factor)).all(axis=1)
    return only(rows, inside), only(rows, beyond)


def recursive_partition(
    rows: np.ndarray,
    components: int,
    unit: UnitBudget,
    public: PublicInputs,
    rng: np.random.Generator,
    *,
    factor: float = FACTOR,
    bounding: float = BOUNDING,
    gamma: float | None = None,
) -> list[np.ndarray]:
    """Algorithm 3, RPGMP: cells, each the rows with the records of other cells absent. They are not private.

    A level costs (4 epsilon, 4 delta) of the unit, and there are at most k - 1 that touch the data. A terrific ball of
    the rows, the smallest there is; else one of the rows projected on k noisy principal components about the node's own
    ball (slip S3), the largest there is; else the node is one component. gamma: as in `terrific_radius`.
    """
    if components <= 1:
        return [rows]
    d = rows.shape[1]
    aim = math.floor(noisy_count(rows, unit.epsilon / 2, rng) - public.nominal * public.least_weight * COUNT_SHARE)
    if aim < 1:
        return [rows]
    bound = public.radius + _deviation(public, d, components)
    node = locate(
        rows,
        aim,
        unit.epsilon / 2,
        unit.delta,
        rng,
        bound=bound,
        sigma_min=public.sigma_min,
        nominal=public.nominal,
        beta=public.beta,
    )
    if node is None:
        return [rows]
    node = Ball(node.centre, min(bounding * node.radius, 2 * bound))
    rows = only(rows, within(rows, node))
    high = 2 * node.radius

    def ball_in(by: np.ndarray, largest: bool) -> Ball | None:
        return terrific_ball(
            by,
            public.size,
            unit.epsilon,
            unit.delta,
            rng,
            low=public.sigma_min,
            high=high,
            nominal=public.nominal,
            factor=factor,
            largest=largest,
            beta=public.beta,
            gamma=gamma,
        )

    by, ball = rows, ball_in(rows, largest=False)
    if ball is None:
        basis = principal_components(rows, node, components, unit.epsilon, unit.delta, rng)
        by = (rows - node.centre) @ basis
        ball = ball_in(by, largest=True)
    if ball is None:
        return [rows]
    return [
        cell
        for part in split(rows, by, ball, factor)
        for cell in recursive_partition(
            part, components - 1, unit, public, rng, factor=factor, bounding=bounding, gamma=gamma
        )
    ]


def _deviation(public: PublicInputs, d: int, components: int) -> float:
    """O(sqrt(d ln(nk/beta))) sigma_max: how far rows are from their means."""
    return math.sqrt(d + 2 * math.log(public.nominal * components / public.beta)) * public.sigma_max * math.sqrt(2)


def learn_mixture(
    rows: np.ndarray,
    components: int,
    epsilon: float,
    delta: float,
    public: PublicInputs,
    rng: np.random.Generator,
    *,
    factor: float = FACTOR,
    bounding: float = BOUNDING,
    gamma: float | None = None,
) -> tuple[list[Component], np.ndarray] | None:
    """Algorithm 4, PGME: components and their weights; None if a cell has too few rows for its estimate.

    (epsilon, delta)-DP in total: RPGMP, then PGE and a count in every cell, cells in parallel. There may be fewer
    components than were asked for. The partition itself is not private and is not returned.
    """
    unit = unit_budget(epsilon, delta, components)
    data = clipped_to(rows, public.radius + _deviation(public, rows.shape[1], components))
    cells = recursive_partition(data, components, unit, public, rng, factor=factor, bounding=bounding, gamma=gamma)
    found = [
        gaussian(cell, public.sigma_min, public.sigma_max, unit.epsilon, unit.delta, rng, beta=public.beta)
        for cell in cells
    ]
    counts = np.array([max(noisy_count(cell, unit.epsilon, rng), 0.0) for cell in cells])
    whole = [one for one in found if one is not None]
    return None if len(whole) < len(cells) or counts.sum() <= 0 else (whole, counts / counts.sum())
