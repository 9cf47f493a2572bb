"""Fitted estimators of scikit-learn, made of the parameters of a trained run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcore.errors import ConfigError
from fedcore.rounds.fitted import CovarianceType, Fitted, FittedDictionary, FittedMixture


def estimator_of(fitted: Fitted, names: Sequence[str] | None = None) -> Any:
    """A `sklearn.mixture.GaussianMixture` or `sklearn.decomposition.DictionaryLearning` that scores, labels and codes
    rows as if it had been fitted. Raises ConfigError for Student-t components, which scikit-learn does not have.

    names: of the columns, which it then asks of data frames (`feature_names_in_`); left out where they are not as many
        as its columns, such as with one of weights
    """
    if isinstance(fitted, FittedMixture) and math.isfinite(fitted.degrees):
        raise ConfigError("scikit-learn has no mixture of Student-t components.", "Use the arrays, or normal tails.")
    made = gaussian_mixture(fitted) if isinstance(fitted, FittedMixture) else _dictionary(fitted)
    if names is not None and len(names) == made.n_features_in_:
        made.feature_names_in_ = np.array([str(name) for name in names], object)
    return made


def gaussian_mixture(fitted: FittedMixture) -> Any:
    """The `sklearn.mixture.GaussianMixture` with these weights, means and covariances, whatever the tails are."""
    from sklearn.mixture import GaussianMixture

    made = GaussianMixture(len(fitted.weights), covariance_type=fitted.covariance_type)
    made.n_features_in_ = fitted.means.shape[1]
    made.weights_, made.means_, made.covariances_ = fitted.weights, fitted.means, fitted.covariances
    factor = precisions_cholesky(fitted.covariances, fitted.covariance_type)
    made.precisions_cholesky_ = factor
    whole = fitted.covariance_type in ("full", "tied")
    made.precisions_ = factor @ np.swapaxes(factor, -1, -2) if whole else factor**2
    made.converged_, made.n_iter_ = fitted.converged, fitted.rounds
    return made


def precisions_cholesky(covariances: np.ndarray, kind: CovarianceType) -> np.ndarray:
    """Of what scikit-learn scores rows with: columns of an upper triangle, or one over the standard deviations."""
    if kind in ("diag", "spherical"):
        return np.asarray(1 / np.sqrt(covariances))
    inverse: np.ndarray = np.linalg.inv(np.linalg.cholesky(covariances))
    return np.swapaxes(inverse, -1, -2)


def _dictionary(fitted: FittedDictionary) -> Any:
    from sklearn.decomposition import DictionaryLearning

    made = DictionaryLearning(
        len(fitted.atoms),
        transform_algorithm=fitted.code,
        transform_n_nonzero_coefs=fitted.nonzero,
        transform_alpha=fitted.alpha,
    )
    made.n_features_in_ = fitted.atoms.shape[1]
    made.components_, made.n_iter_ = fitted.atoms, fitted.rounds
    return made
