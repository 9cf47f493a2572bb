"""Components carry no names: two fits are compared after the best matching of their components."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment


def matching(locations: np.ndarray, reference: np.ndarray, scale: np.ndarray | float = 1.0) -> np.ndarray:
    """(G,) order such that locations[order] is nearest to reference: least sum of squared distances (Hungarian method).

    locations, reference: (G, ...); both are divided by scale, which is broadcast against one location. Raises
    ValueError for different G.
    """
    if locations.shape != reference.shape:
        raise ValueError(f"cannot match components of shapes {locations.shape} and {reference.shape}")
    a, b = ((np.asarray(x, np.float64) / scale).reshape(len(x), -1) for x in (locations, reference))
    cost = ((b[:, None, :] - a[None, :, :]) ** 2).sum(axis=2)
    return linear_sum_assignment(cost)[1]
