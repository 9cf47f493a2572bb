"""Densities of rows under a mixture, and responsibilities, from the observed columns of each row.

scikit-learn's GaussianMixture refuses rows with missing entries. Here such a row has the density of what is observed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.imputation import Imputation
from fedcore.methods.mixture_models.released import standardised
from fedcore.methods.mixture_models.student import with_tails
from fedcore.rounds.fitted import CovarianceType

ROWS_TOGETHER = 2**16


def in_standard_units(
    kind: CovarianceType, weights: np.ndarray, means: np.ndarray, covariances: np.ndarray
) -> dict[str, np.ndarray]:
    """The mixture as `fedcore.methods.mixture_models.released` has it: weights (k,), means (k, d) and covariances of
    standardised rows, and the centre (d,) and scale (d,) that standardise rows."""
    if kind != "tied":
        return standardised(kind, weights, means, covariances)
    arrays = standardised("full", weights, means, np.broadcast_to(covariances, (len(weights), *covariances.shape)))
    return {**arrays, "covariances": arrays["covariances"][0]}


@dataclass(frozen=True, eq=False)
class Densities:
    """model, theta: the mixture of standardised rows; centre, scale: (d,) what standardises rows."""

    model: GaussianMixture
    theta: dict[str, np.ndarray]
    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(
        cls,
        kind: CovarianceType,
        weights: np.ndarray,
        means: np.ndarray,
        covariances: np.ndarray,
        degrees: float = math.inf,
    ) -> Self:
        """weights (k,), means (k, d) and covariances by kind, in the units of the data. degrees: of freedom of the
        components; infinite: they are normal."""
        arrays = in_standard_units(kind, weights, means, covariances)
        theta = {name: arrays[name] for name in ("weights", "means", "covariances")}
        components, features = means.shape
        model = GaussianMixture(components, features, kind, missing=True)
        if math.isfinite(degrees):
            model = with_tails(model, degrees)
        return cls(model, theta, arrays["centre"], arrays["scale"])

    def log_densities(self, x: np.ndarray) -> np.ndarray:
        """(n,) float64 of rows (n, d), nats, in the units of the data; 0 for a row without an observed entry."""
        densities = np.empty(len(x))
        for part in _parts(x):
            y = (x[part] - self.centre) / self.scale
            densities[part] = self.model.log_likelihood(self.theta, y) - np.isfinite(y) @ np.log(self.scale)
        return densities

    def responsibilities(self, x: np.ndarray) -> np.ndarray:
        """(n, k) float64 of rows (n, d); each row adds up to 1."""
        found = np.empty((len(x), self.model.components))
        for part in _parts(x):
            y = (x[part] - self.centre) / self.scale
            found[part] = self.model.personalise(self.theta, y)["responsibilities"]
        return found

    @property
    def imputation(self) -> Imputation:
        """What the mixture says of missing entries."""
        return Imputation(self.model.components_of(self.theta), self.centre, self.scale)


def _parts(x: np.ndarray) -> list[slice]:
    return [slice(low, low + ROWS_TOGETHER) for low in range(0, len(x), ROWS_TOGETHER)]
