"""The start that a run is given: the arrays, in the form of this method, and their precision.

A private run takes shorter steps from a start that was released with little noise (`series.py`). The start may be an
earlier run of this method, which states the variance of the noise in its statistic. It may also be a run of another
method on the same population, which states the loss due to noise in nats per row. That loss becomes one variance v for
all entries of D^-1 S, by the loss that v causes: v tr(D I D) / 2, with I the Fisher information of a row at the start.

This is a measure of small errors. Noise of one size in all entries is relatively largest where a component is narrow,
and there it could make a variance vanish. So steps are also limited in length: the noise of all rounds together changes
no variance in any direction by more than LARGEST_CHANGE of it, in standard deviations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.series import SERIES_NAMES, Precision, precision_in
from fedcore.methods.federated_em.start import part_scales, public_model, public_parameters
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.natural_units import NaturalUnits
from fedcore.methods.mixture_models.released import NATS_OF_NOISE, in_form, largest_relative_error
from fedcore.rounds.method import PublicFacts

LARGEST_CHANGE = 0.2
KNOWN_OF_SERIES = (*SERIES_NAMES, NATS_OF_NOISE)


def checked_arrays(config: FederatedEMConfig, arrays: Mapping[str, np.ndarray], what: str) -> dict[str, np.ndarray]:
    """The arrays as float64, with covariances in the form of the settings. Raises ConfigError unless they are finite
    numbers, and those of a mixture have as many components as this run."""
    for name, array in arrays.items():
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise ConfigError(f"{name!r} of {what} is not an array of finite numbers.")
    values = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    if not config.mixture:
        return values
    if "weights" not in values:
        raise ConfigError(
            f"{what} holds no mixture to start from.",
            "Start from parameters, or from a finished run that found components and the scale of every column.",
        )
    found, wanted = values["weights"].size, config.model.components
    if found != wanted and config.undecided is None:
        raise ConfigError(f"{what} has {found} components, and this run {wanted}.", f"Set components to {found}.")
    return in_form(values, config.model.covariance) if config.model.name == "gaussian" else values


def precision_of_start(config: FederatedEMConfig, public: PublicFacts, noise: float) -> Precision:
    """That of the statistic that the run begins with, as it counts in the run. noise: variance of what a release of the
    run adds to an entry of D^-1 H. Raises ConfigError for what no run leaves."""
    arrays = public.warm_start or {}
    known = precision_in(arrays)
    if known.known or NATS_OF_NOISE not in arrays:
        return known.forgotten()
    nats = np.asarray(arrays[NATS_OF_NOISE], np.float64)
    model = public_model(config, public)
    if nats.shape != (1,) or not (np.isfinite(nats[0]) and nats[0] > 0) or not isinstance(model, GaussianMixture):
        raise ConfigError(
            f"{NATS_OF_NOISE} of the start must be one positive number, of a mixture of Gaussians.",
            "Start from another run, or from the parameters alone.",
        )
    theta, scales = public_parameters(public, model), part_scales(public, model.q)
    each = float(scales**2 @ NaturalUnits(model, theta).squared_sizes()) / 2
    precision = Precision(each / float(nats[0]), float(nats[0]) / each).forgotten()
    if config.model.covariance == "known":
        return precision
    largest = float(scales.max()) ** 2 * largest_relative_error(theta, config.model.covariance) / LARGEST_CHANGE**2
    least = (np.sqrt(config.all_rounds * noise * largest) - config.all_rounds) / noise
    return replace(precision, weight=max(precision.weight, float(least)))
