"""What PerMA is compared with: other federated learners, and what needs no federation or no learning.

`consensus_admm` and `fedavg_k_svd` have one dictionary for all and no local atoms. They stand in for the consensus and
the averaging method of the paper's Table 1, whose texts were not at hand, and reproduce neither.
`personalised_pca`: Shi, Al Kontar, "Personalized PCA: Decoupling Shared and Unique Features" (2024), by the
specification that was checked against its authors' scripts: orthonormal global components and, off them, local ones of
each client, without sparsity. A client's objective is the variance that its components leave.
`principal_component_pursuit`: Candes, Li, Ma, Wright 2011, "Robust principal component analysis?", Algorithm 1, by
alternating directions, with lambda = 1 / sqrt(max(n, d)), mu = n d / (4 |M|_1) and the stopping rule of Section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionary_learning.operators import normalise, polar, random_atoms
from fedcore.methods.dictionary_learning.sparse_codes import omp
from fedcore.methods.perma.learners import Coder
from fedcore.randomness import stream


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


ENOUGH = 1e-5  # Frobenius norm of M - L - S, of that of M; the paper has 1e-7


def principal_component_pursuit(rows: np.ndarray, steps: int = 200, enough: float = ENOUGH) -> np.ndarray:
    """(n, d) the matrix L of low rank of M = rows (n, d). Singular values by the n x n matrix of products: n << d."""
    weight = 1.0 / np.sqrt(max(rows.shape))
    mu = rows.size / (4.0 * float(np.abs(rows).sum()))
    sparse, dual = np.zeros_like(rows), np.zeros_like(rows)
    low, norm = sparse, float(np.linalg.norm(rows))
    for _ in range(steps):
        low = _shrunk_values(rows - sparse + dual / mu, 1.0 / mu)
        rest = rows - low + dual / mu
        sparse = np.sign(rest) * np.maximum(np.abs(rest) - weight / mu, 0.0)
        gap = rows - low - sparse
        dual += mu * gap
        if float(np.linalg.norm(gap)) <= enough * norm:
            break
    return low


def _shrunk_values(matrix: np.ndarray, by: float) -> np.ndarray:
    """The matrix with its singular values made smaller by so much, none below 0."""
    energy, left = np.linalg.eigh(matrix @ matrix.T)
    values = np.sqrt(np.maximum(energy, 0.0))
    share = np.where(values > by, 1.0 - by / np.maximum(values, np.finfo(float).tiny), 0.0)
    return (left * share) @ (left.T @ matrix)


def zero_image(samples: np.ndarray) -> np.ndarray:
    """(n, d) zeros, as estimates of samples (n, d)."""
    return np.zeros_like(samples, dtype=np.float64)


def mean_image(samples: np.ndarray, training: Sequence[np.ndarray]) -> np.ndarray:
    """(n, d) the mean of all training samples, N arrays (n_i, d), as estimate of everything."""
    total = sum(y.sum(axis=0) for y in training) / sum(len(y) for y in training)
    return np.broadcast_to(total, samples.shape).copy()


def singular_vectors(training: Sequence[np.ndarray], count: int) -> np.ndarray:
    """(count, d) leading right singular vectors of all samples, not centred; by the d x d matrix of their products.

    The first k of them are the best k atoms for everybody; "best k" chooses k of them for each sample.
    """
    moments = sum(y.T @ y for y in training)
    return np.linalg.eigh(moments)[1][:, ::-1][:, :count].T.copy()


def mini_batch_dictionary(
    samples: np.ndarray,
    atoms: int,
    seed: int,
    alpha: float = 1.0,
    sparsity: int = 20,
    passes: int = 20,
    batch: int = 256,
) -> np.ndarray:
    """(atoms, d) unit atoms by scikit-learn's MiniBatchDictionaryLearning (online learning of Mairal et al. 2010).

    alpha: weight of the l1 penalty on codes while learning, which depends on the scale of the data; sparsity: atoms
    of a code when it transforms; passes: over the samples. scikit-learn itself
    replaces unused atoms by samples.
    Raises ConfigError if scikit-learn is not installed.
    """
    try:
        from sklearn.decomposition import MiniBatchDictionaryLearning
    except ImportError:
        raise ConfigError("this baseline needs scikit-learn.", "Install it, or leave this line out.") from None
    learner = MiniBatchDictionaryLearning(
        n_components=atoms,
        alpha=alpha,
        max_iter=passes,
        batch_size=batch,
        fit_algorithm="lars",
        random_state=seed,
        transform_algorithm="omp",
        transform_n_nonzero_coefs=min(sparsity, atoms),
        tol=0.0,
        max_no_improvement=None,
    )
    return normalise(learner.fit(samples).components_)[0]


def frame_mean(frames: np.ndarray) -> np.ndarray:
    """(H, W, C) mean of frames (F, H, W, C)."""
    return frames.mean(axis=0)


def frame_median(frames: np.ndarray) -> np.ndarray:
    """(H, W, C) median of frames (F, H, W, C), pixel by pixel."""
    return np.median(frames, axis=0)
