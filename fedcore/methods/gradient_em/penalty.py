"""The penalty that draws a client's centres to the common ones: the paper's norm, or one with estimated variances.

Both are functions of |theta_k - v|. The client's part of the central update is their proximal step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.methods.gradient_em import central
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.shrinkage import EstimatedPenalty
from fedcore.methods.mixture_models.spatial_median import distances


class NormPenalty(NamedTuple):
    """sqrt(n_k) lambda |theta_k - v|, Algorithm 1 of Tian, Weng, Feng 2024.

    counts: (C, R) rows n_k of the client, 0 where a component does not count; tau: (C, R) lambda / sqrt(n_k)
    """

    counts: np.ndarray
    tau: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, strength: float) -> NormPenalty:
        """strength: lambda."""
        return cls(counts, central.thresholds(strength, counts))

    def proximal_step(self, t: np.ndarray, v: np.ndarray) -> np.ndarray:
        """(C, R, p) from estimates t (C, R, p); exactly v where a component does not count."""
        return np.where(self.counts[:, :, None] > 0, central.proximal_step(t, v, self.tau), v)

    def relative_distance(self, t: np.ndarray, theta: np.ndarray, v: np.ndarray) -> np.ndarray:
        """(C, R) |t - v| / tau; NaN where a component does not count or there is no penalty."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = distances(t, v) / np.where(self.tau > 0, self.tau, np.nan)
            return np.where(self.counts > 0, ratio, np.nan)

    def covariance_shares(self, t: np.ndarray, theta: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, float]:
        """(C, R) what a client counts in the shared covariance, min(1, tau / |t - v|); fitted centres are not
        subtracted."""
        return central.huber_weights(t, v, (self.counts > 0).astype(np.float64), self.tau), 0.0

    def beyond(self, t: np.ndarray, v: np.ndarray) -> np.ndarray:
        """(C, R) bool, who is farther out than tau."""
        return (self.counts > 0) & (distances(t, v) > self.tau)


Penalty = NormPenalty | EstimatedPenalty


def penalty_of(
    config: GradientEMConfig,
    counts: np.ndarray,
    w: np.ndarray,
    p: int,
    *,
    strength: float,
    between: np.ndarray,
    fraction: np.ndarray | None = None,
) -> Penalty:
    """The penalty of the settings.

    counts: (C, R) rows of the clients, 0 where a component does not count. strength: lambda, for the norm. Estimated:
    between: (R,) variance between clients; fraction: (C, R) of a full M-step that the estimates made, None: all of it.
    """
    if not config.estimated:
        return NormPenalty.of(counts, strength)
    fraction = np.ones(w.shape) if fraction is None else fraction
    return EstimatedPenalty.of(counts, w, between, fraction, p)
