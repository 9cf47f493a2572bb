"""PerMA in plain NumPy, to be read beside the paper; a test holds the method with `profile = "paper"` against it.

Source: Liang, Shi, Al Kontar, Fattahi, "Personalized Dictionary Learning for Heterogeneous Datasets" (2023). In its
notation, so samples and atoms are columns here: Y_i (d, n_i), D_i = [D^g, D_i^l] (d, r).

Where the paper leaves a choice: D_i^(0) is learnt by Algorithm 4 with shrinking thresholds (Appendix A.1), from the
identity, or from singular vectors if r < d. The paper's loop over t = 0 .. T makes T + 1 updates; `rounds` is their
number. If Algorithm 3 chooses an atom twice, the paper's local dictionary grows; here that is an error.
"""

from __future__ import annotations

import numpy as np


def perma(Y: list[np.ndarray], r: int, r_g: int, rounds: int, zeta: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """Algorithm 1: (D^g (d, r_g), D_i^l (d, r - r_g) of every client)."""
    D_0 = [initial_dictionary(Y_i, r, zeta) for Y_i in Y]
    D_g, D_l = global_matching(D_0, r_g)
    for _ in range(rounds):
        updated = [local_update(Y_i, D_g, D_l_i, zeta) for Y_i, D_l_i in zip(Y, D_l, strict=True)]
        D_g = np.mean([D_g_i for D_g_i, _ in updated], axis=0)
        D_l = [D_l_i for _, D_l_i in updated]
    return D_g, D_l


def global_matching(D: list[np.ndarray], r_g: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Algorithm 2: r_g shortest paths through the layers of atoms, one after the other; nodes of a path are removed."""
    N = len(D)
    alive = [list(range(D_i.shape[1])) for D_i in D]
    columns = []
    for _ in range(r_g):
        # label[i][k]: length of the shortest path from s to atom k of layer i, and the atom before it
        label: list[dict[int, tuple[float, int]]] = [{k: (0.0, -1) for k in alive[0]}]
        for i in range(1, N):
            label.append(
                {
                    k: min((label[i - 1][m][0] + d_2(D[i - 1][:, m], D[i][:, k]), m) for m in alive[i - 1])
                    for k in alive[i]
                }
            )
        alpha = [min((label[-1][k][0], k) for k in alive[-1])[1]]
        for i in range(N - 1, 0, -1):
            alpha.insert(0, label[i][alpha[0]][1])
        first = D[0][:, alpha[0]]
        columns.append(sum(sign(D_i[:, a] @ first) * D_i[:, a] for D_i, a in zip(D, alpha, strict=True)) / N)
        for atoms, a in zip(alive, alpha, strict=True):
            atoms.remove(a)
    D_l = [D_i[:, atoms] for D_i, atoms in zip(D, alive, strict=True)]
    return np.stack(columns, axis=1), D_l


def local_update(Y: np.ndarray, D_g: np.ndarray, D_l: np.ndarray, zeta: float) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 3: one step of Algorithm 4, then the atoms nearest to D^g. Raises ValueError if one is chosen twice."""
    D = algorithm_4(Y, np.hstack([D_g, D_l]), zeta)
    S, P = [], []
    for g in D_g.T:
        k = int(np.argmin([d_2(g, column) for column in D.T]))
        S.append(k)
        P.append(sign(g @ D[:, k]))
    if len(set(S)) < len(S):
        raise ValueError("an atom was chosen twice")
    return D[:, S] @ np.diag(P), np.delete(D, S, axis=1)


def algorithm_4(Y: np.ndarray, D: np.ndarray, zeta: float) -> np.ndarray:
    """One step of alternating minimisation for orthogonal dictionaries (Appendix A.1)."""
    X = D.T @ Y
    X[np.abs(X) < zeta] = 0.0  # HT_zeta
    U, _, V_T = np.linalg.svd(Y @ X.T, full_matrices=False)
    return U @ V_T  # Polar


def initial_dictionary(Y: np.ndarray, r: int, zeta: float) -> np.ndarray:
    """D_i^(0): Algorithm 4 with thresholds .6 * .99, .6 * .99^2 ... while above zeta, then 20 steps at zeta."""
    D = np.eye(r) if r == len(Y) else np.linalg.svd(Y, full_matrices=False)[0][:, :r]
    threshold = 0.6 * 0.99
    while threshold > zeta:
        D = algorithm_4(Y, D, threshold)
        threshold *= 0.99
    for _ in range(20):
        D = algorithm_4(Y, D, zeta)
    return D


def d_2(a: np.ndarray, b: np.ndarray) -> float:
    """Equation 4: the distance of two atoms up to their signs."""
    return min(float(np.linalg.norm(a - b)), float(np.linalg.norm(a + b)))


def sign(x: float) -> float:
    return -1.0 if x < 0 else 1.0
