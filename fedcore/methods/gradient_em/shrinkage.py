"""Shrinkage by as much as clients are found to differ, and by no more than a limit.

The centres of a component are taken as theta_k ~ N(v, s I), units in which the rows of a component have unit
covariance, and a client's estimate as its own centre with a noise of variance 1 / (n_k w_k) per coordinate. With

    V_k = 1 / (n_k w_k) + s,      z_k = |m_k - v| / sqrt(p V_k)

for a full M-step m_k, the best linear rule draws m_k towards v by the share (1 / (n_k w_k)) / V_k. It is bounded:
beyond z_k = c (`limit`) a client is drawn no further, so one that is rightly different loses little, and draws v no
further itself. That is the proximal step of a Huber function of |theta_k - v| with curvature 1 / s and slope
c sqrt(p / V_k); the norm of Tian, Weng, Feng 2024 is its limit s = 0 with a slope chosen beforehand.

s follows from the clients by s <- s [sum h d^2 / (p V^2)] / [sum h / V], d = |m_k - v| cut at c; h is 1 up to 2 c and
falls to 0 at 3 c, so outliers have no say in it.

Shrinkage of normal means by an estimated variance: Efron, Morris 1973; its limit: Efron, Morris 1972. Within EM and
with robust sums of clients it is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.methods.gradient_em.central import SMALLEST_DISTANCE, distances, weighted_sums

SMALLEST_SPREAD = 1e-5  # relative to the mean 1 / (n w)
LARGEST_SPREAD = 1e6
START_NOISE = 1.2  # a start's error is larger than 1 / (n w), because it is not known whose component a row is


class Pull(NamedTuple):
    """How clients are drawn to the centres. All (C, R).

    noise: 1 / (n w), infinite where a component does not count; spread: s; slope: of the penalty far out; step: of the
    proximal step, 1 / (n w) for a full M-step and less for a shorter one.
    """

    noise: np.ndarray
    spread: np.ndarray
    slope: np.ndarray
    step: np.ndarray


def pull(counts: np.ndarray, w: np.ndarray, spread: np.ndarray, share: np.ndarray, limit: float, p: int) -> Pull:
    """counts: (C, R) rows of the client, 0 where it does not count; share: (C, R) of a full M-step that was made."""
    mass = counts * w
    with np.errstate(divide="ignore"):
        noise = 1.0 / mass
    spread = np.broadcast_to(spread, noise.shape)
    return Pull(noise, spread, limit * np.sqrt(p / (noise + spread)), np.where(mass > 0, share, 1.0) * noise)


def drawn(t: np.ndarray, v: np.ndarray, by: Pull) -> np.ndarray:
    """(C, R, p) the proximal step from t (C, R, p); v where a component does not count."""
    distance = distances(t, v)
    with np.errstate(invalid="ignore", divide="ignore"):
        near = by.spread / (by.spread + by.step)
        far = 1.0 - by.step * by.slope / np.maximum(distance, SMALLEST_DISTANCE)
        kept = np.where(distance <= (by.spread + by.step) * by.slope, near, far)
    kept = np.where(np.isfinite(by.noise), kept, 0.0)[:, :, None]
    return np.where(kept == 0.0, v, v + kept * (t - v))


def penalty(theta: np.ndarray, v: np.ndarray, by: Pull) -> np.ndarray:
    """(C,) the sum over the components that count, nats."""
    r, a, s = distances(theta, v), by.slope, by.spread
    value = np.where(r <= s * a, 0.5 * r * r / s, a * r - 0.5 * s * a * a)
    return np.where(np.isfinite(by.noise), value, 0.0).sum(axis=1)


def deviations(theta: np.ndarray, v: np.ndarray, by: Pull, p: int) -> np.ndarray:
    """(C, R) z of the M-step that follows from theta at a fixed point; NaN where a component does not count."""
    r = distances(theta, v)
    with np.errstate(invalid="ignore"):
        target = r + by.noise * np.minimum(r / by.spread, by.slope)
        return np.where(np.isfinite(by.noise), target / np.sqrt(p * (by.noise + by.spread)), np.nan)


class Answer(NamedTuple):
    """centre: (R, p + 1) the two sums of the central update. spread: (R, 3) those of s, and sum h. shares: (C, R) h.
    beyond: (C, R) bool, farther out than the limit."""

    centre: np.ndarray
    spread: np.ndarray
    shares: np.ndarray
    beyond: np.ndarray


def answer(m: np.ndarray, v: np.ndarray, by: Pull, limit: float) -> Answer:
    """What clients say of the centres and of their spread. m: (C, R, p) full M-steps."""
    p, some = m.shape[2], np.isfinite(by.noise)
    variance = np.where(some, by.noise + by.spread, 1.0)
    z = distances(m, v) / np.sqrt(p * variance)
    u = np.minimum(1.0, limit / np.maximum(z, SMALLEST_DISTANCE))
    h = np.where(some, np.clip(3.0 - z / limit, 0.0, 1.0), 0.0)
    centre = weighted_sums(m, np.where(some, u / variance, 0.0))
    parts = [h * (u * z) ** 2 / variance, h * u / variance, h]
    return Answer(centre, np.stack([part.sum(axis=0) for part in parts], axis=1), h, some & (z > limit))


def next_spread(spread: np.ndarray, sums: np.ndarray, pooling: float, smallest: float) -> np.ndarray:
    """(R,) the next s. sums: (R, 3) of `answer`; pooling: clients' worth of all components' sums that each one gets."""
    square, scale, counted = sums.sum(axis=0)
    if counted <= 0:
        return spread
    square, scale = pooling * square / counted, pooling * scale / counted
    below = sums[:, 1] + scale
    ratio = np.where(below > 0, (sums[:, 0] + square) / np.where(below > 0, below, 1.0), 1.0)
    return np.clip(spread * ratio, smallest, LARGEST_SPREAD)


def first_spread(starts: np.ndarray, v: np.ndarray, mass: float) -> np.ndarray:
    """(R,) from the median distance of aligned starts (K, R, p) from v, less their noise. mass: mean of n w."""
    square = np.median(distances(starts, v), axis=0) ** 2 / v.shape[1]
    return np.maximum(square - START_NOISE / mass, 0.1 / mass)
