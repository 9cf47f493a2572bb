"""What another run may start from: the found mixture, in the units that federated EM wants."""

from __future__ import annotations

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.private_gmm.state import PrivateGMMState


def start_of(covariance: str, state: PrivateGMMState) -> dict[str, np.ndarray]:
    """weights, means and covariances of rows standardised by centre and scale, (d,) each: the mean of the mixture, and
    its standard deviation in each column, or over all columns if covariances are spheres. Raises ConfigError.
    """
    if not state.found:
        raise ConfigError(f"has not found a mixture ({state.outcome}).", "Name a run that has.")
    d = state.means.shape[1]
    centre = state.weights @ state.means
    within = {
        "spherical": lambda c: np.repeat(c[:, None], d, axis=1),
        "diag": lambda c: c,
        "full": lambda c: np.diagonal(c, axis1=1, axis2=2),
    }[covariance](state.covariances)
    variances = state.weights @ (within + (state.means - centre) ** 2)
    if covariance == "spherical":
        variances = np.full(d, variances.mean())
    scale = np.sqrt(variances)
    factor = {"spherical": scale[0] ** 2, "diag": scale**2, "full": np.outer(scale, scale)}[covariance]
    return {
        "weights": state.weights,
        "means": (state.means - centre) / scale,
        "covariances": state.covariances / factor,
        "centre": centre,
        "scale": scale,
    }
