"""Algorithm 1 (FedGrEM) of Tian, Weng, Feng 2024 for Gaussian mixtures, in plain NumPy, to be read beside the paper.

"Towards the Theory of Unsupervised Federated Learning: Non-asymptotic Analysis of Federated EM Algorithms", Section 2.3
and Appendix B. Nothing of the platform uses this; tests hold the method against it.

K tasks (clients), R components of N(theta_r, I), d columns. The paper's tasks all have n rows; here task k has n_k.
From Appendix B are

    the central update   a convex problem, equation (6), solved by alternating between its two minimisers
    the schedule         lambda[t] = kappa0 lambda[t-1] + C_lambda sqrt(d + log K); kappa0 = 0.1, C_lambda = 2
    the step sizes       eta_r^(k) = C_eta / w_r^(k)[0]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CONVERGED = 1e-12
MOST_SWEEPS = 100_000


def fedgrem(
    x: Sequence[np.ndarray], w: np.ndarray, theta: np.ndarray, eta: np.ndarray, penalties: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Algorithm 1, T = len(penalties) rounds.

    x: (n_k, d) rows of each task. w: (K, R), theta: (K, R, d) the initialisations w^(k)[0], theta^(k)[0], components in
    one order. eta: (K, R) step sizes. penalties: lambda[1] .. lambda[T].
    Returns w^(k)[T] (K, R), theta^(k)[T] (K, R, d) and the centres of the last central update (R, d).
    """
    n = np.array([len(rows) for rows in x], np.float64)
    centre = theta.mean(axis=0)
    for penalty in penalties:
        # Local update: for task k = 1 .. K
        w_next, theta_tilde = np.empty_like(w), np.empty_like(theta)
        for k, rows in enumerate(x):
            g = posterior(rows, w[k], theta[k])
            # E-step: w_r^(k)[t] = 1/n sum_i P(z = r | x_i; w^(k)[t-1], theta^(k)[t-1])
            w_next[k] = g.mean(axis=0)
            # M-step: theta_r^(k)[t-1] + eta_r^(k) dQ^(k)/dtheta_r
            gradient = np.stack([g[:, r] @ (rows - theta[k, r]) for r in range(len(g[0]))]) / n[k]
            theta_tilde[k] = theta[k] + eta[k][:, None] * gradient
        # Central update: for component r = 1 .. R
        theta = np.empty_like(theta_tilde)
        for r in range(theta.shape[1]):
            theta[:, r], centre[r] = central_update(theta_tilde[:, r], n, penalty)
        w = w_next
    return w, theta, centre


def posterior(rows: np.ndarray, w: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """(n, R): P(z = r | x; w, theta), in the log domain. rows: (n, d); w: (R,); theta: (R, d)."""
    logs = np.log(w) - 0.5 * ((rows[:, None] - theta) ** 2).sum(axis=2)
    g = np.exp(logs - logs.max(axis=1, keepdims=True))
    return g / g.sum(axis=1, keepdims=True)


def central_update(t: np.ndarray, n: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """argmin over v^(1) .. v^(K), v of sum_k [ n_k / 2 |v^(k) - t_k|^2 + sqrt(n_k) lambda |v^(k) - v| ].

    t: (K, d) the tasks' estimates of a component; n: (K,). Returns the v^(k) (K, d) and v (d,). Equation (6), in which
    v^(k) = v + Delta^(k), and steps (i) to (iii) below it.
    """
    delta, v = np.zeros_like(t), np.full(t.shape[1], np.inf)  # (i)
    for _ in range(MOST_SWEEPS):
        before, v = v, np.average(t - delta, axis=0, weights=n)  # (ii)
        distance = np.linalg.norm(t - v, axis=1)
        kept = np.maximum(0.0, 1.0 - penalty / np.sqrt(n) / np.maximum(distance, 1e-300))
        delta = kept[:, None] * (t - v)  # (iii)
        if np.linalg.norm(v - before) <= CONVERGED * (1.0 + np.linalg.norm(v)):
            break
    return v + delta, v


def schedule(rounds: int, d: int, clients: int, first: float = 1.0, decay: float = 0.1, c: float = 2.0) -> list[float]:
    """lambda[1] .. lambda[T]. d: numbers of a centre; clients: K."""
    penalties = [first]
    for _ in range(rounds):
        penalties.append(decay * penalties[-1] + c * float(np.sqrt(d + np.log(clients))))
    return penalties[1:]
