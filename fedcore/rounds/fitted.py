"""What a trained model is to other programs: plain parameters that a method declares, for scikit-learn's estimators.

A method returns one of these from `Method.fitted_model`; `fedcore.evaluation.scikit_learn` makes the estimator. In a
private run they are made of published values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

CovarianceType = Literal["full", "tied", "diag", "spherical"]
TransformAlgorithm = Literal["lasso_cd", "omp", "threshold"]


@dataclass(frozen=True, slots=True)
class FittedMixture:
    """A mixture of Gaussians, or of Student-t components, in the units of the data.

    weights: (k,) float64, sum 1; means: (k, d) float64
    covariances: (k, d, d), (d, d), (k, d) or (k,) float64, of type full, tied, diag or spherical; of Student-t
        components scale matrices
    rounds: that were made; converged: whether the method says so, or has no such notion and has finished
    remark: what to know of a component that is unlike the others; empty if there is none
    degrees: of freedom of the components; infinite: they are normal
    """

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    covariance_type: CovarianceType
    rounds: int
    converged: bool = True
    remark: str = ""
    degrees: float = math.inf

    def arrays(self) -> dict[str, np.ndarray]:
        """By name."""
        arrays = {"weights": self.weights, "means": self.means, "covariances": self.covariances}
        return arrays if math.isinf(self.degrees) else arrays | {"degrees_of_freedom": np.array([self.degrees])}


@dataclass(frozen=True, slots=True)
class FittedDictionary:
    """Atoms, and how samples are coded with them.

    atoms: (r, d) float64; code: the algorithm of `sklearn.decomposition.sparse_encode` that codes samples
    nonzero: of code omp, the most atoms of a sample; alpha: of the others, weight of the l1 norm, or the threshold
    rounds: that were made; remark: how these codes differ from the method's own; empty if they do not
    """

    atoms: np.ndarray
    code: TransformAlgorithm
    nonzero: int | None
    alpha: float | None
    rounds: int
    remark: str = ""

    def arrays(self) -> dict[str, np.ndarray]:
        """By name."""
        return {"atoms": self.atoms}


Fitted: TypeAlias = FittedMixture | FittedDictionary
