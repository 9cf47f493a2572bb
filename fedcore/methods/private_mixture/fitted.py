"""The mixture as scikit-learn takes one: components and background alike are Gaussians in the units of the data."""

from __future__ import annotations

import numpy as np

from fedcore.methods.private_mixture.result import model_of
from fedcore.methods.private_mixture.server import BROAD
from fedcore.methods.private_mixture.state import PrivateMixtureState
from fedcore.rounds.fitted import FittedMixture

REMARK = "the last component is the broad background, which is nobody's group"


def fitted_model_of(state: PrivateMixtureState) -> FittedMixture:
    """k + 1 components, the background last; the density is that of the run. Raises RunError before it has finished."""
    model = model_of(state)
    back = np.linalg.pinv(model.linear) * model.scale
    return FittedMixture(
        model.weights,
        np.vstack([model.means_of_data(), model.centre + model.scale * model.origin]),
        np.concatenate([model.covariances_of_data(), BROAD * (back.T @ back)[None]]),
        "full",
        state.round,
        remark=REMARK,
    )
