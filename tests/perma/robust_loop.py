"""The robust rounds as loops over clients in memory, which the rounds of the method are held against."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionary_learning.operators import polar
from fedcore.methods.perma.learners import Coder, step
from fedcore.methods.perma.matching import aggregate
from fedcore.methods.perma.robust import TO_KEEP, RobustCoder


def client_atoms(samples: np.ndarray, common: np.ndarray, coder: RobustCoder) -> np.ndarray:
    """(rg, d) global atoms as a client would have them, by one step from the common ones. samples: (n, d)."""
    codes, cleaned = coder(samples, common)
    return polar(codes.T @ cleaned, common)


def learn_background(
    clients: Sequence[np.ndarray], start: np.ndarray, rounds: int, coder: RobustCoder = RobustCoder(), how: str = "mean"
) -> np.ndarray:
    """(rg, d) orthonormal global atoms after so many rounds over clients' samples, N arrays (n_i, d), from a start."""
    common = polar(start)
    for _ in range(rounds):
        versions = np.stack([client_atoms(y, common, coder) for y in clients])
        common = aggregate(versions, how, "polar", common).atoms
    return common


@dataclass(frozen=True)
class Parts:
    """Of one client. background: (n, d) x G; foreground: (n, d) codes of the rest times local atoms (l, d)."""

    background: np.ndarray
    foreground: np.ndarray
    local: np.ndarray


def separate(
    samples: np.ndarray, common: np.ndarray, local: int, sparsity: int, steps: int = 10, coder: RobustCoder = TO_KEEP
) -> Parts:
    """Background by robust codes, then local atoms learnt from what is left. samples: (n, d), common: (rg, d).

    local: number of local atoms, at most n and d - rg; sparsity: of them in a sample's code; steps: of the learner.
    """
    background = coder(samples, common)[0] @ common
    rest = samples - background
    atoms, top = np.linalg.svd(rest, full_matrices=False)[2][:local][None], Coder("top_k", sparsity=sparsity)
    for _ in range(steps):
        atoms = step("orthogonal", lambda: iter([rest[None]]), atoms, top, loss=False)[0]
    return Parts(background, top(rest, atoms[0]) @ atoms[0], atoms[0])
