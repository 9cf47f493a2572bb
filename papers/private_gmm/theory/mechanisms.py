"""Noise, its calibration, AboveThreshold, stability histograms, composition, private principal components.

privacy: none (simulated noise). Everything is for add/remove of one record. Sources: Dwork and Roth 2014 (Laplace,
AboveThreshold, advanced composition); Balle and Wang 2018 (exact Gaussian calibration); Dong, Roth, Su 2022 (Gaussian
differential privacy); Dwork, Talwar, Thakurta, Zhang 2014 (Analyze Gauss).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from fedcore.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Ball:
    """centre: (d,); radius >= 0. Closed."""

    centre: np.ndarray
    radius: float


def present(rows: np.ndarray) -> np.ndarray:
    """(n,) bool: which records are there. Absent ones hold a NaN or an infinity."""
    return np.isfinite(rows).all(axis=1)


def only(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The same records, those not chosen absent. chosen: (n,) bool."""
    return np.where(chosen[:, None], rows, np.nan)


def within(rows: np.ndarray, ball: Ball, factor: float = 1.0) -> np.ndarray:
    """(n,) bool: present and in B(centre, factor * radius)."""
    with np.errstate(invalid="ignore", over="ignore"):
        return present(rows) & (np.linalg.norm(rows - ball.centre, axis=1) <= factor * ball.radius)


def clipped(rows: np.ndarray, ball: Ball) -> np.ndarray:
    """(m, d) of the present rows: x - centre, shortened to the radius where longer. Slips S3, S4: the bound that a
    sensitivity rests on is enforced, about the ball's own centre, whatever was promised about the data."""
    shifted = rows[present(rows)] - ball.centre
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        norms = np.linalg.norm(shifted, axis=1, keepdims=True)
        return np.where(norms > ball.radius, shifted * (ball.radius / norms), shifted)


def clipped_to(rows: np.ndarray, radius: float) -> np.ndarray:
    """(n, d): every row shortened to B(0, radius); absent rows stay absent."""
    chosen = present(rows)
    found = np.full(rows.shape, np.nan)
    found[chosen] = clipped(rows, Ball(np.zeros(rows.shape[1]), radius))
    return found


# --- Gaussian -------------------------------------------------------------------------------------------------------


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta(epsilon) of a mu-GDP mechanism: Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""
    if mu == 0:
        return 0.0
    return float(ndtr(-epsilon / mu + mu / 2) - math.exp(min(epsilon + log_ndtr(-epsilon / mu - mu / 2), 0.0)))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu such that mu-GDP implies (epsilon, delta)-DP, from below; valid at every epsilon.

    Slip S5: the textbook's sqrt(2 ln(1.25/delta))/epsilon holds for epsilon <= 1 only and is not used here.
    """
    check_budget(epsilon, delta)
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= delta:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(epsilon, middle) <= delta else (low, middle)
    return low


def zcdp_rho(epsilon: float, delta: float) -> float:
    """rho of an all-Gaussian pipeline that is (epsilon, delta)-DP: mu^2 / 2."""
    return gaussian_mu(epsilon, delta) ** 2 / 2


def gaussian_scale(sensitivity: float, epsilon: float, delta: float) -> float:
    """Standard deviation for this L2 sensitivity; exact."""
    return sensitivity / gaussian_mu(epsilon, delta)


def scale_of_rho(sensitivity: float, rho: float) -> float:
    """Standard deviation of a release of this L2 sensitivity that costs rho-zCDP."""
    return sensitivity / math.sqrt(2 * rho)


def symmetric_noise(d: int, scale: float, rng: np.random.Generator) -> np.ndarray:
    """(d, d) symmetric; the upper triangle with the diagonal is iid N(0, scale^2)."""
    upper = np.triu(rng.standard_normal((d, d))) * scale
    return upper + np.triu(upper, 1).T


def noisy_count(rows: np.ndarray, epsilon: float, rng: np.random.Generator) -> float:
    """PCount: number of present rows + Lap(1/epsilon)."""
    return float(present(rows).sum() + rng.laplace(scale=1 / epsilon))


# --- AboveThreshold -------------------------------------------------------------------------------------------------


def above_threshold(
    values: Iterable[float], threshold: float, epsilon: float, rng: np.random.Generator, *, sensitivity: float = 1.0
) -> int | None:
    """The number of the first value that is, noised, above the noised threshold; None if there is none. epsilon-DP for
    any number of queries of this sensitivity: Lap(2 s/eps) on the threshold, Lap(4 s/eps) on every value. Values after
    the first hit are not asked for."""
    noised = threshold + rng.laplace(scale=2 * sensitivity / epsilon)
    for number, value in enumerate(values):
        if value + rng.laplace(scale=4 * sensitivity / epsilon) >= noised:
            return number
    return None


def above_threshold_error(queries: int, epsilon: float, beta: float, sensitivity: float = 1.0) -> float:
    """A = 8 s (ln T + ln(2/beta)) / eps: with probability 1 - beta, a hit is >= threshold - A and all before it are
    <= threshold + A (Theorem 2.14)."""
    return 8 * sensitivity * (math.log(max(queries, 1)) + math.log(2 / beta)) / epsilon


# --- histograms of unbounded domains --------------------------------------------------------------------------------


def stability_threshold(epsilon: float, delta: float) -> float:
    """1 + ln(1/(2 delta)) / epsilon: what a noised count must exceed so that a single record's own bin shows with
    probability delta at most."""
    return 1 + max(math.log(1 / (2 * delta)), 0.0) / epsilon


def stability_histogram(
    keys: np.ndarray, epsilon: float, delta: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Bins that are heavy, and their noised counts, heaviest first. keys: (n,), the one bin of each present record.
    Lap(1/epsilon) on every bin that is not empty. (epsilon, delta)-DP."""
    bins, counts = np.unique(keys, return_counts=True)
    noised = counts + rng.laplace(scale=1 / epsilon, size=len(counts))
    return _heaviest(bins, noised, stability_threshold(epsilon, delta))


