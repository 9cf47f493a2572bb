"""Components carry no names: two fits are compared after the best matching of their components. For reports only."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.mixture import Mixture


def matching(locations: np.ndarray, reference: np.ndarray, scale: np.ndarray | None = None) -> np.ndarray:
    """(G,) order such that locations[order] is nearest to reference: least sum of squared distances (Hungarian method).

    locations, reference: (G, ...); scale: broadcast against one location, divides it. Raises ValueError for another G.
    """
    if locations.shape != reference.shape:
        raise ValueError(f"cannot match components of shapes {locations.shape} and {reference.shape}")
    scale = 1.0 if scale is None else scale
    a, b = ((np.asarray(x, np.float64) / scale).reshape(len(x), -1) for x in (locations, reference))
    cost = ((b[:, None, :] - a[None, :, :]) ** 2).sum(axis=2)
    return linear_sum_assignment(cost)[1]


def relabelled(model: Mixture, theta: Theta, order: np.ndarray) -> dict[str, np.ndarray]:
    """theta with its components in this order; what no component owns stays."""
    return {name: value[order] if name in model.labelled else value for name, value in theta.items()}


def aligned(model, theta: Theta, reference: Theta, scale: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """theta with its components in the order of the reference. A model without components comes back as it is."""
    if not isinstance(model, Mixture):
        return dict(theta)
    return relabelled(model, theta, matching(theta[model.location], reference[model.location], scale))


def largest_differences(model, theta: Theta, reference: Theta, scale: np.ndarray | None = None) -> dict[str, float]:
    """The largest absolute difference of every parameter after alignment, by name."""
    theta = aligned(model, theta, reference, scale)
    return {name: float(np.max(np.abs(theta[name] - reference[name]))) for name in reference}
