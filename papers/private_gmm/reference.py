"""The recursive partition without noise, on one page: Algorithms 3 (RPGMP) and 4 (PGME) of Kamath, Sheffet, Singhal,
Ullman 2019, arXiv:1909.03951, with exact counts and sums.

Each private step is replaced by what it is the noised version of, so that Gamma = 0 and no privacy is left:

    PGLoc           the smallest ball about a row that holds n' rows
    PTerrificBall   a ball about a row that is c-terrific of size t (Definition 5.2)
    PPCA            the leading eigenvectors of the second moment about the ball's centre
    PGE, PCount     mean, covariance and number of rows

X: (n, d) float64. A cell C is an array of row numbers. Every ball is tried about every row: for up to some 1000 rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BOUNDING = 12.0  # r = 12 r'', Algorithm 3, step 2


@dataclass(frozen=True)
class PublicInputs:
    """n rows, weights of at least w_min, standard deviations from sigma_min to sigma_max, means within R of 0."""

    n: int
    k: int
    w_min: float
    sigma_min: float
    sigma_max: float
    R: float
    c: float = 5.0

    @property
    def t(self) -> int:
        return int(np.ceil(self.n * self.w_min / 2))


def gq(X: np.ndarray, p: np.ndarray, r: float, t: int, c: float) -> int:
    """GQ_X(p, r), equation (4): t exactly if B(p, r) is c-terrific of size t."""
    distance = np.linalg.norm(X - p, axis=1)
    inside, outside = (distance <= r).sum(), (distance > c * r).sum()
    return int(min(inside, t, outside, max(0, t - (len(X) - inside - outside))))


def terrific_ball(X: np.ndarray, public: PublicInputs, r_max: float, largest: bool) -> tuple[np.ndarray, float] | None:
    """PTerrificBall: (p, r) for the first r of the grid of PTerrificRadius (Algorithm 2) with Q(r) = t, or None."""
    t, radii = public.t, [public.sigma_min]
    while radii[-1] < r_max:
        radii.append(2 * radii[-1])
    for r in radii[::-1] if largest else radii:
        scores = np.array([gq(X, x, r, t, public.c) for x in X])
        if np.sort(scores)[::-1][:t].sum() / t == t:  # Q(r), equation (5)
            return X[np.argmax(scores)], r
    return None


def rpgmp(X: np.ndarray, C: np.ndarray, k: int, public: PublicInputs) -> list[np.ndarray]:
    """Algorithm 3: the cells of the partition of the rows C into at most k."""
    if k == 1:  # step 1
        return [C]
    # Step 2: bound the rows by a ball.
    enough = max(1, int(len(C) - public.n * public.w_min / 20))
    distances = np.sort(np.linalg.norm(X[C][:, None] - X[C][None], axis=2), axis=1)[:, enough - 1]
    p, r = X[C[np.argmin(distances)]], BOUNDING * max(distances.min(), public.sigma_min)
    C = C[np.linalg.norm(X[C] - p, axis=1) <= r]
    # Step 3: the smallest terrific ball of the rows.
    Y = X[C]
    ball = terrific_ball(Y, public, 2 * r, largest=False)
    if ball is None:
        # Steps 5 and 6: project about p, and take the largest terrific ball of the projected rows.
        Z = X[C] - p
        Y = Z @ np.linalg.eigh(Z.T @ Z)[1][:, ::-1][:, :k]
        ball = terrific_ball(Y, public, 2 * r, largest=True)
    if ball is None:  # step 8: one Gaussian
        return [C]
    # Steps 4 and 7: split, and recurse on each part. What is between the two balls is dropped.
    distance = np.linalg.norm(Y - ball[0], axis=1)
    inside, outside = C[distance <= ball[1]], C[distance > public.c * ball[1]]
    return rpgmp(X, inside, k - 1, public) + rpgmp(X, outside, k - 1, public)


def pgme(X: np.ndarray, public: PublicInputs) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Algorithm 4: (cells, weights (m,), means (m, d), covariances (m, d, d)), m at most k."""
    bound = public.R + public.sigma_max * np.sqrt(2 * X.shape[1] + 4 * np.log(public.n))  # step 1
    X = X * np.minimum(1.0, bound / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300))
    cells = rpgmp(X, np.arange(len(X)), public.k, public)  # step 2
    means = np.array([X[C].mean(axis=0) for C in cells])  # step 3
    covariances = np.array([(X[C] - mu).T @ (X[C] - mu) / len(C) for C, mu in zip(cells, means, strict=True)])
    sizes = np.array([len(C) for C in cells])
    return cells, sizes / sizes.sum(), means, covariances  # steps 4 and 5
