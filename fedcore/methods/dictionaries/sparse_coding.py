"""Sparse codes of samples: thresholds and top-k of correlations, orthogonal matching pursuit, lasso.

Shapes as in `fedcore.methods.dictionaries.operators`: samples (..., n, d), atoms (..., r, d), codes (..., n, r).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.operators import hard_threshold, top_k

Code = Literal["threshold", "top_k", "omp", "lasso"]
OMP_SAMPLES = 512  # worked on at a time; more fall out of the processor's cache
EQUAL = 1e-11  # correlations that differ by less of the largest are equal, and the first atom is chosen
INDEPENDENT = 1e-10  # squared distance of an atom from the span of those chosen, below which it is in it


@dataclass(frozen=True, slots=True)
class Coder:
    """How samples are coded. threshold: z of hard thresholds; sparsity: k of top-k and OMP; alpha: l1 weight."""

    code: Code
    threshold: float = 0.15
    sparsity: int = 20
    alpha: float = 1.0

    def __call__(self, samples: np.ndarray, atoms: np.ndarray) -> np.ndarray:
        """Codes (..., n, r); the leading axes of samples and atoms broadcast."""
        if self.code in ("threshold", "top_k"):
            found = samples @ np.swapaxes(atoms, -1, -2)
            return hard_threshold(found, self.threshold) if self.code == "threshold" else top_k(found, self.sparsity)
        lead = np.broadcast_shapes(samples.shape[:-2], atoms.shape[:-2])
        y = np.broadcast_to(samples, (*lead, *samples.shape[-2:]))
        a = np.broadcast_to(atoms, (*lead, *atoms.shape[-2:]))
        out = np.empty((*lead, samples.shape[-2], atoms.shape[-2]))
        for at in np.ndindex(*lead):
            out[at] = omp(y[at], a[at], self.sparsity) if self.code == "omp" else lasso(y[at], a[at], self.alpha)
        return out


def coder_of(config: DictionariesConfig) -> Coder:
    """The coder that the settings ask for."""
    return Coder(config.code, config.threshold, config.sparsity, config.alpha)


def omp(samples: np.ndarray, atoms: np.ndarray, k: int) -> np.ndarray:
    """Orthogonal matching pursuit with at most k atoms a sample. samples: (n, d), atoms: (r, d). Returns (n, r).

    All samples advance together. Instead of factors of every sample's Gram matrix, the inner products v of all atoms
    with the orthonormalised chosen ones are kept (Gram-Schmidt in terms of the Gram matrix), so that one step is a few
    products along the samples; Rubinstein, Zibulevsky, Elad (2008) describe the batch idea. A sample ends early when
    its residual is orthogonal to all atoms or the next atom lies in the span of those chosen. Atoms need not have norm
    1; the choice is by the correlation with the atom divided by its norm.
    """
    atoms = np.asarray(atoms, np.float64)
    k = min(k, *atoms.shape) if len(atoms) else 0
    codes = np.zeros((len(samples), len(atoms)))
    if k <= 0:
        return codes
    norms = np.linalg.norm(atoms, axis=1)
    alive = norms > 0
    inverse = np.where(alive, 1.0 / np.where(alive, norms, 1.0), 0.0)
    unit = atoms * inverse[:, None]
    gram = unit @ unit.T
    for low in range(0, len(samples), OMP_SAMPLES):
        part = slice(low, low + OMP_SAMPLES)
        codes[part] = _omp(np.asarray(samples[part], np.float64), unit, gram, alive, k)
    return codes * inverse


def _omp(y: np.ndarray, unit: np.ndarray, gram: np.ndarray, alive: np.ndarray, k: int) -> np.ndarray:
    """Codes (m, r) of one lot of samples with unit atoms."""
    m, r = len(y), len(unit)
    at = np.arange(m)
    left = y @ unit.T  # of every atom with the residual
    free = np.broadcast_to(alive, (m, r)).copy()
    going = np.ones(m, bool)
    floor = 1e-14 * np.sqrt((y**2).sum(1))
    v = np.zeros((m, k, r))  # v[:, s, j]: inner product of atom j with the s-th orthonormal direction
    chosen = np.zeros((m, k), np.int64)
    directions = np.zeros((m, k))  # coefficients of the samples in these directions
    triangle = np.tile(np.eye(k), (m, 1, 1))
    for t in range(k):
        size = np.abs(left) * free
        j = (size >= (1.0 - EQUAL) * size.max(1, keepdims=True)).argmax(1)
        before = v[at, :t, j]
        square = 1.0 - (before**2).sum(1)
        going &= (np.abs(left[at, j]) > floor) & (square > INDEPENDENT)
        if not going.any():
            break
        length = np.sqrt(np.where(going, square, 1.0))
        new = (gram[j] - np.matmul(before[:, None, :], v[:, :t])[:, 0]) / length[:, None]
        new[~going] = 0.0
        step = np.where(going, left[at, j] / length, 0.0)
        left -= step[:, None] * new
        v[:, t], chosen[:, t], directions[:, t] = new, j, step
        triangle[:, t, :t] = np.where(going[:, None], before, 0.0)
        triangle[:, t, t] = length
        free[at, j] = False
    found = np.zeros((m, k))
    for t in range(k - 1, -1, -1):
        rest = directions[:, t] - (triangle[:, t + 1 :, t] * found[:, t + 1 :]).sum(1)
        found[:, t] = rest / triangle[:, t, t]
    codes = np.zeros((m, r))
    np.add.at(codes, (at[:, None], chosen), np.where(directions != 0, found, 0.0))
    return codes


def lasso(samples: np.ndarray, atoms: np.ndarray, alpha: float) -> np.ndarray:
    """Minimisers of |y - x atoms|^2 / 2 + alpha |x|_1, by coordinate descent of scikit-learn. Returns (n, r).

    Raises ConfigError if scikit-learn is not installed.
    """
    try:
        from sklearn.decomposition import sparse_encode
    except ImportError:
        raise ConfigError('code = "lasso" needs scikit-learn.', "Install it, or choose another code.") from None
    if not len(samples):
        return np.zeros((0, len(atoms)))
    return sparse_encode(np.asarray(samples, np.float64), atoms, algorithm="lasso_cd", alpha=alpha, max_iter=10_000)
