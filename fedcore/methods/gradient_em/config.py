"""Settings of the method `gradient_em`: one model for the TOML file, the command line, the flow and its form."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

# What preset = "paper" sets, unless a setting says otherwise: the schedule of Tian, Weng, Feng 2024.
PAPER = {
    "shrinkage": "norm",
    "covariance": "identity",
    "step": "paper",
    "step_size": 0.95,
    "central": "exact",
    "second_start": 0,
}


class GradientEMConfig(BaseModel):
    """Settings of penalised federated gradient EM. Ranges stand beside the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: Literal["estimated", "paper"] = Field(
        "estimated",
        description="estimated: this method's own settings; paper: those of Tian, Weng, Feng (shrinkage "
        "= norm, covariance = identity, step = paper, step_size = 0.95, central = exact, second_start = 0)",
    )

    # the model
    model: Literal["gaussian", "regression"] = Field(
        "gaussian", description="mixture of Gaussians, or of linear regressions (the response is the last column)"
    )
    components: int = Field(5, ge=1, le=200, description="components R of every client's mixture")
    intercept: bool = Field(False, description="regression: a further input that is 1")
    covariance: Literal["auto", "identity", "known", "shared", "components"] = Field(
        "auto",
        description="of the rows within a component, or noise variance of a regression; shared: one for "
        "all clients, estimated; components: one for each component of Gaussians, likewise, from the best of several "
        "mixtures of all rows; auto: shared for Gaussians, identity for "
        "regressions, which presumes a noise of variance 1",
    )
    known: float | tuple[float, ...] | tuple[tuple[float, ...], ...] | None = Field(
        None,
        description='covariance = "known": a variance, the variances of the columns, or the matrix; of a '
        "regression the noise variance",
    )
    standardise: Literal["none", "columns", "clients"] = Field(
        "none",
        description="Gaussians: divide by the columns' standard deviations over all clients, or over each "
        "client's own rows, after their mean is taken off; the model presumes components of about unit variance",
    )

    # the central update
    shrinkage: Literal["estimated", "norm"] = Field(
        "estimated",
        description="estimated: how much clients differ is estimated for each component, and a client is "
        "shrunk towards the common centre as far as its rows are few; norm: all by lambda / sqrt n, as in the paper",
    )
    limit: float = Field(
        1.3,
        gt=0,
        le=100,
        description="estimated: beyond so many standard deviations a client is shrunk no further, "
        "and moves the common centre no further",
    )
    pooling: float = Field(
        10.0, ge=0, le=1e9, description="estimated: clients' worth of all components' differences in that of each one"
    )
    second_start: int = Field(
        10,
        ge=0,
        le=1_000_000,
        description="estimated: in this round, and in those of 4, 16, ... times its number, "
        "clients also start from the common centres and keep the better end; 0: never",
    )
    penalty: float = Field(2.0, ge=0, le=1e12, description="C of lambda <- kappa0 lambda + C sqrt(p + ln K)")
    penalty_decay: float = Field(0.1, ge=0, lt=1, description="kappa0 of that recursion")
    first_penalty: float = Field(1.0, ge=0, le=1e12, description="lambda before the first round")
    central: Literal["step", "exact"] = Field(
        "step",
        description="step: one warm reweighting step a round, from two sums; exact: solved in every round, "
        "from all clients' centres",
    )
    by_component: bool = Field(
        False, description="thresholds by the rows of a component, lambda / sqrt(n R w), not lambda / sqrt(n)"
    )
    share_weights: bool = Field(False, description="shrink the clients' weights towards a common centre as well")
    weights_penalty: float = Field(
        0.5, ge=0, le=1e12, description="C of the weights' lambda = C sqrt(R + ln K), if they are shared"
    )

    # clients' steps
    step: Literal["current", "paper"] = Field(
        "current", description="step sizes C / w: of the present weights, or of those of the start (paper)"
    )
    step_size: float = Field(
        1.0, gt=0, lt=2, description="C; 1 is an EM step. The result depends on penalty / C: tune one of the two"
    )
    weight_floor: float = Field(1e-3, gt=0, le=1, description="least weight that a step is divided by")
    cap_steps: bool = Field(
        True, description="regression: no step above 1.8 / the largest curvature, looked at every 20 rounds"
    )
    local_steps: int = Field(1, ge=1, le=1000, description="gradient steps of a client in a round; scales the penalty")
    gradient_clip: float | None = Field(
        None,
        gt=0,
        description="largest L2 norm of a row's distance from a centre (residual of a regression) in a "
        "gradient; None: no limit",
    )
    smallest_cluster: float = Field(
        5.0, ge=0, description="norm: a client's component of fewer rows is left out and takes the common centre"
    )

    # who takes part
    participation: float = Field(1.0, gt=0, le=1, description="expected share of clients in a round")
    batch: int | None = Field(
        None, ge=1, le=1_000_000, description="rows that a client draws in a round, with replacement; None: all"
    )
    batch_decay: float = Field(
        20.0, gt=0, description="k0: steps (and penalty) with batches decrease as 1 / (1 + t / k0)"
    )
    batch_weight: float = Field(0.2, gt=0, le=1, description="share of a batch in the running average of the weights")

    # start
    start: Literal["local", "given"] = Field(
        "local", description="every client's own fit, aligned; or common centres from a warm start"
    )
    starts: int = Field(10, ge=1, le=1000, description="random first guesses of a client's own fit")
    ward: bool = Field(True, description="Gaussians: Ward's hierarchy as one more first guess")
    start_steps: int = Field(15, ge=1, le=10_000, description="EM steps of each; five times as many from the best")
    alignment: Literal["auto", "exhaustive", "stepwise", "shuffles", "majority", "centres"] = Field(
        "auto",
        description="of components: all alignments; client after client; of several random sequences the best, "
        "or the most frequent; to common centres; auto: shuffles up to 200 clients, then centres",
    )
    shuffles: int = Field(50, ge=1, le=10_000, description="random sequences")
    aligned_clients: int = Field(
        1000, ge=2, le=100_000, description="clients whose centres are compared; the others align to what comes out"
    )

    # end
    rounds: int = Field(100, ge=1, le=1_000_000, description="rounds T")
    tolerance: float = Field(
        1e-6, ge=0, description="the run ends when no centre moves by more; not with batches or sampled clients"
    )

    @property
    def exact_rounds(self) -> bool:
        """Whether a round is a function of the one before: all clients, all rows."""
        return self.participation == 1 and self.batch is None

    @property
    def estimated(self) -> bool:
        """Whether differences between clients are estimated."""
        return self.shrinkage == "estimated"

    def starts_again(self, number: int) -> bool:
        """Whether clients start from the common centres as well in round `number`."""
        later = self.second_start if self.estimated else 0
        while 0 < later < number:
            later *= 4
        return 0 < later == number

    @property
    def shared_covariance(self) -> bool:
        """Whether one covariance within components is estimated from all clients in every round."""
        if self.covariance == "auto":
            return self.model == "gaussian"
        return self.covariance in ("shared", "components")

    def inputs(self, features: int) -> int:
        """p, the numbers of a centre."""
        return features if self.model == "gaussian" else features - 1 + self.intercept

    def known_covariance(self, features: int) -> np.ndarray:
        """(d, d), or (1, 1) of a regression. Raises ValueError if it is not one."""
        width = features if self.model == "gaussian" else 1
        matrix = np.asarray(self.known, np.float64)
        if matrix.ndim < 2 and matrix.size in (1, width):
            matrix = np.diag(np.broadcast_to(matrix, width))
        if matrix.shape != (width, width) or not np.allclose(matrix, matrix.T):
            raise ValueError(f"known must be a number, {width} variances, or a symmetric {width} x {width} matrix")
        if np.linalg.eigvalsh(matrix)[0] <= 0:
            raise ValueError("known must be positive definite")
        return matrix

    @model_validator(mode="before")
    @classmethod
    def _of_preset(cls, settings: Any) -> Any:
        paper = isinstance(settings, dict) and settings.get("preset") == "paper"
        return {**PAPER, **settings} if paper else settings

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        gaussian = self.model == "gaussian"
        for wrong, text in (
            ((self.known is not None) != (self.covariance == "known"), 'known goes with covariance = "known"'),
            (
                not gaussian and self.standardise != "none",
                "standardise is for Gaussians: the noise of a regression has "
                'its own scale, covariance = "known" or "shared"',
            ),
            (gaussian and self.intercept, "intercept is for regressions"),
            (
                self.covariance == "components" and not (self.estimated and gaussian and self.gradient_clip is None),
                'covariance = "components" is for Gaussians with estimated differences and no gradient_clip',
            ),
            (self.central != "step" and self.participation < 1, 'sampled clients send sums: central = "step"'),
            (self.estimated and self.central != "step", 'estimated differences come from sums: central = "step"'),
            (self.estimated and self.by_component, 'by_component is for shrinkage = "norm"'),
        ):
            if wrong:
                raise ValueError(text)
        return self
