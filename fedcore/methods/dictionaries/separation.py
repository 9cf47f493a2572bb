"""Background and foreground of a fixed camera: global atoms hold the background, local atoms what is left.

As printed, PerMA's global atoms are fitted to whole frames by least squares, so that objects leak into them, and into
the codes: background "ghosts". Here the global part is robust, after Huber's modified residuals:

    codes of a sample y     least Huber loss of y - x G, by x <- x + psi(y - x G) G'
    cleaned samples         x G + psi(y - x G): residuals beyond a few spreads are cut to that size
    client's global atoms   the orthogonal learner's step (Algorithm 4) on the cleaned samples; polar factor of X'Y
    server                  the centre of the clients' atoms, as ever
    local atoms             the learner's steps on the rest y - x G, which holds the objects (Algorithm 6)

psi(r) = r cut to [-c s, c s]; s = 1.4826 median |r| of the client. In the rounds only global atoms are sent; the
matching that they start from needs whole dictionaries. Nothing ties a sample of one frame to that of another: samples
may come in any order, and a frame may be brighter than the others.

This is the arithmetic, on arrays. The method does it in rounds with loss = "huber"
(`fedcore.methods.dictionaries.robust`); `learn_background` is the same loop in memory, against which tests hold it.

Sources: Liang, Shi, Al Kontar, Fattahi 2023, Algorithms 4 and 6; Huber, "Robust Statistics" (1981), Chapter 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionaries.aggregation import centre
from fedcore.methods.dictionaries.learners import step
from fedcore.methods.dictionaries.operators import polar
from fedcore.methods.dictionaries.sparse_coding import Coder

TO_SPREAD = 1.4826  # of a normal distribution, by its median absolute value
SMALLEST = 1e-9  # spread of residuals, below which they are rounding


@dataclass(frozen=True, slots=True)
class RobustCoder:
    """Codes of least Huber loss. cut: c, spreads at which a residual counts as an outlier; looks: how often the spread
    is measured; steps: of the iteration between two looks."""

    cut: float = 1.0
    looks: int = 3
    steps: int = 5

    def __call__(self, samples: np.ndarray, atoms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(codes (n, r), cleaned samples (n, d)) of samples (n, d) with orthonormal atoms (r, d)."""
        codes = samples @ atoms.T
        if not len(samples):
            return codes, samples
        rest = samples - codes @ atoms
        bound = 0.0
        for _ in range(self.looks):
            bound = self.cut * max(TO_SPREAD * float(np.median(np.abs(rest))), SMALLEST)
            for _ in range(self.steps):
                codes += np.clip(rest, -bound, bound) @ atoms.T
                rest = samples - codes @ atoms
        return codes, codes @ atoms + np.clip(rest, -bound, bound)


def huber(rest: np.ndarray, cut: np.ndarray) -> np.ndarray:
    """Huber losses of residuals and what the cut leaves of them: r^2 up to the bound b, 2 b |r| - b^2 beyond."""
    return np.abs(cut) * (2.0 * np.abs(rest) - np.abs(cut))


LAST = RobustCoder(looks=6, steps=10)  # for codes that are kept, not only learned from


def client_atoms(samples: np.ndarray, common: np.ndarray, coder: RobustCoder) -> np.ndarray:
    """(rg, d) global atoms as a client would have them, by one step from the common ones. samples: (n, d)."""
    codes, cleaned = coder(samples, common)
    return polar(codes.T @ cleaned, common)


def learn_background(
    clients: Sequence[np.ndarray],
    start: np.ndarray,
    rounds: int,
    coder: RobustCoder = RobustCoder(),
    aggregate: str = "mean",
) -> np.ndarray:
    """(rg, d) orthonormal global atoms after so many rounds over clients' samples, N arrays (n_i, d), from a start.

    aggregate: "mean" or "median", coordinate by coordinate.
    """
    common = polar(start)
    for _ in range(rounds):
        answers = np.stack([client_atoms(y, common, coder) for y in clients])
        common = centre(answers, aggregate, "polar", common).atoms
    return common


@dataclass(frozen=True, slots=True)
class Parts:
    """Of one client. background: (n, d) x G; foreground: (n, d) codes of the rest times local atoms (l, d)."""

    background: np.ndarray
    foreground: np.ndarray
    local: np.ndarray


def separate(
    samples: np.ndarray, common: np.ndarray, local: int, sparsity: int, steps: int = 10, coder: RobustCoder = LAST
) -> Parts:
    """Background by robust codes, then local atoms learned from what is left. samples: (n, d), common: (rg, d).

    local: number of local atoms, at most n and d - rg; sparsity: of them in a sample's code; steps: of the learner.
    """
    background = coder(samples, common)[0] @ common
    rest = samples - background
    vectors = np.linalg.svd(rest, full_matrices=False)[2][:local]
    atoms, top = vectors[None], Coder("top_k", sparsity=sparsity)
    for _ in range(steps):
        atoms = step("orthogonal", lambda: iter([rest[None]]), atoms, top, loss=False)[0]
    return Parts(background, local_parts(rest, atoms[0], top), atoms[0])


def local_parts(rest: np.ndarray, local: np.ndarray, coder: Coder) -> np.ndarray:
    """(n, d) what local atoms (l, d) make of the rest (n, d) of samples."""
    return coder(rest, local) @ local if len(local) else np.zeros_like(rest)
