"""What a later run may start from: what the series knows, for the next run of this method on the same population, and
the mixture in standardised coordinates, which federated EM may start from.

The broad background is no component: it is left out, and the shares of the components are made to sum to 1.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.mixture_models.packing import triangle
from fedcore.methods.mixture_models.released import NATS_OF_NOISE, standardised
from fedcore.methods.private_mixture import series
from fedcore.methods.private_mixture.columns import missing_shares
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.layout import layout_now
from fedcore.methods.private_mixture.result import model_of
from fedcore.methods.private_mixture.series import MEANS, SCALES, SHAPES, SHARES
from fedcore.methods.private_mixture.state import MIXTURE, MixedState, PrivateMixtureState


def warm_start_of(config: PrivateMixtureConfig, state: PrivateMixtureState) -> dict[str, np.ndarray]:
    """The arrays of the series, and those of `released.RELEASED_NAMES` if the run was made to its end, found
    components, knows the scale of every column, and has read none as a category or as one that stands alone. Raises
    ConfigError if neither the run nor its series has found components."""
    left = series.arrays_of(state, missing_shares(config, state))
    whole = state.done and state.outcome == MIXTURE and not isinstance(state, MixedState)
    whole = whole and bool(state.told.all()) and not layout_now(config, state).alone.any()
    return left | of_mixture(config, state) if whole else left


def of_mixture(config: PrivateMixtureConfig, state: PrivateMixtureState) -> dict[str, np.ndarray]:
    """See `fedcore.methods.mixture_models.released`: weights (k,), means (k, d), covariances (k, d, d), centre and
    scale (d,), nats_of_noise (1,)."""
    model = model_of(config, state)
    weights, back = model.weights[:-1] / model.weights[:-1].sum(), np.linalg.pinv(model.linear)
    covariances = np.einsum("ai,kab,bj->kij", back, model.covariances, back)
    found = standardised("full", weights, model.origin + model.means @ back, (covariances + covariances.mT) / 2)
    return found | {
        "centre": model.centre + model.scale * found["centre"],
        "scale": model.scale * found["scale"],
        NATS_OF_NOISE: np.array([nats_of_noise(weights, state.known, state.features)]),
    }


def nats_of_noise(weights: np.ndarray, known: np.ndarray, d: int) -> float:
    """Loss due to noise, in nats per row to second order: half the Fisher information of a row times its variance.

    weights: (k,); known: (k, KNOWN) variances of shares, and in own units of a coordinate of a mean, of the scale of a
    covariance and of an entry of it. For a component of weight w, a row has the information 1 / w on its share, w on a
    coordinate of its mean, and w / 2 on an entry of its covariance, of which a scale moves d at once.
    """
    of_covariance = d * known[:, SCALES] + triangle(d) * known[:, SHAPES]
    each = known[:, SHARES] / weights + weights * (d * known[:, MEANS] + of_covariance / 2)
    return float(each.sum()) / 2
