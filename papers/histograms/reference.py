"""The algorithms on one page of NumPy, to be read beside the paper; tests hold the method against it.

Source: Setlur, Feldman, Talwar, "Private and Personalized Histogram Estimation in a Federated Setting" (2023), whose
line numbers are in the comments: S (n, d) holds the clients' histograms Q_u, P (K, d) the centres. A centre is smoothed
by 1e-6 where clients are assigned to it, a row of S that serves as a centre by 1e-4. `private_pipeline` is the sound
version that docs/privacy/histograms.md argues for; its sums are exact here, as if every noise had been drawn as 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

argmin = np.argmin  # ties go to the lowest number
at_least = np.greater_equal


def smooth(p: np.ndarray, e: float) -> np.ndarray:
    return (p + e) / (1 + p.shape[-1] * e)


def project(P: np.ndarray, floor: float = 1e-5) -> np.ndarray:
    return np.maximum(P, floor) / np.maximum(P, floor).sum(axis=-1, keepdims=True)


def posterior_mean(
    y: np.ndarray, s: np.ndarray, grid: np.ndarray, steps: int, G: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """E[theta | y] for y = theta + s N(0, 1), and the law of theta: normal pieces around the grid, by EM from G."""
    h = grid * np.log(grid[-1] / grid[0]) / (2 * (len(grid) - 1))
    L = np.array([-((a - grid) ** 2) / (b**2 + h**2) / 2 - np.log(b**2 + h**2) / 2 for a, b in zip(y, s, strict=True)])
    L = np.exp(np.maximum(L - L.max(axis=1, keepdims=True), -80))
    G, before = np.full(len(grid), 1 / len(grid)) if G is None else G, -np.inf
    for _ in range(steps):
        if np.log(L @ G).mean() < before + 1e-7:
            break
        before, G = np.log(L @ G).mean(), np.maximum(G * (L / (L @ G)[:, None]).mean(axis=0), 1e-30)
    R = L * G / (L @ G)[:, None]
    return np.sum(R * (grid + h**2 / (h**2 + s[:, None] ** 2) * (y[:, None] - grid)), axis=1), G


def denoised(y: np.ndarray, s: np.ndarray, F: np.ndarray) -> np.ndarray:
    """P of y = P + s N(0, 1), by the law of its ratios to F; of many tokens each band of F then has its own."""
    ratios, d = np.exp(np.arange(-64, 57) * np.log(50) / 64), len(F)
    r, G = posterior_mean(y / F, s / F, ratios, 100)
    if d >= 500:
        for b in np.array_split(np.argsort(F, kind="stable"), min(4, d // 250)):
            r[b] = posterior_mean(y[b] / F[b], s[b] / F[b], ratios, 10, G)[0]
    return project(F * r, 1e-6)


def kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p || q) over the last axis, nats, 0 ln 0 = 0."""
    return np.sum(p * (np.log(np.where(p > 0, p, 1.0)) - np.log(q)), axis=-1)


def misfits(S: np.ndarray, P: np.ndarray) -> np.ndarray:
    """(n, K): KL(Q_u || P_k)."""
    return kl(S[:, None], smooth(P, 1e-6)[None])


def algorithm_1(S: np.ndarray, K: int, tau: float, gumbel: np.ndarray) -> np.ndarray:
    """K rows of S. gumbel: (K, n); the largest weight + Gumbel is a draw from the softmax of the weights."""
    P = [S[argmin(-gumbel[0])]]  # 1: uniform
    while len(P) < K:  # 3
        D = [min(kl(smooth(p, 1e-4), smooth(q, 1e-4)) for p in P) for q in S]
        P.append(S[argmin(-(tau * np.array(D) + gumbel[len(P)]))])  # 5, 6
    return smooth(np.array(P), 1e-4)


def algorithm_2(S: np.ndarray, P: np.ndarray, T: int) -> np.ndarray:
    """Centres after at most T rounds. An empty cluster takes the row that the others serve worst, not 1/d (line 5)."""
    for t in range(1, T + 1):
        before, C, P = P, argmin(misfits(S, P), axis=1), P.copy()  # 2, 7
        for k in set(C):
            P[k] = S[C == k].mean(axis=0)  # 5
        if t == T or np.array_equal(P, before):
            break
        empty = [k for k in range(len(P)) if k not in C]
        for i, k in enumerate(empty):
            P[k] = smooth(S[argmin(-misfits(S, np.delete(P, empty[i:], axis=0)).min(axis=1))], 1e-4)
    return P


def personalised(x: np.ndarray, P: np.ndarray, a: float) -> np.ndarray:
    """Lemma 2.2 with the centre of the client's cluster, a for alpha. x: (d,) counts."""
    return (a * P[argmin(misfits(x[None] / x.sum(), P)[0])] + x) / (a + x.sum())


