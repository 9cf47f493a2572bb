"""Personalised PCA, a baseline: orthonormal global components and, off them, local ones of each client.

Source: Shi, Al Kontar, "Personalized PCA: Decoupling Shared and Unique Features" (2024), by the specification that was
checked against its authors' scripts. No sparsity: a client's objective is the variance that its components leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedcore.methods.dictionary_learning.operators import polar, random_atoms
from fedcore.randomness import stream

SHRINK = np.exp(-1.0)  # of the step, after a round that made things worse


class Components(NamedTuple):
    """common: (rg, d); local: (N, l, d), orthonormal and off the common ones; losses: one for each round, mean squared
    norm of what a sample loses, mean over clients."""

    common: np.ndarray
    local: np.ndarray
    losses: tuple[float, ...]


def personalised_pca(
    samples: Sequence[np.ndarray], common: int, local: int, rounds: int, seed: int, step: float | None = None
) -> Components:
    """samples: N arrays (n_i, d), not centred. step: eta; None: 1 / largest eigenvalue of the mean second moment.

    Raises ValueError if common + local > d.
    """
    d = samples[0].shape[1]
    moments = sum(y.T @ y / len(y) for y in samples) / len(samples)
    values, vectors = np.linalg.eigh(moments)
    eta = 1.0 / values[-1] if step is None else step
    shared = vectors[:, ::-1][:, :common].T.copy()
    own = [
        _off(random_atoms(stream(seed, "dictionaries/perpca", client=i), local, d), shared) for i in range(len(samples))
    ]
    losses: list[float] = []
    for _ in range(rounds):
        answers, loss = [], 0.0
        for i, y in enumerate(samples):
            both = np.concatenate([shared, _off(own[i], shared)])
            codes = y @ both.T
            loss += (float((y**2).sum()) - float((codes**2).sum())) / len(y) / len(samples)
            moved = polar(both + (2.0 * eta / len(y)) * (codes.T @ y), both)
            answers.append(moved[:common])
            own[i] = moved[common:]
        losses.append(loss)
        if len(losses) > 1 and loss > losses[-2]:
            eta *= SHRINK
        shared = _orthonormal(np.mean(answers, axis=0))
    return Components(shared, np.stack([_off(v, shared) for v in own]), tuple(losses))


def _off(atoms: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Orthonormal atoms nearest to these, orthogonal to the shared ones."""
    rest = atoms - (atoms @ shared.T) @ shared
    return polar(rest, rest) if len(rest) else rest


def _orthonormal(atoms: np.ndarray) -> np.ndarray:
    q, upper = np.linalg.qr(atoms.T)
    return (q * np.where(np.diagonal(upper) < 0, -1.0, 1.0)).T
