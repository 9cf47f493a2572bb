"""The server's state: that of `gradient_em`, and what baselines need besides."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from fedcore.methods.gradient_em import GradientEMState
from fedcore.methods.gradient_em.state import zeros


@dataclass(frozen=True, slots=True)
class PaperGradientEMState(GradientEMState):
    """State after a round. Phases are those of `GradientEMState`, and "totals".

    variances:  (R,) of a pooled mixture of regressions; (0,) otherwise
    pooled_covariance: (p, p) of pooled Gaussians, model's units; (0, 0) otherwise
    totals:     (R, p) sum of all aligned starts (tgmm), else (0, p); sources: how many starts that is
    covariate_means, covariate_covariance: (A, p), (p, p) of fedgmm
    """

    variances: np.ndarray = zeros(0)
    pooled_covariance: np.ndarray = zeros(0, 0)
    totals: np.ndarray = zeros(0, 0)
    sources: float = 0.0
    covariate_means: np.ndarray = zeros(0, 0)
    covariate_covariance: np.ndarray = zeros(0, 0)

    @classmethod
    def of(cls, state: GradientEMState) -> PaperGradientEMState:
        return cls(**{field.name: getattr(state, field.name) for field in fields(state)})
