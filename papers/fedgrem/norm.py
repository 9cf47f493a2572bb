"""The paper's way to shrink clients: by a norm, with the central update solved in every round.

    min over v, {v_k}   sum_k [ n_k / 2 |v_k - t_k|^2 + sqrt(n_k) lambda |v_k - v| ]

For fixed v the client's part is v_k = v + soft(t_k - v, tau_k), tau_k = lambda / sqrt(n_k), and its value is the Huber
function of |t_k - v|. So v is a multivariate Huber centre, found by iteratively reweighted means: with

    a_k = n_k min(1, tau_k / |t_k - v|),      v <- sum a_k t_k / sum a_k,

which never increases the objective.

Source: Tian, Weng, Feng 2024, Algorithm 1 (central update); the reweighting is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedcore.methods.gradient_em import GradientEMConfig, GradientEMState
from fedcore.methods.gradient_em.clients import Active, LocalUpdate, Parameters
from fedcore.methods.gradient_em.config import Variant
from fedcore.methods.gradient_em.messages import RoundMessage
from fedcore.methods.mixture_models.spatial_median import SMALLEST_DISTANCE, distances, moved_centre, weighted_sums
from fedcore.rounds.statistics import Stack, Statistic

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


# --- in the rounds of `gradient_em` -----------------------------------------------------------------------------------


class NormPenalty(NamedTuple):
    """sqrt(n_k) lambda |theta_k - v|, Algorithm 1 of Tian, Weng, Feng 2024.

    counts: (C, R) rows n_k of the client, 0 where a component does not count; tau: (C, R) lambda / sqrt(n_k)
    """

    counts: np.ndarray
    tau: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, strength: float) -> NormPenalty:
        """strength: lambda."""
        return cls(counts, thresholds(strength, counts))

    def proximal_step(self, t: np.ndarray, v: np.ndarray) -> np.ndarray:
        """(C, R, p) from estimates t (C, R, p); exactly v where a component does not count."""
        return np.where(self.counts[:, :, None] > 0, proximal_step(t, v, self.tau), v)

    def relative_distance(self, t: np.ndarray, theta: np.ndarray, v: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """(C, R) |t - v| / tau; NaN where a component does not count or there is no penalty. scores: not read."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = distances(t, v) / np.where(self.tau > 0, self.tau, np.nan)
            return np.where(self.counts > 0, ratio, np.nan)

    def covariance_shares(self, t: np.ndarray, theta: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, float]:
        """(C, R) what a client counts in the shared covariance, min(1, tau / |t - v|); fitted centres are not
        subtracted."""
        return huber_weights(t, v, (self.counts > 0).astype(np.float64), self.tau), 0.0

    def beyond(self, t: np.ndarray, v: np.ndarray) -> np.ndarray:
        """(C, R) bool, who is farther out than tau."""
        return (self.counts > 0) & (distances(t, v) > self.tau)


@dataclass(frozen=True, slots=True)
class NormVariant(Variant):
    """All clients are shrunk by lambda / sqrt n, whatever they are found to differ."""

    smallest_cluster: float = 5.0

    def penalty_of(
        self,
        counts: np.ndarray,
        w: np.ndarray,
        p: int,
        *,
        strength: float,
        between: np.ndarray,
        fraction: np.ndarray | None = None,
    ) -> NormPenalty:
        return NormPenalty.of(counts, strength)


def sent(
    config: GradientEMConfig,
    message: RoundMessage,
    active: Active,
    now: Parameters,
    new: LocalUpdate,
    counts: np.ndarray,
) -> tuple[dict[str, Statistic], np.ndarray]:
    """sent: (C, R, p + 1) the clients' estimates and their rows, for the server that solves the update; and (C, R)
    bool, who is farther out than the penalty reaches."""
    parts = np.concatenate([new.estimate, counts[:, :, None]], axis=2)
    every = np.zeros((active.block.clients, *parts.shape[1:]))
    every[active.among] = parts
    beyond = NormPenalty.of(counts, message.penalty).beyond(new.estimate, active.v)
    return {"sent": Stack({active.block.first: every})}, beyond


def solved(
    config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any], v: np.ndarray, *, solve: Solver = solve
) -> tuple[np.ndarray, GradientEMState, dict[str, float]]:
    """(R, p) the centres that solve the update for all clients' estimates, model's units; the state; and metrics of how
    well it is solved."""
    parts = np.asarray(result["sent"])
    found = solve(parts[:, :, :-1], parts[:, :, -1], state.penalty, v)
    info = {"central_steps": float(found.steps), "central_gradient": found.gradient}
    return found.v, state, {"penalty": state.penalty, **info}
