"""Consensus ADMM dictionary learning, a baseline: one dictionary for all, no local atoms.

A stand-in for the consensus method in the paper's Table 1, whose text was not at hand; it is not a reproduction of it.
Clients code sparsely and solve a ridge problem towards the common dictionary; the server averages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcore.methods.dictionary_learning.operators import normalise
from fedcore.methods.perma.sparse_coding import Coder


def consensus_admm(
    samples: Sequence[np.ndarray], start: np.ndarray, coder: Coder, rounds: int, rho: float = 1.0
) -> np.ndarray:
    """(r, d) common dictionary. samples: N arrays (n_i, d); start: (r, d) unit atoms, sent to everybody.

    Client i: X = code(Y; D), D_i = (X'X + rho I)^-1 (X'Y + rho (D - U_i)); server: D = mean(D_i + U_i), atoms scaled to
    norm 1; U_i += D_i - D. rho: of the penalty, in units of squared codes.
    """
    common = np.array(start, np.float64)
    duals = np.zeros((len(samples), *common.shape))
    own = np.empty_like(duals)
    for _ in range(rounds):
        for i, y in enumerate(samples):
            x = coder(y, common)
            ridge = x.T @ x + rho * np.eye(len(common))
            own[i] = np.linalg.solve(ridge, x.T @ y + rho * (common - duals[i]))
        moved, norms = normalise((own + duals).mean(axis=0))
        common = np.where(norms[:, None] > 0, moved, common)
        duals += own - common
    return common
