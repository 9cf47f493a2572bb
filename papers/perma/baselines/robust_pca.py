"""Robust PCA of all frames in one place: a matrix of low rank plus a sparse one.

Source: Candes, Li, Ma, Wright 2011, "Robust principal component analysis?", Algorithm 1: principal component pursuit by
alternating directions, with lambda = 1 / sqrt(max(n, d)), mu = n d / (4 |M|_1) and the stopping rule of Section 5.
"""

from __future__ import annotations

import numpy as np

ENOUGH = 1e-5  # Frobenius norm of M - L - S, of that of M; the paper has 1e-7


def principal_component_pursuit(rows: np.ndarray, steps: int = 200, enough: float = ENOUGH) -> np.ndarray:
    """(n, d) the matrix L of low rank of M = rows (n, d). Singular values by the n x n matrix of products: n << d."""
    weight = 1.0 / np.sqrt(max(rows.shape))
    mu = rows.size / (4.0 * float(np.abs(rows).sum()))
    sparse, dual = np.zeros_like(rows), np.zeros_like(rows)
    low, norm = sparse, float(np.linalg.norm(rows))
    for _ in range(steps):
        low = _shrunk_values(rows - sparse + dual / mu, 1.0 / mu)
        rest = rows - low + dual / mu
        sparse = np.sign(rest) * np.maximum(np.abs(rest) - weight / mu, 0.0)
        gap = rows - low - sparse
        dual += mu * gap
        if float(np.linalg.norm(gap)) <= enough * norm:
            break
    return low


def _shrunk_values(matrix: np.ndarray, by: float) -> np.ndarray:
    """The matrix with its singular values made smaller by so much, none below 0."""
    energy, left = np.linalg.eigh(matrix @ matrix.T)
    values = np.sqrt(np.maximum(energy, 0.0))
    share = np.where(values > by, 1.0 - by / np.maximum(values, np.finfo(float).tiny), 0.0)
    return (left * share) @ (left.T @ matrix)
