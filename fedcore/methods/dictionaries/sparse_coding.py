"""Sparse codes of samples: thresholds and top-k of correlations, orthogonal matching pursuit, lasso.

Shapes as in `fedcore.methods.dictionaries.operators`: samples (..., n, d), atoms (..., r, d), codes (..., n, r).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.matching_pursuit import omp, omp_with_errors
from fedcore.methods.dictionaries.operators import hard_threshold, top_k
from fedcore.methods.dictionaries.sizes import sparsity_of

Code = Literal["threshold", "top_k", "omp", "lasso"]


@dataclass(frozen=True, slots=True)
class Coder:
    """How samples are coded. threshold: z of hard thresholds; sparsity: k of top-k and OMP; alpha: l1 weight."""

    code: Code
    threshold: float = 0.15
    sparsity: int = 20
    alpha: float = 1.0

    def __call__(self, samples: np.ndarray, atoms: np.ndarray, sparsity: np.ndarray | None = None) -> np.ndarray:
        """Codes (..., n, r); the leading axes of samples and atoms broadcast. sparsity: of OMP, (..., n) int, of every
        sample in place of the coder's."""
        if self.code in ("threshold", "top_k"):
            found = samples @ np.swapaxes(atoms, -1, -2)
            return hard_threshold(found, self.threshold) if self.code == "threshold" else top_k(found, self.sparsity)
        if self.code == "omp":
            return omp(samples, atoms, self.sparsity if sparsity is None else sparsity)
        lead = np.broadcast_shapes(samples.shape[:-2], atoms.shape[:-2])
        y = np.broadcast_to(samples, (*lead, *samples.shape[-2:]))
        a = np.broadcast_to(atoms, (*lead, *atoms.shape[-2:]))
        out = np.empty((*lead, samples.shape[-2], atoms.shape[-2]))
        for at in np.ndindex(*lead):
            out[at] = lasso(y[at], a[at], self.alpha)
        return out

    def with_errors(
        self, samples: np.ndarray, atoms: np.ndarray, sparsity: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(codes (n, r), squared residuals (n,)) of samples (n, d) with atoms (r, d). sparsity: as above, (n,)."""
        if self.code == "omp":
            return omp_with_errors(samples, atoms, self.sparsity if sparsity is None else sparsity)
        codes = self(samples, atoms)
        rest = samples - codes @ atoms
        return codes, np.einsum("nd,nd->n", rest, rest)


def coder_of(config: DictionariesConfig, features: int) -> Coder:
    """The coder that the settings ask for, of samples of so many features."""
    return Coder(config.code, config.threshold, sparsity_of(config, features), config.alpha)


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
