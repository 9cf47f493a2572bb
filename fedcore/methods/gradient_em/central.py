"""The central update: for each component a robust centre of the clients' estimates, to which clients are drawn.

    min over v, {v_k}   sum_k [ n_k / 2 |v_k - t_k|^2 + sqrt(n_k) lambda |v_k - v| ]

For fixed v the client's part is v_k = v + soft(t_k - v, tau_k), tau_k = lambda / sqrt(n_k), and its value is the Huber
function of |t_k - v|. So v is a multivariate Huber centre, found by iteratively reweighted means: with

    a_k = n_k min(1, tau_k / |t_k - v|),      v <- sum a_k t_k / sum a_k,

which never increases the objective. A step needs two sums per component, and a_k is computed by the client from v.

Source: Tian, Weng, Feng 2024, Algorithm 1 (central update); the reweighting is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedcore.methods.mixture_models.spatial_median import SMALLEST_DISTANCE, distances, moved_centre, weighted_sums

TOLERANCE = 1e-9
MOST_STEPS = 500


def shares_kept(distance: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """max(0, 1 - tau / distance): what soft-thresholding leaves of a difference; 0 where both are 0."""
    return np.maximum(0.0, 1.0 - tau / np.maximum(distance, SMALLEST_DISTANCE))


def proximal_step(t: np.ndarray, v: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """(K, R, p): v + soft(t - v, tau), the client's part of the central update. tau: (K, R), 0 leaves t as it is."""
    kept = np.where(tau > 0, shares_kept(distances(t, v), tau), 1.0)[:, :, None]
    # exactly t where nothing is taken, exactly v where nothing is left
    return np.where(kept == 1.0, t, np.where(kept == 0.0, v, v + kept * (t - v)))


def huber_weights(t: np.ndarray, v: np.ndarray, n: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """(K, R) a_k = n_k min(1, tau_k / |t_k - v|). n: (K, R), 0 leaves a client out."""
    return np.where(n > 0, n * np.minimum(1.0, tau / np.maximum(distances(t, v), SMALLEST_DISTANCE)), 0.0)


def thresholds(penalty: float, n: np.ndarray) -> np.ndarray:
    """(K, R) tau = lambda / sqrt(n); 0 for n = 0. n: (K, R)."""
    return np.where(n > 0, penalty / np.sqrt(np.where(n > 0, n, 1.0)), 0.0)


class CentralUpdate(NamedTuple):
    """v: (R, p) the centres. theta: (K, R, p). steps: that were made. gradient: the largest over the components of
    |sum n_k clip(t_k - v, tau_k)| / sum n_k tau_k."""

    v: np.ndarray
    theta: np.ndarray
    steps: int
    gradient: float


Solver = Callable[[np.ndarray, np.ndarray, float, np.ndarray], CentralUpdate]  # t, n, penalty, v of `solve`


def solve(
    t: np.ndarray,
    n: np.ndarray,
    penalty: float,
    v: np.ndarray | None = None,
    tolerance: float = TOLERANCE,
    most_steps: int = MOST_STEPS,
) -> CentralUpdate:
    """The exact central update, all components at once.

    t: (K, R, p); n: (K,) or (K, R) rows, 0 leaves a client out; penalty: lambda >= 0; v: (R, p) a warm start, or None
    for the coordinatewise median. Ends when every component's step is below tolerance (1 + max |v|), and at the latest
    after most_steps.
    """
    n = np.broadcast_to(n if np.ndim(n) == 2 else np.asarray(n, np.float64)[:, None], t.shape[:2])
    v = coordinate_medians(t, n) if v is None else v
    tau = thresholds(penalty, n)
    known = np.where((n > 0)[:, :, None], t, 0.0)  # once: a client that is left out counts as nothing, whatever t is
    steps = 0
    while steps < most_steps:
        steps += 1
        a = n * np.minimum(1.0, tau / np.maximum(distances(known, v), SMALLEST_DISTANCE))
        new = moved_centre(v, np.concatenate([np.einsum("kr,krp->rp", a, known), a.sum(axis=0)[:, None]], axis=1))
        change = np.sqrt(((new - v) ** 2).sum(axis=1)).max(initial=0.0)
        v = new
        if change <= tolerance * (1.0 + np.abs(v).max(initial=0.0)):
            break
    return CentralUpdate(v, proximal_step(t, v, tau), steps, relative_gradient(t, v, n, tau))


def relative_gradient(t: np.ndarray, v: np.ndarray, n: np.ndarray, tau: np.ndarray) -> float:
    """The optimality condition sum n_k clip(t_k - v, tau_k) = 0, relative to sum n_k tau_k; 0 without a penalty."""
    sums = weighted_sums(t - v, huber_weights(t, v, n, tau))
    scale = (n * tau).sum(axis=0)
    norms = np.sqrt((sums[:, :-1] ** 2).sum(axis=1))
    return float(np.max(np.where(scale > 0, norms / np.where(scale > 0, scale, 1.0), 0.0), initial=0.0))


def coordinate_medians(t: np.ndarray, n: np.ndarray) -> np.ndarray:
    """(R, p) medians over the clients with n > 0; 0 if there are none."""
    masked = np.where((n > 0)[:, :, None], t, np.nan)
    nobody = ~(n > 0).any(axis=0)
    masked[0, nobody] = 0.0
    return np.nanmedian(masked, axis=0)


def next_penalty(penalty: float, decay: float, constant: float, p: int, clients: float) -> float:
    """kappa0 lambda + C sqrt(p + ln K), K >= 1."""
    return decay * penalty + constant * float(np.sqrt(p + np.log(max(clients, 1.0))))
