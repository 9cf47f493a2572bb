"""Models by name: how settings, columns and public constants become a `CurvedEM`, its start, its codec and, at the end,
parameters in the units of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedcore.methods.federated_em.codecs import Codec, Dithering, Identity, RandK
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.messages import Scaling
from fedcore.methods.mixture_models.contract import CurvedEM, Theta
from fedcore.methods.mixture_models.counts import BernoulliMixture, MultinomialMixture, PoissonMixture
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputer import GaussianImputer
from fedcore.methods.mixture_models.initialisation import random_start
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables, observed_start
from fedcore.methods.mixture_models.regression import RegressionMixture

SMALLEST_MEAN = 1e-6
Build = Callable[[FederatedEMConfig, Scaling], CurvedEM]


@dataclass(frozen=True, slots=True)
class Family:
    """build: the model. from_rows: whether a start needs G rows of the data. standardised: whether rows are
    standardised. missing: whether entries may be missing. original: parameters in the units of the data.
    """

    build: Build
    from_rows: bool = True
    standardised: bool = False
    missing: bool = False
    original: Callable[[FederatedEMConfig, Theta, Scaling], Theta] | None = None


def family(config: FederatedEMConfig) -> Family:
    return FAMILIES[config.model]


_latest: tuple[FederatedEMConfig, Scaling, CurvedEM] | None = None


def model_of(config: FederatedEMConfig, scaling: Scaling) -> CurvedEM:
    """scaling.variance: (d,), its length is the number of columns. The leaves of a round ask for the same one."""
    global _latest
    latest = _latest
    if latest is None or latest[1] is not scaling or latest[0] != config:
        latest = _latest = (config, scaling, family(config).build(config, scaling))
    return latest[2]


def standardises(config: FederatedEMConfig) -> bool:
    """Whether the columns' own moments standardise rows; a start given from outside brings its own."""
    wanted = config.standardise and family(config).standardised and config.start_name != "given"
    return wanted and config.covariance != "known"


def one_scale(config: FederatedEMConfig) -> bool:
    """Whether all columns must be divided by the same number, because the model's covariances are spheres."""
    return config.model == "gaussian" and config.covariance == "spherical"


def picking_passes(config: FederatedEMConfig) -> int:
    """Rows that a start needs, one from each pass."""
    return config.components if family(config).from_rows and config.start_name != "given" else 0


def start(config: FederatedEMConfig, scaling: Scaling, seed: int) -> Theta:
    """First parameters of a model that needs no rows, from the moments of the columns."""
    model = model_of(config, scaling)
    if isinstance(model, LowRankTables):
        shape = (model.rows, model.columns)
        return observed_start(model, (scaling.mean * scaling.seen).reshape(shape), scaling.seen.reshape(shape))
    return random_start(model, scaling.mean, scaling.variance, seed)


def in_data_units(config: FederatedEMConfig, theta: Theta, scaling: Scaling) -> Theta:
    """Parameters of rows that were not standardised."""
    original = family(config).original
    return theta if original is None or not len(scaling.centre) or not theta else original(config, theta, scaling)


# --- Gaussian mixtures ----------------------------------------------------------------------------------------------


def _gaussian(config, scaling):
    return GaussianMixture(
        config.components,
        len(scaling.variance),
        config.covariance,
        lam=config.regularisation * scaling.variance,
        a=config.pseudo_counts,
    )


def _gaussian_original(config, theta, scaling):
    scale, theta = scaling.scale, {**theta, "means": theta["means"] * scaling.scale + scaling.centre}
    factor = {
        "full": np.outer(scale, scale),
        "tied": np.outer(scale, scale),
        "diag": scale**2,
        "spherical": scale[0] ** 2,
        "known": 1.0,
    }[config.covariance]
    if "covariances" in theta:
        theta["covariances"] = theta["covariances"] * factor
    return theta


# --- mixtures of regressions ----------------------------------------------------------------------------------------


def _regression(config, scaling):
    variance = float(scaling.variance[-1])
    return RegressionMixture(
        config.components,
        len(scaling.variance),
        intercept=True,
        a=config.pseudo_counts,
        ridge=config.regularisation,
        lam=config.regularisation * variance,
    )


def _regression_original(config, theta, scaling):
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
    return config.regularisation / config.components * max(float(mean), SMALLEST_MEAN)


def _poisson(config, scaling):
    return PoissonMixture(
        config.components, len(scaling.variance), a=_prior(config, scaling), b=config.regularisation / config.components
    )


def _multinomial(config, scaling):
    length = max(float(scaling.mean.sum()), SMALLEST_MEAN) if len(scaling.mean) else 1.0
    return MultinomialMixture(config.components, len(scaling.variance), a=_prior(config, scaling), length=length)


def _bernoulli(config, scaling):
    return BernoulliMixture(config.components, len(scaling.variance), a=_prior(config, scaling))


# --- what is missing ------------------------------------------------------------------------------------------------


def _imputer(config, scaling):
    return GaussianImputer(len(scaling.variance), config.rank, lam=config.regularisation * scaling.variance)


def _imputer_original(config, theta, scaling):
    return {
        "mean": theta["mean"] * scaling.scale + scaling.centre,
        "covariance": theta["covariance"] * np.outer(scaling.scale, scaling.scale),
    }


def _tables(config, scaling):
    family, columns = config.model.removesuffix("_tables"), len(scaling.variance) // config.unit
    return LowRankTables(config.unit, columns, family, config.nuclear_penalty, config.rank)


_TABLES = Family(_tables, from_rows=False, missing=True)
FAMILIES: dict[str, Family] = {
    "gaussian": Family(_gaussian, standardised=True, original=_gaussian_original),
    "regression": Family(_regression, from_rows=False, standardised=True, original=_regression_original),
    "poisson": Family(_poisson),
    "multinomial": Family(_multinomial),
    "bernoulli": Family(_bernoulli),
    "gaussian_imputer": Family(_imputer, from_rows=False, standardised=True, missing=True, original=_imputer_original),
    "gaussian_tables": _TABLES,
    "poisson_tables": _TABLES,
    "bernoulli_tables": _TABLES,
}


# --- codecs ---------------------------------------------------------------------------------------------------------


def codec_of(config: FederatedEMConfig, model: CurvedEM) -> Codec:
    """The codec for the model's statistic."""
    q, parts = model.q, tuple(part.stop for part in model.blocks)
    match config.codec_name:
        case "identity":
            return Identity(q)
        case "dithering":
            return Dithering(parts if config.norms_by_part else (q,), config.norm, config.levels)
        case "block":
            return Dithering(parts, config.norm, 1)
        case _:
            return RandK(q, config.kept or -(-q // 8))
