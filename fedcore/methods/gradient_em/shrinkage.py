"""Shrinkage by as much as clients are found to differ, and by no more than a limit .

The centres of a component are taken as theta_k ~ N(v, s I), in units in which the rows of a component have unit
covariance, and a client's estimate as its own centre with a noise of variance 1 / (n_k w_k) per coordinate. With

    V_k = 1 / (n_k w_k) + s,      z_k = |m_k - v| / sqrt(p V_k)

for a full M-step m_k, the best linear rule shrinks m_k towards v by the share (1 / (n_k w_k)) / V_k. It is bounded:
beyond z_k = c (`LIMIT`) a client is shrunk no further, so one that is rightly different loses little, and it moves v no
further either. That is the proximal step of a Huber function of |theta_k - v| with curvature 1 / s and slope
c sqrt(p / V_k); the norm of Tian, Weng, Feng 2024 is its limit s = 0 with a slope chosen beforehand.

s is estimated from the clients by s <- s [sum h d^2 / (p V^2)] / [sum h / V], d = |m_k - v| cut at c; h is 1 up to 2 c
and falls to 0 at 3 c, so outliers have no say in it.

Source: Efron, Morris 1973 for the shrinkage of normal means by an estimated variance, Efron, Morris 1972 for its limit.
Their use within EM, with robust sums of clients, is ours.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from fedcore.methods.mixture_models import apart
from fedcore.methods.mixture_models.spatial_median import SMALLEST_DISTANCE, distances, weighted_sums

LIMIT = 1.3  # c
POOLING = 10.0  # weight, in clients, of the sums of all components in each one
SMALLEST_VARIANCE = 1e-5  # between clients, relative to the mean 1 / (n w)
LARGEST_VARIANCE = 1e6
TAIL = 5.0  # nu of `apart`: low, because errors of a mixture are larger than 1 / (n w) where components overlap
START_NOISE = 1.2  # a start's error is larger than 1 / (n w), because it is not known whose component a row is


class ClientSums(NamedTuple):
    """What clients send of the centres and of the variance between clients.

    centre: (R, p + 1) the two sums of the central update; variance: (R, 3) those of s, and the sum of h;
    beyond: (C, R) bool, who is farther out than the limit; largest: of `apart.counts_of_largest`
    """

    centre: np.ndarray
    variance: np.ndarray
    beyond: np.ndarray
    largest: np.ndarray


class Penalty(Protocol):
    """A function of |theta_k - v|; as in `EstimatedPenalty`."""

    def proximal_step(self, t: np.ndarray, v: np.ndarray) -> np.ndarray: ...

    def relative_distance(self, t: np.ndarray, theta: np.ndarray, v: np.ndarray, scores: np.ndarray) -> np.ndarray: ...

    def covariance_shares(self, t: np.ndarray, theta: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, float]: ...


class EstimatedPenalty(NamedTuple):
    """A Huber function of |theta_k - v|. All are (C, R).

    noise:   1 / (n w); infinite where a component does not count
    between: s
    slope:   of the penalty far out
    step:    of the proximal step: 1 / (n w) for a full M-step, and less for a shorter one
    """

    noise: np.ndarray
    between: np.ndarray
    slope: np.ndarray
    step: np.ndarray

    @classmethod
    def of(
        cls, counts: np.ndarray, w: np.ndarray, between: np.ndarray, fraction: np.ndarray, p: int
    ) -> EstimatedPenalty:
        """counts: (C, R) rows of the client, 0 where it does not count; between: (R,) s; fraction: (C, R) of a full
        M-step that was made."""
        mass = counts * w
        with np.errstate(divide="ignore", over="ignore"):
            noise = 1.0 / mass
        between = np.broadcast_to(between, noise.shape)
        slope = LIMIT * np.sqrt(p / (noise + between))
        return cls(noise, between, slope, np.where(mass > 0, fraction, 1.0) * noise)

    def proximal_step(self, t: np.ndarray, v: np.ndarray) -> np.ndarray:
        """(C, R, p) from estimates t (C, R, p); exactly v where a component does not count."""
        distance = distances(t, v)
        with np.errstate(invalid="ignore", divide="ignore"):
            near = self.between / (self.between + self.step)
            far = 1.0 - self.step * self.slope / np.maximum(distance, SMALLEST_DISTANCE)
            kept = np.where(distance <= (self.between + self.step) * self.slope, near, far)
        kept = np.where(np.isfinite(self.noise), kept, 0.0)[:, :, None]
        return np.where(kept == 0.0, v, v + kept * (t - v))

    def value(self, theta: np.ndarray, v: np.ndarray) -> np.ndarray:
        """(C,) the sum over the components that count, nats."""
        r, a, s = distances(theta, v), self.slope, self.between
        value = np.where(r <= s * a, 0.5 * r * r / s, a * r - 0.5 * s * a * a)
        return np.where(np.isfinite(self.noise), value, 0.0).sum(axis=1)

    def deviations(self, theta: np.ndarray, v: np.ndarray) -> np.ndarray:
        """(C, R) z of the M-step that follows from theta at a fixed point; NaN where a component does not count."""
        r, p = distances(theta, v), v.shape[1]
        with np.errstate(invalid="ignore"):
            target = r + self.noise * np.minimum(r / self.between, self.slope)
            return np.where(np.isfinite(self.noise), target / np.sqrt(p * (self.noise + self.between)), np.nan)

    def relative_distance(self, t: np.ndarray, theta: np.ndarray, v: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """(C, R) distance from v in units of that beyond which clients are apart; NaN where a component does not
        count. theta: the proximal step from t; scores: the sum of `ClientSums.largest`."""
        z, (components, p) = self.deviations(theta, v), v.shape
        return z / np.sqrt(apart.limits(scores, p, np.full(components, float(p)), components, TAIL))

    def covariance_shares(self, t: np.ndarray, theta: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, float]:
        """(C, R) what a client counts in the shared covariance, 0 far out; and how many free centres that fits."""
        z = np.nan_to_num(self.deviations(theta, v), nan=np.inf)
        shares = np.clip(3.0 - z / LIMIT, 0.0, 1.0)
        return shares, float((shares * self.between / (self.between + self.noise)).sum())

    def sums(self, m: np.ndarray, v: np.ndarray) -> ClientSums:
        """m: (C, R, p) full M-steps."""
        p, some = m.shape[2], np.isfinite(self.noise)
        variance = np.where(some, self.noise + self.between, 1.0)
        z = distances(m, v) / np.sqrt(p * variance)
        u = np.minimum(1.0, LIMIT / np.maximum(z, SMALLEST_DISTANCE))
        h = np.where(some, np.clip(3.0 - z / LIMIT, 0.0, 1.0), 0.0)
        centre = weighted_sums(m, np.where(some, u / variance, 0.0))
        parts = [h * (u * z) ** 2 / variance, h * u / variance, h]
        variances = np.stack([part.sum(axis=0) for part in parts], axis=1)
        return ClientSums(centre, variances, some & (z > LIMIT), apart.counts_of_largest(np.where(some, z * z, np.nan)))


def next_variance(before: np.ndarray, sums: np.ndarray, smallest: float) -> np.ndarray:
    """(R,) the next s. sums: (R, 3) of `ClientSums`."""
    square, scale, counted = sums.sum(axis=0)
    if counted <= 0:
        return before
    square, scale = POOLING * square / counted, POOLING * scale / counted
    below = sums[:, 1] + scale
    ratio = np.where(below > 0, (sums[:, 0] + square) / np.where(below > 0, below, 1.0), 1.0)
    return np.clip(before * ratio, smallest, LARGEST_VARIANCE)


def first_variance(starts: np.ndarray, v: np.ndarray, mass: float) -> np.ndarray:
    """(R,) s from the median distance of aligned starts (K, R, p) from v, less their noise. mass: mean of n w."""
    square = np.median(distances(starts, v), axis=0) ** 2 / v.shape[1]
    return np.maximum(square - START_NOISE / mass, 0.1 / mass)
