"""One Gaussian: Algorithm 6, PSGE (spherical), and PGE (Section 5.3). privacy: none (simulated noise).

Slip S2: pairs of neighbouring places among the rows that survive a filter shift when one record leaves, so sums over
them have no bounded sensitivity. Here records 2i and 2i + 1 are a pair before any filter, and it counts if both are
there: one record touches one pair. A cell then keeps fewer pairs than half of its rows, so they are counted with noise
of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from fedcore.papers.private_gmm.theory.mechanisms import (
    Ball,
    clipped,
    gaussian_histogram,
    gaussian_scale,
    only,
    present,
    scale_of_rho,
    symmetric_noise,
    within,
    zcdp_rho,
)

PRECONDITIONED = 10.0  # the preconditioner stops at this ratio of variances
SHRINK = 0.7  # of the ratio in every round
SHARES = {"counts": 0.05, "precondition": 0.25, "covariance": 0.3, "bins": 0.15, "mean": 0.25}  # of PGE's rho


@dataclass(frozen=True, slots=True)
class Component:
    """One Gaussian. rows: a noised count; mean: (d,); covariance: (d, d), positive definite."""

    rows: float
    mean: np.ndarray
    covariance: np.ndarray


def pair_differences(rows: np.ndarray) -> np.ndarray:
    """(n // 2, d): x_2i - x_2i+1 of records; absent (NaN) unless both are there. One record changes one row."""
    even = rows[: len(rows) // 2 * 2].reshape(-1, 2, rows.shape[1])
    whole = np.isfinite(even).all(axis=(1, 2))
    return only(np.where(whole[:, None], even[:, 0], np.nan) - np.where(whole[:, None], even[:, 1], np.nan), whole)


def paired_sum(rows: np.ndarray) -> float:
    """Sum of |x_2i - x_2i+1|^2 over whole pairs; sensitivity (2r)^2 for rows in a ball of radius r."""
    differences = pair_differences(rows)
    return float((differences[present(differences)] ** 2).sum())


def spherical(
    rows: np.ndarray,
    ball: Ball,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    paired: bool = True,
    least: float = 2.0,
) -> Component | None:
    """Algorithm 6, PSGE: mean and variance of rows promised to be in the ball. (epsilon, delta)-DP in total.

    A quarter of epsilon each for: |X| + Lap, sum of x - c + Gaussian of sensitivity r, paired sum + Lap of sensitivity
    4 r^2, number of pairs + Lap. (The paper has three parts and divides by m/2 pairs.) paired = False needs no pairs:
    sigma^2 = (sum |x - c|^2 + Lap(r^2))/(m d) - |mu - c|^2/d. None if a noised count is below `least`.
    """
    inside = only(rows, within(rows, ball))
    part, d, z = epsilon / 4, rows.shape[1], clipped(inside, ball)
    count = len(z) + rng.laplace(scale=1 / part)
    total = z.sum(axis=0) + gaussian_scale(ball.radius, part, delta) * rng.standard_normal(d)
    if count < least:
        return None
    mean = total / count
    if paired:
        whole = present(pair_differences(inside)).sum() + rng.laplace(scale=1 / part)
        squares = paired_sum(inside) + rng.laplace(scale=4 * ball.radius**2 / part)
        if whole < least:
            return None
        variance = squares / (2 * d * whole)
    else:
        squares = (z**2).sum() + rng.laplace(scale=ball.radius**2 / (2 * part))
        variance = squares / (count * d) - mean @ mean / d
    return Component(count, ball.centre + mean, max(variance, np.finfo(float).tiny) * np.eye(d))


# --- PGE ------------------------------------------------------------------------------------------------------------


def norm_quantile(d: int, beta: float) -> float:
    """gamma(d, beta) = sqrt(d + 2 sqrt(d ln(1/beta)) + 2 ln(1/beta)): |N(0, I_d)| exceeds it with probability at most
    beta (Laurent and Massart 2000)."""
    log = math.log(1 / beta)
    return math.sqrt(d + 2 * math.sqrt(d * log) + 2 * log)


def precondition_rounds(kappa: float, last: float = PRECONDITIONED, shrink: float = SHRINK) -> int:
    """T: rounds until the ratio of variances, multiplied by `shrink` each time, is at most `last`. Public."""
    return max(0, math.ceil(math.log(kappa / last) / -math.log(shrink) - 1e-9))


def precondition(
    pairs: np.ndarray, kappa: float, count: float, rho: float, rng: np.random.Generator, *, beta: float = 0.05
) -> tuple[np.ndarray, float]:
    """(A, kappa'): for I <= Sigma <= kappa I, a matrix with A Sigma A' of a ratio about kappa' (Kamath, Li, Singhal,
    Ullman 2019). rho-zCDP. Every round halves the directions whose noised variance is at least kappa / 2."""
    d, rounds = pairs.shape[1], precondition_rounds(kappa)
    data, found = pairs[present(pairs)], np.eye(d)
    for _ in range(rounds):
        reach = Ball(np.zeros(d), math.sqrt(kappa) * norm_quantile(d, beta / (rounds * count)))
        z = clipped(data @ found.T, reach)
        moment = (z.T @ z + symmetric_noise(d, scale_of_rho(reach.radius**2, rho / rounds), rng)) / count
        values, vectors = np.linalg.eigh(moment)
        found = (vectors * np.where(values >= kappa / 2, 0.5, 1.0)) @ vectors.T @ found
        kappa = SHRINK * kappa
    return found, kappa


def gaussian(
    rows: np.ndarray,
    sigma_min: float,
    sigma_max: float,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    beta: float = 0.05,
    least: float = 4.0,
) -> Component | None:
    """PGE: a Gaussian with sigma_min^2 I <= Sigma <= sigma_max^2 I, no bound on its mean. (epsilon, delta)-DP in total:
    Gaussian noise at delta/2, histograms of unbounded bins at delta/2.

    Preconditioned covariance of pair differences, undone at the end; then, in whitened coordinates, a heavy bin of
    width 1 on every axis (Karwa and Vadhan 2018) and a clipped noisy mean. None if counts are below `least`, or an axis
    has no heavy bin.
    """
    d = rows.shape[1]
    rho = zcdp_rho(epsilon, delta / 2)
    part = {name: share * rho for name, share in SHARES.items()}
    pairs = pair_differences(rows) / (math.sqrt(2) * sigma_min)
    spread = scale_of_rho(1.0, part["counts"] / 2)
    count = float(present(rows).sum() + spread * rng.standard_normal())
    whole = float(present(pairs).sum() + spread * rng.standard_normal())
    if min(count, whole) < least:
        return None
    matrix, kappa = precondition(pairs, (sigma_max / sigma_min) ** 2, whole, part["precondition"], rng, beta=beta)
    reach = Ball(np.zeros(d), math.sqrt(kappa) * norm_quantile(d, beta / whole))
    z = clipped(pairs[present(pairs)] @ matrix.T, reach)
    moment = (z.T @ z + symmetric_noise(d, scale_of_rho(reach.radius**2, part["covariance"]), rng)) / whole
    back = np.linalg.inv(matrix) * sigma_min
    values, vectors = np.linalg.eigh(back @ moment @ back.T)
    values = np.maximum(values, sigma_min**2)
    whiten, colour = (vectors / np.sqrt(values)) @ vectors.T, (vectors * np.sqrt(values)) @ vectors.T
    mean = _located_mean(rows @ whiten.T, count, part["bins"], part["mean"], delta / 2, beta, rng)
    return None if mean is None else Component(count, colour @ mean, (vectors * values) @ vectors.T)


def _located_mean(
    rows: np.ndarray,
    count: float,
    rho_bins: float,
    rho_mean: float,
    delta: float,
    beta: float,
    rng: np.random.Generator,
) -> np.ndarray | None:
    """Mean of about N(mu, I): d histograms over the same records, then rows clipped about the heavy bins."""
    d = rows.shape[1]
    data = rows[present(rows)]
    centre = np.empty(d)
    for axis in range(d):
        heavy, _ = gaussian_histogram(np.floor(data[:, axis]), scale_of_rho(math.sqrt(d), rho_bins), delta / d, rng)
        if not len(heavy):
            return None
        centre[axis] = heavy[0] + 0.5
    half = 1.5 + math.sqrt(2 * math.log(2 * d * count / beta))
    z = np.clip(data - centre, -half, half)
    return centre + (z.sum(axis=0) + scale_of_rho(half * math.sqrt(d), rho_mean) * rng.standard_normal(d)) / count
