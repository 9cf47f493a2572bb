"""The models by name: how settings, columns and public constants become a `CurvedEM`, its first parameters, its codec
and, at the end, parameters in the units of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from fedcore.methods.federated_em.codecs import Codec, Dithering, Identity
from fedcore.methods.federated_em.config import STARTS_OF_EM, FederatedEMConfig, Tables
from fedcore.methods.federated_em.messages import Scaling
from fedcore.methods.federated_em.natural_codec import Natural
from fedcore.methods.mixture_models.contract import CurvedEM, Rows, Theta
from fedcore.methods.mixture_models.counts import BernoulliMixture, MultinomialMixture, PoissonMixture
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputer import GaussianImputer
from fedcore.methods.mixture_models.initialisation import random_parameters
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables, parameters_from_cells
from fedcore.methods.mixture_models.mixture import Mixture
from fedcore.methods.mixture_models.natural_units import Units, units_at
from fedcore.methods.mixture_models.nuclear_norm import Family
from fedcore.methods.mixture_models.regression import RegressionMixture
from fedcore.methods.mixture_models.student import with_tails

SMALLEST_MEAN = 1e-6


@dataclass(frozen=True, slots=True)
class ModelFactory:
    """build: the model. needs_seeds: whether its initialisation needs G rows of the data. standardised: whether rows
    are standardised. missing: whether entries may be missing. in_data_units: its parameters in the units of the data;
    None for models that are never standardised.
    """

    build: Callable[[FederatedEMConfig, Scaling], CurvedEM]
    needs_seeds: bool = True
    standardised: bool = False
    missing: bool = False
    in_data_units: Callable[[FederatedEMConfig, Theta, Scaling], Theta] | None = None


def factory_of(config: FederatedEMConfig) -> ModelFactory:
    return FACTORIES[config.model.name]


_latest: tuple[FederatedEMConfig, Scaling, CurvedEM] | None = None


def model_of(config: FederatedEMConfig, scaling: Scaling) -> CurvedEM:
    """The model for columns of this scaling; the length of scaling.variance is their number.

    The latest one is kept, because all leaves of a round ask for the same.
    """
    global _latest
    latest = _latest
    if latest is None or latest[1] is not scaling or latest[0] != config:
        latest = _latest = (config, scaling, factory_of(config).build(config, scaling))
    return latest[2]


def standardises(config: FederatedEMConfig) -> bool:
    """Whether the columns' own moments standardise rows; a warm start brings its own centre and scale."""
    wanted = config.variant.standardise and factory_of(config).standardised and config.algorithm.start != "given"
    return wanted and config.model.covariance != "known"


def needs_common_scale(config: FederatedEMConfig) -> bool:
    """Whether all columns must be divided by the same number, because the model's covariances are spheres."""
    return config.model.name == "gaussian" and config.model.covariance == "spherical"


def seeding_passes(config: FederatedEMConfig) -> int:
    """Rows that an initialisation needs, one from each pass."""
    return config.components if factory_of(config).needs_seeds and config.algorithm.start != "given" else 0


def initial_parameters(config: FederatedEMConfig, scaling: Scaling, seed: int) -> Theta:
    """First parameters of a model that needs no seeds, from the moments of the columns."""
    model = model_of(config, scaling)
    if isinstance(model, LowRankTables):
        shape = (model.rows, model.columns)
        return parameters_from_cells(model, (scaling.mean * scaling.seen).reshape(shape), scaling.seen.reshape(shape))
    return random_parameters(model, scaling.mean, scaling.variance, seed)


def in_data_units(config: FederatedEMConfig, theta: Theta, scaling: Scaling) -> Theta:
    """The parameters for rows as they are, not standardised; empty if theta is."""
    convert = factory_of(config).in_data_units
    return theta if convert is None or not len(scaling.centre) or not theta else convert(config, theta, scaling)


