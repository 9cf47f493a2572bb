"""Settings of the method `paper_gradient_em`: those of `gradient_em`, and those of the methods beside it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from fedcore.methods.gradient_em import GradientEMConfig
from fedcore.methods.gradient_em.variant import Variant

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
    start_steps: int = Field(15, ge=1, le=10_000, description="EM steps of each; five times as many from the best")
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
        return Variant(norm=paper, step_size=size, step_of_start=paper, ward=self.ward, start_steps=self.start_steps)

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
        return not self.baseline and super().estimated

    @property
    def shared_covariance(self) -> bool:
        return not self.baseline and super().shared_covariance

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
            (self.baseline and not self.exact_rounds, "participation and batch are for fedgrem"),
            (
                self.start == "given" and self.algorithm in ("local-fit", "tgmm", "fedgmm"),
                f"{self.algorithm} starts from the clients' own fits",
            ),
            (not self.estimated and not self.exact_rounds, "the paper's central update is of all clients and rows"),
            (self.one_sweep and self.preset != "paper", 'one_sweep is for preset = "paper"'),
        ):
            if wrong:
                raise ValueError(text)
        return self