def gaussian_histogram(
    keys: np.ndarray, scale: float, delta: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """As `stability_histogram`, with N(0, scale^2) and the threshold 1 + scale Phi^-1(1 - delta). Costs 1/(2 scale^2)
    of zCDP and delta; J of them over the same records cost J times both."""
    bins, counts = np.unique(keys, return_counts=True)
    noised = counts + scale * rng.standard_normal(len(counts))
    return _heaviest(bins, noised, 1 - scale * float(ndtri(delta)))


def _heaviest(bins: np.ndarray, noised: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-noised, kind="stable")
    order = order[noised[order] > threshold]
    return bins[order], noised[order]


# --- composition ----------------------------------------------------------------------------------------------------


def advanced_epsilon(epsilon: float, calls: int, slack: float) -> float:
    """Total epsilon of `calls` mechanisms of this epsilon by advanced composition; deltas add, plus slack."""
    growth = epsilon * math.expm1(epsilon) if epsilon < 700 else math.inf
    return epsilon * math.sqrt(2 * calls * math.log(1 / slack)) + calls * growth


def per_call_budget(epsilon: float, delta: float, calls: int) -> tuple[float, float]:
    """(epsilon_0, delta_0) of each of `calls` mechanisms that are together (epsilon, delta)-DP: the better one of basic
    composition and of advanced composition with half of delta as slack."""
    check_budget(epsilon, delta)
    basic = epsilon / calls
    low, high = 0.0, epsilon
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if advanced_epsilon(middle, calls, delta / 2) <= epsilon else (low, middle)
    return (low, delta / (2 * calls)) if low > basic else (basic, delta / calls)


def check_budget(epsilon: float, delta: float) -> None:
    """Raises ConfigError unless 0 < epsilon < inf and 0 < delta < 1."""
    if not (math.isfinite(epsilon) and epsilon > 0 and 0 < delta < 1):
        raise ConfigError(f"epsilon must be positive and finite, delta between 0 and 1; not {epsilon!r}, {delta!r}.")


# --- principal components ---------------------------------------------------------------------------------------------


def second_moment(rows: np.ndarray, ball: Ball) -> np.ndarray:
    """(d, d): sum of zz', z = clip(x; ball) - centre. L2 sensitivity radius^2: |zz'|_F = |z|^2, and the norm of the
    upper triangle is at most the Frobenius norm. (The paper uses 2 radius^2, for substitution.)"""
    z = clipped(rows, ball)
    return z.T @ z


def principal_components(
    rows: np.ndarray, ball: Ball, count: int, epsilon: float, delta: float, rng: np.random.Generator
) -> np.ndarray:
    """(d, q) orthonormal: the top q = min(count, d) eigenvectors, by signed eigenvalue, of the noised second moment
    about the ball's centre. (epsilon, delta)-DP. Slip S3: centred at the ball's centre and clipped, not at the origin.
    """
    return _leading(second_moment(rows, ball), gaussian_scale(ball.radius**2, epsilon, delta), count, rng)


def principal_components_zcdp(
    rows: np.ndarray, ball: Ball, count: int, rho: float, rng: np.random.Generator, *, sensitivity: float | None = None
) -> np.ndarray:
    """As `principal_components`, for rho-zCDP. sensitivity: of the second moment; radius^2 by default."""
    bound = ball.radius**2 if sensitivity is None else sensitivity
    return _leading(second_moment(rows, ball), scale_of_rho(bound, rho), count, rng)


def _leading(moment: np.ndarray, scale: float, count: int, rng: np.random.Generator) -> np.ndarray:
    d = len(moment)
    if not np.isfinite(moment).all():
        moment = np.zeros((d, d))
    return np.linalg.eigh(moment + symmetric_noise(d, scale, rng))[1][:, ::-1][:, : min(count, d)]
