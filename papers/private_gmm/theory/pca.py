"""Private principal components: Analyze Gauss (Dwork, Talwar, Thakurta, Zhang 2014).

privacy: none (noise is simulated).
"""

from __future__ import annotations

import numpy as np
from fedcore.papers.private_gmm.theory.mechanisms import Ball, clipped, gaussian_scale, scale_of_rho, symmetric_noise


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
