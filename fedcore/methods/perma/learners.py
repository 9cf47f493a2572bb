"""Local learners: one step that improves the dictionaries of a stack of clients.

    orthogonal   polar factor of X'Y: dictionaries with orthonormal atoms (Algorithm 4)
    gradient     one gradient step on |Y - X D|^2 (Algorithm 5)

Shapes: samples (c, m, d) in tiles; atoms (c, S, r, d), S dictionaries of each of c clients that share the same pass.
Everything that a pass yields is a sum over samples.

Sparse codes of samples: thresholds and top-k of correlations, orthogonal matching pursuit.

Shapes as in `fedcore.methods.dictionary_learning.operators`: samples (..., n, d), atoms (..., r, d), codes (..., n, r).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcore.methods.dictionary_learning.operators import hard_threshold, normalise, polar, top_k
from fedcore.methods.dictionary_learning.sparse_codes import omp
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


Tiles = Callable[[], Iterable[np.ndarray]]
PIECE_NUMBERS = 2**16  # float64 numbers in the residuals of the samples that are worked on at a time
GRADIENT_STEP = 0.5  # of 1 / the largest curvature; below 1 is stable


@dataclass(slots=True)
class Sums:
    """What one pass over the samples yields, for each of (c, S) dictionaries.

    xy:   (c, S, r, d) codes times samples
    xx:   (c, S, r, r) codes times codes; (c, S, 0, 0) if they were not asked for
    used: (c, S, r) number of nonzero codes of each atom
    loss: (c, S) sum of squared residuals
    """

    xy: np.ndarray
    xx: np.ndarray
    used: np.ndarray
    loss: np.ndarray

    @property
    def nonzero(self) -> np.ndarray:
        """(c, S) number of nonzero codes."""
        return self.used.sum(2)


def pieces(tiles: Tiles, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """(c, 1, m, d) parts of the tiles, so short that what is made of them, (c, S, m, r) or (c, S, m, d), stays small.

    shape: (c, S, r, d) of the dictionaries.
    """
    c, s, r, d = shape
    length = max(PIECE_NUMBERS // max(c * s * max(r, d), 1), 1)
    for tile in tiles():
        for low in range(0, tile.shape[1], length):
            yield tile[:, None, low : low + length]


def pass_over(tiles: Tiles, atoms: np.ndarray, coder: Coder, *, second: bool = False, loss: bool = True) -> Sums:
    """One pass over the samples. atoms: (c, S, r, d); second: whether to sum codes times codes; loss: whether to sum
    squared residuals."""
    c, s, r, d = atoms.shape
    xx = np.zeros((c, s, r, r) if second else (c, s, 0, 0))
    sums = Sums(np.zeros((c, s, r, d)), xx, np.zeros((c, s, r)), np.zeros((c, s)))
    for y in pieces(tiles, atoms.shape):
        x = coder(y, atoms)
        sums.xy += x.swapaxes(2, 3) @ y
        if second:
            sums.xx += x.swapaxes(2, 3) @ x
        sums.used += np.count_nonzero(x, axis=2)
        if loss:
            residual = x @ atoms
            residual -= y
            sums.loss += np.einsum("csmd,csmd->cs", residual, residual)
    return sums


def step(learner: str, tiles: Tiles, atoms: np.ndarray, coder: Coder, loss: bool = True) -> tuple[np.ndarray, Sums]:
    """(atoms after one step of the learner, sums of the pass before it). atoms: (c, r, d)."""
    moved, sums = step_all(learner, tiles, atoms[:, None], coder, loss)
    return moved[:, 0], sums


def step_all(learner: str, tiles: Tiles, atoms: np.ndarray, coder: Coder, loss: bool = True) -> tuple[np.ndarray, Sums]:
    """As `step`, for S dictionaries of each client in the same pass. atoms: (c, S, r, d)."""
    sums = pass_over(tiles, atoms, coder, second=learner != "orthogonal", loss=loss)
    if learner == "orthogonal":
        return polar(sums.xy, atoms), sums
    c, s, r, d = atoms.shape
    flat, xx, xy = atoms.reshape(c * s, r, d), sums.xx.reshape(c * s, r, r), sums.xy.reshape(c * s, r, d)
    moved = gradient_step(flat, xx, xy)
    return moved.reshape(atoms.shape), sums


def gradient_step(atoms: np.ndarray, xx: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Algorithm 5's D - 2 eta (X'X D - X'Y), atoms then scaled to norm 1. atoms, xy: (c, r, d); xx: (c, r, r).

    eta is 0.5 / the largest eigenvalue of X'X, for which the step is stable. Unused atoms stay.
    """
    largest = np.linalg.eigvalsh(xx)[:, -1]
    eta = GRADIENT_STEP / np.where(largest > 0, largest, 1.0)
    moved, norms = normalise(atoms - 2.0 * eta[:, None, None] * (xx @ atoms - xy))
    return np.where(norms[..., None] > 0, moved, atoms)


def refine(learner: str, tiles: Tiles, common: np.ndarray, local: np.ndarray, coder: Coder, steps: int) -> np.ndarray:
    """Local atoms after some steps on what the global ones leave (Algorithm 6). common: (rg, d), local: (c, l, d).

    The residual Y - X_g G, with X_g coded from G alone, is formed tile by tile and never kept.
    """

    def residual() -> Iterator[np.ndarray]:
        for tile in tiles():
            yield tile - coder(tile, common) @ common

    for _ in range(steps):
        local = step(learner, residual, local, coder, loss=False)[0]
    return local
