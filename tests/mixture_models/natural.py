"""phi(theta) (q,), packed like the statistic, and psi(theta) of every model: what the laws of EM are stated in.

p(y, z; theta) = rho(y, z) exp( <s(y, z), phi(theta)> - psi(theta) )
"""

from functools import singledispatch

import numpy as np

from fedcore.methods.mixture_models.counts import BernoulliMixture, MultinomialMixture, PoissonMixture
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputer import GaussianImputer
from fedcore.methods.mixture_models.low_rank_tables import LowRankTables
from fedcore.methods.mixture_models.nuclear_norm import log_partition
from fedcore.methods.mixture_models.packing import pack_symmetric
from fedcore.methods.mixture_models.regression import RegressionMixture
from fedcore.methods.mixture_models.student import StudentMixture


@singledispatch
def natural(model, theta) -> tuple[np.ndarray, float]:
    raise TypeError(type(model))


@natural.register
def _(model: GaussianMixture, theta):
    d, m, logs = model.features, theta["means"] - model.centre, np.log(theta["weights"])
    if model.covariance == "known":
        first = m @ np.linalg.inv(model.known)
        return model.layout.join(logs - 0.5 * np.sum(m * first, axis=1), first), 0.0
    covariances = theta["covariances"]
    if model.covariance == "tied":
        precision = np.linalg.inv(covariances)
        first = m @ precision
        logs = logs - 0.5 * np.sum(m * first, axis=1)
        return model.layout.join(logs, first, pack_symmetric(-0.5 * precision)), 0.5 * np.linalg.slogdet(covariances)[1]
    if model.covariance == "full":
        precision = np.linalg.inv(covariances)
        first, second = np.einsum("gij,gj->gi", precision, m), pack_symmetric(-0.5 * precision)
        log_dets = np.linalg.slogdet(covariances)[1]
    else:
        variances = covariances[:, None] if model.covariance == "spherical" else covariances
        first, second = m / variances, -0.5 / variances
        log_dets = np.log(np.broadcast_to(variances, (len(m), d))).sum(axis=1)
    return model.layout.join(logs - 0.5 * log_dets - 0.5 * np.sum(m * first, axis=1), first, second), 0.0


@natural.register
def _(model: StudentMixture, theta):
    """Of rows with their latent w. Weights and determinants belong to r, means and precisions to r w."""
    zero = {**theta, "means": np.tile(model.centre, (model.components, 1))}
    logs, rest = natural(model._normal, zero)[0][: model.components], natural(model._normal, theta)[0].copy()
    rest[: model.components] -= logs
    return np.concatenate([logs, rest]), 0.0


@natural.register
def _(model: RegressionMixture, theta):
    b, precisions = theta["coefficients"], 1.0 / theta["variances"]
    outer = b[:, :, None] * b[:, None, :] * precisions[:, None, None]
    logs = np.log(theta["weights"]) + 0.5 * np.log(precisions)
    return model.layout.join(logs, pack_symmetric(-0.5 * outer), b * precisions[:, None], -0.5 * precisions), 0.0


@natural.register
def _(model: PoissonMixture, theta):
    return model.layout.join(np.log(theta["weights"]) - theta["rates"].sum(axis=1), np.log(theta["rates"])), 0.0


@natural.register
def _(model: MultinomialMixture, theta):
    return model.layout.join(np.log(theta["weights"]), np.log(theta["probabilities"])), 0.0


@natural.register
def _(model: BernoulliMixture, theta):
    p = theta["probabilities"]
    return model.layout.join(np.log(theta["weights"]) + np.log1p(-p).sum(axis=1), np.log(p) - np.log1p(-p)), 0.0


@natural.register
def _(model: GaussianImputer, theta):
    precision = np.linalg.inv(theta["covariance"])
    m = theta["mean"] - model.centre
    first = precision @ m
    psi = 0.5 * float(m @ first) + 0.5 * float(np.linalg.slogdet(theta["covariance"])[1])
    return np.concatenate([first, pack_symmetric(-0.5 * precision)]), psi


@natural.register
def _(model: LowRankTables, theta):
    return theta["natural"].ravel(), float(log_partition(model.family, theta["natural"]).sum())
