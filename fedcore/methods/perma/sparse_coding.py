"""Sparse codes of samples: thresholds and top-k of correlations, orthogonal matching pursuit.

Shapes as in `fedcore.methods.dictionary_learning.operators`: samples (..., n, d), atoms (..., r, d), codes (..., n, r).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcore.methods.dictionary_learning.matching_pursuit import omp
from fedcore.methods.dictionary_learning.operators import hard_threshold, top_k
from fedcore.methods.perma.config import PermaConfig

Code = Literal["threshold", "top_k", "omp"]


@dataclass(frozen=True, slots=True)
class Coder:
    """How samples are coded. threshold: z of hard thresholds; sparsity: k of top-k and OMP."""

    code: Code
    threshold: float = 0.15
    sparsity: int = 20

    def __call__(self, samples: np.ndarray, atoms: np.ndarray) -> np.ndarray:
        """Codes (..., n, r); the leading axes of samples and atoms broadcast."""
        if self.code in ("threshold", "top_k"):
            found = samples @ np.swapaxes(atoms, -1, -2)
            return hard_threshold(found, self.threshold) if self.code == "threshold" else top_k(found, self.sparsity)
        return omp(samples, atoms, self.sparsity)


def coder_of(config: PermaConfig) -> Coder:
    """The coder that the settings ask for."""
    return Coder(config.code, config.threshold, config.sparsity)
