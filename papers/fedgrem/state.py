"""Settings, messages and state of `paper_gradient_em`: those of `gradient_em`, and what baselines need besides.

Messages are frozen and hold arrays and scalars only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, Self

import numpy as np
from fedcore.papers.fedgrem.norm import NormVariant
from pydantic import Field, model_validator

from fedcore.methods.gradient_em import GradientEMConfig, GradientEMState
from fedcore.methods.gradient_em.config import FEWEST_ROUNDS, Variant
from fedcore.methods.gradient_em.coordinates import Coordinates
from fedcore.methods.gradient_em.state import zeros

LOCAL = ("local-fit", "local-em", "local-grem", "tgmm")  # every client keeps its own parameters
SHARED = ("fedem", "fedem-w", "fedgmm")  # common centres, own weights
POOLED = ("pooled-em", "pooled-grem")
STEP_SIZES = {"estimated": 1.0, "paper": 0.95}


class PaperGradientEMConfig(GradientEMConfig):
    """Settings of FedGrEM and of the baselines of its paper."""

    algorithm: Literal[
        "fedgrem",
        "local-fit",
        "local-em",
        "local-grem",
        "fedem",
        "fedem-w",
        "tgmm",
        "fedgmm",
        "pooled-em",
        "pooled-grem",
    ] = Field(
        "fedgrem",
        description="fedgrem: penalised gradient EM; local-fit: every client's start, with its own covariance; "
        "local-em, local-grem: (gradient) EM of every client alone; fedem: full M-steps, averaged; fedem-w: one M-step "
        "on all rows, own weights; tgmm: others' starts as sources; fedgmm: joint mixture of inputs and regressions; "
        "pooled-em, pooled-grem: all rows as if of one client",
    )
    preset: Literal["estimated", "paper"] = Field(
        "estimated",
        description="estimated: shrinkage of gradient_em; paper: that of Tian, Weng, Feng, by a norm, with unit "
        "covariances, step sizes of the start, the central update solved in every round, and no second start",
    )
    step_size: float | None = Field(
        None, gt=0, lt=2, description="C of the steps C / w; 1 is an EM step. None: 1, of the paper 0.95"
    )
    ward: bool = Field(True, description="Gaussians: Ward's hierarchy as one more first guess")
    starts: int = Field(10, ge=1, le=1000, description="random first guesses of a client's own fit")
    start_steps: int = Field(15, ge=1, le=10_000, description="EM steps of each; five times as many from the best")
    second_start: int = Field(
        10,
        ge=0,
        le=1_000_000,
        description="preset estimated: in this round, and in those of 4, 16, ... times its number, clients also start "
        "from the common centres and keep the better end; 0: never",
    )
    one_sweep: bool = Field(
        False, description="preset paper: one sweep of the published program in place of the solution"
    )
    gradient_step: float = Field(0.1, gt=0, le=10, description="constant step of local-grem and pooled-grem")
    average: Literal["rows", "clients"] = Field("rows", description="fedem, fedgmm: what clients count in the mean")
    tgmm_penalty: float = Field(0.4, ge=0, description="weight of each source in tgmm")
    covariates: int = Field(3, ge=1, le=50, description="fedgmm: Gaussians of the inputs")

    @property
    def variant(self) -> Variant:
        paper, size = self.preset == "paper", self.step_size or STEP_SIZES[self.preset]
        kind = NormVariant if paper else Variant
        start = {name: getattr(self, name) for name in ("ward", "starts", "start_steps", "second_start")}
        return kind(step_size=size, step_of_start=paper, **start)

    @property
    def baseline(self) -> bool:
        return self.algorithm != "fedgrem"

    @property
    def local(self) -> bool:
        return self.algorithm in LOCAL

    @property
    def common(self) -> bool:
        """Whether all clients have the same centres."""
        return self.algorithm in SHARED or self.algorithm in POOLED

    @property
    def estimated(self) -> bool:
        """Whether differences between clients are estimated."""
        return not self.baseline and self.preset != "paper"

    @property
    def fewest_rounds(self) -> int:
        return super().fewest_rounds if self.estimated else FEWEST_ROUNDS

    def starts_again(self, number: int) -> bool:
        return self.estimated and super().starts_again(number)

    @property
    def shared_covariance(self) -> bool:
        known = self.baseline or (self.covariance == "auto" and not self.estimated)
        return not known and super().shared_covariance

    @model_validator(mode="after")
    def _algorithm_agrees(self) -> Self:
        gaussian = self.model == "gaussian"
        for wrong, text in (
            (gaussian and self.algorithm == "fedgmm", "fedgmm is for regressions"),
            (not gaussian and self.algorithm == "tgmm", "tgmm is for Gaussians"),
            (
                self.baseline and self.covariance in ("shared", "components"),
                "a covariance that is estimated in the rounds is for fedgrem",
            ),
            (self.baseline and not self.exact_rounds, "participation is for fedgrem"),
            (
                self.start == "given" and self.algorithm in ("local-fit", "tgmm", "fedgmm"),
                f"{self.algorithm} starts from the clients' own fits",
            ),
            (not self.estimated and not self.exact_rounds, "the paper's central update is of all clients"),
            (self.one_sweep and self.preset != "paper", 'one_sweep is for preset = "paper"'),
        ):
            if wrong:
                raise ValueError(text)
        return self


# --- messages to the clients ------------------------------------------------------------------------------------------


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


# --- state ------------------------------------------------------------------------------------------------------------


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