def private_pipeline(
    S: np.ndarray, sigma: np.ndarray, K: int, K1: int, T1: int, p: float, C: float, normal: Callable[..., np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """P (K, d) and F (d,) after T rounds. sigma: (2 + T,). K1: cells until round T1. normal(t, cells): (cells, d)."""

    def metric(F: np.ndarray, floor: float) -> np.ndarray:
        w = np.maximum(F, floor) * np.sqrt(1 / 150 + np.maximum(F, floor))  # 150: m_eff
        return w / w.sum()

    def release(w: np.ndarray, C: float, cells: np.ndarray, k: int) -> np.ndarray:
        """(k, d): sums of Q_u, weighted so that ||Q_u / sqrt(w)|| <= C. A row's sum is its noised count."""
        weights = np.minimum(1, C / np.linalg.norm(S / np.sqrt(w), axis=1))
        return np.array([weights[cells == j] @ S[cells == j] for j in range(k)])

    def mean(F: np.ndarray, H: np.ndarray, V: np.ndarray, least: float = 6) -> np.ndarray:
        """From H, sums over all clients by the inverse variance of their noise, V the noise's variance in H (d,)."""
        if not at_least(H.sum(), least * np.sqrt(V.sum())):
            return F
        grid = 0.3 * np.exp(np.arange(-199, 200) * np.log(0.3e6) / 199)
        grid = grid[: 1 + np.flatnonzero(grid >= 1 - 1e-12)[0]]
        return project(posterior_mean(H / H.sum(), np.sqrt(V) / H.sum(), grid, 300)[0], 1e-6)

    d, T, everybody = S.shape[1], len(sigma) - 2, np.zeros(len(S), int)
    F = mean(np.full(d, 1 / d), release(np.ones(d), 0.2, everybody, 1)[0], np.full(d, (0.2 * sigma[0]) ** 2), least=1.5)
    w = metric(F, 3e-5)
    V = w * (C * sigma[1]) ** -2.0
    H = release(w, C, everybody, 1)[0] * (C * sigma[1]) ** -2.0
    F = mean(F, H, V)
    w, P, last = metric(F, 3e-5), F * np.exp(p * normal(0, K1)), np.zeros((0, d))
    P /= P.sum(axis=1, keepdims=True)
    for t in range(1, T + 1):
        noise, k = C * sigma[1 + t], len(P)
        R = release(w, C, argmin(misfits(S, P), axis=1), k)
        H, V = H + R.sum(axis=0) / (k * noise**2), V + w / (k * noise**2)  # all cells are one more sum over all clients
        F = mean(F, H, V)
        pooled = t == T and len(last) == k
        R, draws = (R + last, np.full(k, 2.0)) if pooled else (R, np.ones(k))
        alive = at_least(R.sum(axis=1), 6 * noise * np.sqrt(draws))
        if t == T1:
            R, draws, alive = ward(R[alive], project(R[alive] / R[alive].sum(axis=1)[:, None]), draws[alive], w, K)
        N, last, P = R.sum(axis=1), R, np.tile(F, (len(R), 1))
        for j in np.flatnonzero(alive & (len(P) > 1)):  # a single cell has F
            D, s = R[j] / N[j] - F, noise * np.sqrt(draws[j]) / N[j]
            if (T1 or len(P) > 2) and t < T:  # James-Stein towards F; a tenth is left for assignments
                P[j] = project(F + max(0.1, 1 - d * s**2 / max(np.sum(D**2 / w), 1e-300)) * D)
            else:
                P[j] = denoised(R[j] / N[j], s * np.sqrt(w), F)
        if t <= T - 2 and not alive.all():
            fresh = F * np.exp(p * normal(t, len(P)))
            P[~alive] = (fresh / fresh.sum(axis=1, keepdims=True))[~alive]
    return P, F


def ward(R: np.ndarray, P: np.ndarray, draws: np.ndarray, w: np.ndarray, K: int) -> tuple[np.ndarray, ...]:
    """R, draws and alive of K cells: of the live cells always the two that are cheapest to merge become one."""
    while len(R) > K:
        N, pairs = R.sum(axis=1), [(i, j) for j in range(len(R)) for i in range(j)]
        costs = [N[i] * N[j] / (N[i] + N[j]) * np.sum((P[i] - P[j]) ** 2 / w) for i, j in pairs]
        i, j = pairs[argmin(np.array(costs))]
        P[i], R[i], draws[i] = (N[i] * P[i] + N[j] * P[j]) / (N[i] + N[j]), R[i] + R[j], draws[i] + draws[j]
        P, R, draws = np.delete(P, j, axis=0), np.delete(R, j, axis=0), np.delete(draws, j)
    missing, alive = K - len(R), np.arange(K) < len(R)
    return np.vstack([R, np.zeros((missing, len(w)))]), np.append(draws, np.ones(missing)), alive
