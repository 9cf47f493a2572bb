"""The mixture as scikit-learn takes one: components and background alike are Gaussians in the units of the data."""

from __future__ import annotations

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.result import model_of
from fedcore.methods.private_mixture.server import BROAD
from fedcore.methods.private_mixture.state import PrivateMixtureState
from fedcore.rounds.fitted import FittedMixture

REMARK = "the last component is the broad background, which is no group; the tail of the density is left out"


def fitted_model_of(config: PrivateMixtureConfig, state: PrivateMixtureState) -> FittedMixture:
    """k + 1 components, the background last. The density is that of the run without its tail, divided by 1 - TAIL; of
    columns with steps or many zeros it is that of rows as they are read.

    Raises RunError before it has finished, ConfigError for a run with categories, or with
    columns that stand alone.
    """
    model = model_of(config, state)
    if model.probabilities is not None:
        raise ConfigError(
            "the mixture of this run is of numbers and categories, and scikit-learn has none of both.",
            "Export its tables, or make a run with --set categories=[].",
        )
    if model.layout.alone.any():
        raise ConfigError(
            f"{int(model.layout.alone.sum())} of the columns stand alone, and are not part of the mixture.",
            "Export its tables, or leave these columns out of the population.",
        )
    back = np.linalg.pinv(model.linear) * model.scale
    return FittedMixture(
        model.weights,
        np.vstack([model.means_of_data(), model.centre + model.scale * model.origin]),
        np.concatenate([model.covariances_of_data(), BROAD * (back.T @ back)[None]]),
        "full",
        state.round,
        remark=REMARK,
    )
