"""Federated averaging of K-SVD, a baseline: one dictionary for all, no local atoms.

A stand-in for the averaging method in the paper's Table 1, whose text was not at hand; it is not a reproduction of it.
A client's atom update is the approximate one of Rubinstein, Zibulevsky, Elad (2008): one alternation in place of a
singular value decomposition. It keeps the atom's sign, which an average needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcore.methods.dictionary_learning.matching_pursuit import omp
from fedcore.methods.dictionary_learning.operators import normalise


def k_svd_step(samples: np.ndarray, atoms: np.ndarray, k: int) -> np.ndarray:
    """(r, d) atoms after OMP with k atoms and one update of every atom with its codes. Unused atoms stay."""
    codes = omp(samples, atoms, k)
    atoms = np.array(atoms, np.float64)
    rest = samples - codes @ atoms
    for j in range(len(atoms)):
        users = np.flatnonzero(codes[:, j])
        if not len(users):
            continue
        without = rest[users] + np.outer(codes[users, j], atoms[j])
        new = codes[users, j] @ without
        norm = np.linalg.norm(new)
        if norm > 0:
            atoms[j] = new / norm
            codes[users, j] = without @ atoms[j]
        rest[users] = without - np.outer(codes[users, j], atoms[j])
    return atoms


def fedavg_k_svd(samples: Sequence[np.ndarray], start: np.ndarray, k: int, rounds: int, steps: int = 1) -> np.ndarray:
    """(r, d) common dictionary. samples: N arrays (n_i, d); start: (r, d) unit atoms; steps: of K-SVD in each round.

    The server takes the mean weighted by samples, atoms scaled to norm 1.
    """
    common = np.array(start, np.float64)
    weights = np.array([len(y) for y in samples], np.float64)
    weights /= weights.sum()
    for _ in range(rounds):
        total = np.zeros_like(common)
        for weight, y in zip(weights, samples, strict=True):
            own = common
            for _ in range(steps):
                own = k_svd_step(y, own, k)
            total += weight * own
        moved, norms = normalise(total)
        common = np.where(norms[:, None] > 0, moved, common)
    return common
