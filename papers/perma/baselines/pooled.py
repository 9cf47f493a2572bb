"""What needs no federation, or no learning: the floor and the ceiling that a claim stands between.

Zero and mean image, singular vectors of all samples, scikit-learn's mini-batch dictionary learning on all samples or on
one client's; for video the mean and the median of the frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionary_learning.operators import normalise


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
