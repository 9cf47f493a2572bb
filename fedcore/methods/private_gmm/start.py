"""What a later run may start from: the mixture found, in the standardised coordinates that federated EM wants."""

from __future__ import annotations

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.private_gmm.config import Covariance
from fedcore.methods.private_gmm.result import column_variances
from fedcore.methods.private_gmm.state import PrivateGMMState


def warm_start_of(covariance: Covariance, state: PrivateGMMState) -> dict[str, np.ndarray]:
    """weights (m,), means (m, d) and covariances, by form, of rows standardised by centre and scale, (d,) each: the
    mean of the mixture, and its standard deviation in each column, or over all columns if covariances are spherical.

    Raises ConfigError if the run has found nothing.
    """
    if not state.found:
        raise ConfigError(f"has not found a mixture ({state.outcome}).", "Name a run that has.")
    centre = state.weights @ state.means
    within = column_variances(covariance, state.covariances, state.features)
    variances = state.weights @ (within + (state.means - centre) ** 2)
    if covariance == "spherical":
        variances = np.full(state.features, variances.mean())
    scale = np.sqrt(variances)
    factor = {"spherical": scale[0] ** 2, "diag": scale**2, "full": np.outer(scale, scale)}[covariance]
    return {
        "weights": state.weights,
        "means": (state.means - centre) / scale,
        "covariances": state.covariances / factor,
        "centre": centre,
        "scale": scale,
    }
