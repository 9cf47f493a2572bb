"""The central update of the published program, for comparison with published figures.

Source: Tian, Weng, Feng 2024, equation (6).
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.gradient_em.central import CentralUpdate, relative_gradient, shares_kept, thresholds
from fedcore.methods.mixture_models.spatial_median import distances, moved_centre, weighted_sums


def authors_sweep(t: np.ndarray, n: np.ndarray, penalty: float, v: np.ndarray | None = None) -> CentralUpdate:
    """What the published program computes: two sweeps of the alternating scheme from the plain mean, not its limit.

    n: (K, R), 0 leaves a client out; v: not read.
    """
    tau, some = thresholds(penalty, n), (n > 0).astype(np.float64)
    v = moved_centre(np.zeros(t.shape[1:]), weighted_sums(t, some))
    rest = shares_kept(distances(t, v), tau)[:, :, None] * (t - v)
    v = moved_centre(v, weighted_sums(t - rest, some))
    theta = v + shares_kept(distances(t, v), tau)[:, :, None] * (t - v)
    return CentralUpdate(v, theta, 1, relative_gradient(t, v, n, tau))
