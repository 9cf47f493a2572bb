"""What the server says to the clients of a baseline. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.methods.gradient_em.coordinates import Coordinates


@dataclass(frozen=True, slots=True)
class TotalsMessage:
    """Asks for the sum of all aligned starts (tgmm). orders, centres: as in `RoundMessage`."""

    orders: np.ndarray
    centres: np.ndarray
    coordinates: Coordinates


@dataclass(frozen=True, slots=True)
class BaselineMessage:
    """One round of a baseline. number, coordinates, centres, weights, orders: as in `RoundMessage`.

    variances, pooled_covariance, totals, sources, covariate_means, covariate_covariance: as in the state
    """

    number: int
    coordinates: Coordinates
    centres: np.ndarray
    weights: np.ndarray
    orders: np.ndarray
    variances: np.ndarray
    pooled_covariance: np.ndarray
    totals: np.ndarray
    sources: float
    covariate_means: np.ndarray
    covariate_covariance: np.ndarray
