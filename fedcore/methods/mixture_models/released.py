"""A mixture of Gaussians that one method has released and another one starts from.

    weights, means, covariances    of rows that are standardised by
    centre, scale                  the mean of the mixture, and its standard deviation in each column
    nats_of_noise                  what the noise in it costs, in nats a row, where its method knows that

All of it is a function of released values. The last holds on the population alone from which they were released.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

NATS_OF_NOISE = "nats_of_noise"
MIXTURE_NAMES = ("weights", "means", "covariances", "centre", "scale")
RELEASED_NAMES = (*MIXTURE_NAMES, NATS_OF_NOISE)

Form = Literal["full", "diag", "spherical"]


def column_variances(form: Form, covariances: np.ndarray, d: int) -> np.ndarray:
    """(m, d), the diagonals of the covariances."""
    if form == "spherical":
        return np.repeat(covariances[:, None], d, axis=1)
    return covariances if form == "diag" else np.diagonal(covariances, axis1=1, axis2=2)


def standardised(form: Form, weights: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of `MIXTURE_NAMES`, float64. weights: (m,), sum 1; means: (m, d); covariances by form: (m, d, d),
    (m, d) or (m,), of which spheres have one scale for all columns."""
    d = means.shape[1]
    centre = weights @ means
    variances = weights @ (column_variances(form, covariances, d) + (means - centre) ** 2)
    if form == "spherical":
        variances = np.full(d, variances.mean())
    scale = np.sqrt(variances)
    factor = {"spherical": scale[0] ** 2, "diag": scale**2, "full": np.outer(scale, scale)}[form]
    return {
        "weights": weights,
        "means": (means - centre) / scale,
        "covariances": covariances / factor,
        "centre": centre,
        "scale": scale,
    }


def in_form(arrays: Mapping[str, np.ndarray], covariance: str) -> dict[str, np.ndarray]:
    """Those of a mixture with full covariances (m, d, d) for a model with covariances of another kind: their diagonals,
    their mean by weight ("tied"), or the mean variance in units that are the same for all columns ("spherical"). Arrays
    of anything else, and for any other kind, are returned as they are."""
    found = dict(arrays)
    if not set(MIXTURE_NAMES) <= set(arrays) or covariance not in ("diag", "tied", "spherical"):
        return found
    weights, means, covariances, _, scale = (arrays[name] for name in MIXTURE_NAMES)
    if covariances.ndim != 3 or covariances.shape != (len(weights), *means.shape[1:], *scale.shape):
        return found
    if covariance == "tied":
        return found | {"covariances": np.einsum("g,gij->ij", weights, covariances)}
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    if covariance == "diag":
        return found | {"covariances": variances.copy()}
    common = np.sqrt(np.mean(scale**2))
    return found | {
        "means": means * (scale / common),
        "covariances": (variances * (scale / common) ** 2).mean(axis=1),
        "scale": np.full(len(scale), common),
    }


def largest_relative_error(theta: Mapping[str, np.ndarray], covariance: str) -> float:
    """For noise of variance 1 in every packed number of a statistic with parameters theta of a mixture of Gaussians:
    the variance of the relative error of a component's variance, in the component and direction where it is largest.
    Rows are centred at 0. covariance: full, tied, diag or spherical; but for full it is a bound.

    With the M-step Sigma = s2 / s0 - mu mu' and a direction v of variance l, errors e of s change l by
    (v'e2 v - 2 (mu'v) (e1'v) + ((mu'v)^2 - l) e0) / s0.
    """
    weights, means, covariances = theta["weights"], theta["means"], theta["covariances"]
    g, d = means.shape
    if covariance == "spherical":
        covariances = np.repeat(covariances[:, None], d, axis=1)
    if covariance in ("diag", "spherical"):
        values, along = covariances, means**2
    else:
        values, vectors = np.linalg.eigh(np.broadcast_to(covariances, (g, d, d)))
        along = np.einsum("gi,gij->gj", means, vectors) ** 2
    sizes = (1.0 + 4.0 * along + (along - values) ** 2) / (weights[:, None] * values) ** 2
    return float(sizes.max())