def log_scales(config: FederatedEMConfig, scaling: Scaling, y: Rows) -> np.ndarray:
    """What the loss of each standardised row (of tables, which are left as they are, each table) is short of that in
    the units of the data, nats."""
    if not len(scaling.scale):
        return np.zeros(y.shape[0] // config.rows_per_observation)
    logs = np.log(scaling.scale)
    if config.model.name == "regression":  # a density of its response, the last column, alone
        logs = logs * (np.arange(len(logs)) == len(logs) - 1)
    return np.isfinite(y) @ logs


def penalty_share(config: FederatedEMConfig, scaling: Scaling) -> float:
    """The penalty of models of dense rows, as a share of the data."""
    return config.fixed_share if scaling.penalty_share is None else scaling.penalty_share


# --- Gaussian mixtures ----------------------------------------------------------------------------------------------


def _gaussian(config: FederatedEMConfig, scaling: Scaling) -> CurvedEM:
    model = GaussianMixture(
        config.components,
        len(scaling.variance),
        config.model.covariance,
        lam=penalty_share(config, scaling) * scaling.variance,
        missing=not config.private,  # a private run leaves rows out that are not finite
    )
    return model if scaling.degrees is None else with_tails(model, scaling.degrees)


def _gaussian_unscaled(config: FederatedEMConfig, theta: Theta, scaling: Scaling) -> Theta:
    scale = scaling.scale
    converted = {**theta, "means": theta["means"] * scale + scaling.centre}
    factor = {
        "full": np.outer(scale, scale),
        "tied": np.outer(scale, scale),
        "diag": scale**2,
        "spherical": scale[0] ** 2,
        "known": 1.0,
    }[config.model.covariance]
    if "covariances" in theta:
        converted["covariances"] = theta["covariances"] * factor
    return converted


# --- mixtures of regressions ----------------------------------------------------------------------------------------


def _regression(config: FederatedEMConfig, scaling: Scaling) -> CurvedEM:
    share, variance = penalty_share(config, scaling), float(scaling.variance[-1])
    return RegressionMixture(
        config.components, len(scaling.variance), intercept=True, ridge=share, lam=share * variance
    )


def _regression_unscaled(config: FederatedEMConfig, theta: Theta, scaling: Scaling) -> Theta:
    """v = c_v + s_v (b_0 + sum b_j (u_j - c_j) / s_j)."""
    slopes = theta["coefficients"][:, :-1] * scaling.scale[-1] / scaling.scale[:-1]
    level = scaling.centre[-1] + scaling.scale[-1] * theta["coefficients"][:, -1] - slopes @ scaling.centre[:-1]
    return {
        **theta,
        "coefficients": np.column_stack([slopes, level]),
        "variances": theta["variances"] * scaling.scale[-1] ** 2,
    }


# --- mixtures of counts ---------------------------------------------------------------------------------------------


def _prior(config: FederatedEMConfig, scaling: Scaling) -> float:
    """a: regularisation, in rows, spread over the components, each with the mean entry."""
    mean = scaling.mean.mean() if len(scaling.mean) else 1.0
    return config.fixed_share / config.components * max(float(mean), SMALLEST_MEAN)


def _poisson(config: FederatedEMConfig, scaling: Scaling) -> CurvedEM:
    return PoissonMixture(
        config.components, len(scaling.variance), a=_prior(config, scaling), b=config.fixed_share / config.components
    )


def _multinomial(config: FederatedEMConfig, scaling: Scaling) -> CurvedEM:
    length = max(float(scaling.mean.sum()), SMALLEST_MEAN) if len(scaling.mean) else 1.0
    return MultinomialMixture(config.components, len(scaling.variance), a=_prior(config, scaling), length=length)


def _bernoulli(config: FederatedEMConfig, scaling: Scaling) -> CurvedEM:
    return BernoulliMixture(config.components, len(scaling.variance), a=_prior(config, scaling))


# --- what is missing ------------------------------------------------------------------------------------------------


def _imputer(config: FederatedEMConfig, scaling: Scaling) -> CurvedEM:
    return GaussianImputer(
        len(scaling.variance),
        cast(int | None, config.model.rank),
        lam=penalty_share(config, scaling) * scaling.variance,
    )


def _imputer_unscaled(config: FederatedEMConfig, theta: Theta, scaling: Scaling) -> Theta:
    return {
        "mean": theta["mean"] * scaling.scale + scaling.centre,
        "covariance": theta["covariance"] * np.outer(scaling.scale, scaling.scale),
    }


def _tables(config: FederatedEMConfig, scaling: Scaling) -> CurvedEM:
    family = cast(Family, config.model.name.removesuffix("_tables"))
    rows, model = config.rows_per_observation, cast(Tables, config.model)
    return LowRankTables(rows, len(scaling.variance) // rows, family, cast(float, model.nuclear_penalty), model.rank)


_TABLES = ModelFactory(_tables, needs_seeds=False, missing=True)
FACTORIES = {
    "gaussian": ModelFactory(_gaussian, standardised=True, in_data_units=_gaussian_unscaled),
    "regression": ModelFactory(_regression, needs_seeds=False, standardised=True, in_data_units=_regression_unscaled),
    "poisson": ModelFactory(_poisson),
    "multinomial": ModelFactory(_multinomial),
    "bernoulli": ModelFactory(_bernoulli),
    "gaussian_imputer": ModelFactory(
        _imputer, needs_seeds=False, standardised=True, missing=True, in_data_units=_imputer_unscaled
    ),
    "gaussian_tables": _TABLES,
    "poisson_tables": _TABLES,
    "bernoulli_tables": _TABLES,
}


# --- codecs ---------------------------------------------------------------------------------------------------------


_units: list[Units] = []
_naturals: list[Natural] = []


def units_of(model: CurvedEM, theta: Theta, s: np.ndarray) -> Units:
    """Natural units at theta = T(s); s may be empty where clients do not get it.

    The latest ones are kept, because all leaves of a round ask for the same, those of several starts in turn.
    """
    for units in _units:
        if units.theta is theta and units.model is model:
            return units
    units = units_at(cast(Mixture, model), theta, s)
    _units[:] = [units, *_units[: STARTS_OF_EM - 1]]
    return units


def _natural(units: Units, resolution: float, everything: bool, component_step: float) -> Natural:
    """The latest ones are kept, with what they know of the parts of a message."""
    for codec in _naturals:
        known = codec.step, codec.everything, codec.component_step
        if codec.units is units and known == (resolution, everything, component_step):
            return codec
    codec = Natural(units, resolution, everything, component_step)
    _naturals[:] = [codec, *_naturals[: STARTS_OF_EM - 1]]
    return codec


def codec_of(
    config: FederatedEMConfig,
    model: CurvedEM,
    theta: Theta,
    s: np.ndarray,
    resolution: float = 1.0,
    everything: bool = False,
    component_step: float = np.inf,
) -> Codec:
    """The codec for the model's statistic. theta, s and what follows: of the round, for the codec natural."""
    q, parts = model.q, tuple(part.stop for part in model.blocks)
    match config.codec_name:
        case "natural":
            return _natural(units_of(model, theta, s), resolution, everything, component_step)
        case "identity":
            return Identity(q)
        case _:
            return Dithering(parts if config.variant.norms_by_part else (q,), config.levels)
