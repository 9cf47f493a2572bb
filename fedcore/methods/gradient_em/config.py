"""Settings of the method `gradient_em`: one model for the TOML file, the command line, the flow and its form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedcore.methods.gradient_em.shrinkage import EstimatedPenalty, Penalty

FEWEST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Variant:
    """How clients are shrunk and how they step. The defaults are what `gradient_em` does, and not settings:
    docs/notes/gradient-em.md has measurements of others, which `paper_gradient_em` has.

    penalty, penalty_decay, first_penalty: C, kappa0 and lambda before the first round, of the paper's norm
    smallest_cluster: a client's component of fewer rows is left out and takes the common centre
    step_size: C of the steps C / w; 1 is an EM step. step_of_start: w is that of the start, not the present one
    ward: whether Ward's hierarchy is one more first guess of a client's Gaussians
    starts: random first guesses of a client's own fit. start_steps: EM steps of each; five times as many from the best
    aligned_clients: clients whose centres are compared; the others align to what comes out
    second_start: in this round, and in those of 4, 16, ... times its number, clients also start from the common centres
        and keep the better end; 0: never
    """

    penalty: float = 2.0
    penalty_decay: float = 0.1
    first_penalty: float = 1.0
    smallest_cluster: float = 0.0
    step_size: float = 1.0
    step_of_start: bool = False
    ward: bool = True
    starts: int = 10
    start_steps: int = 15
    aligned_clients: int = 1000
    second_start: int = 10

    def penalty_of(
        self,
        counts: np.ndarray,
        w: np.ndarray,
        p: int,
        *,
        strength: float,
        between: np.ndarray,
        fraction: np.ndarray | None = None,
    ) -> Penalty:
        """The penalty that draws clients to the common centres.

        counts: (C, R) rows of the clients, 0 where a component does not count. strength: lambda, of the paper's norm.
        between: (R,) variance between clients; fraction: (C, R) of a full M-step that the estimates made, None: all.
        """
        return EstimatedPenalty.of(counts, w, between, np.ones(w.shape) if fraction is None else fraction, p)


_ALGORITHMS = ("local-fit", "local-em", "local-grem", "fedem", "fedem-w", "tgmm", "fedgmm", "pooled-em", "pooled-grem")
_OF_THE_PAPER = ("preset", "step_size", "ward", "start_steps", "gradient_step", "average", "tgmm_penalty", "covariates")
_PAPER_PRESET = ("shrinkage", "central", "step")
_CONSTANTS = (
    "limit",
    "pooling",
    "penalty",
    "penalty_decay",
    "first_penalty",
    "smallest_cluster",
    "weight_floor",
    "alignment",
    "shuffles",
    "starts",
    "aligned_clients",
    "second_start",
)
_GONE = (
    "batch",
    "batch_decay",
    "batch_weight",
    "by_component",
    "share_weights",
    "weights_penalty",
    "cap_steps",
    "local_steps",
    "gradient_clip",
)
MOVED = {
    "algorithm=mixed-effects": "is the method mixed_effects now",
    "robust": "is a setting of the method mixed_effects",
    "algorithm=fedgrem": "is what gradient_em always trains: leave it out",
    **{f"algorithm={name}": "is an algorithm of the method paper_gradient_em" for name in _ALGORITHMS},
    "central=authors": "is the setting one_sweep of the method paper_gradient_em",
    **dict.fromkeys(_OF_THE_PAPER, "is a setting of the method paper_gradient_em"),
    **dict.fromkeys(_PAPER_PRESET, 'is what preset = "paper" of the method paper_gradient_em chooses'),
    "known": "is the value of covariance now",
    "covariance=known": "is what a number, or numbers, as the value of covariance say now",
    **dict.fromkeys(_CONSTANTS, "has its former default always: leave it out"),
    **dict.fromkeys(_GONE, "was removed: no measurement showed a benefit"),
}


OWN = Variant()
Known = float | tuple[float, ...] | tuple[tuple[float, ...], ...]


class GradientEMConfig(BaseModel):
    """Settings of federated gradient EM with estimated shrinkage. Each field declares its range."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # the model
    model: Literal["gaussian", "regression"] = Field(
        "gaussian", description="mixture of Gaussians, or of linear regressions (the response is the last column)"
    )
    components: int = Field(5, ge=1, le=200, description="components R of every client's mixture")
    intercept: bool = Field(False, description="regression: a further input that is 1")
    covariance: Literal["auto", "identity", "shared", "components"] | Known = Field(
        "auto",
        description="of the rows within a component, or noise variance of a regression; shared: one for "
        "all clients, estimated; components: one for each component of Gaussians, also estimated, from the best of "
        "several mixtures of all rows; identity: variance 1; a variance, the variances of the columns or a matrix: "
        "what is known of it; auto: shared for Gaussians, identity for regressions",
    )
    standardise: Literal["none", "columns", "clients"] = Field(
        "none",
        description="Gaussians: subtract the mean and divide by the columns' standard deviations, over all clients or "
        "over each client's rows; the model assumes components of about unit variance",
    )

    # clients
    participation: float = Field(1.0, gt=0, le=1, description="expected share of clients in a round")

    # start
    start: Literal["local", "given"] = Field(
        "local", description="every client's own fit, aligned; or common centres from a warm start"
    )

    # end
    rounds: int = Field(100, ge=1, le=1_000_000, description="rounds T")
    tolerance: float = Field(
        1e-6, ge=0, description="the run ends when no centre moves by more; not with sampled clients"
    )

    @property
    def variant(self) -> Variant:
        """How clients are shrunk and how they step."""
        return OWN

    @property
    def exact_rounds(self) -> bool:
        """Whether a round is a function of the one before: all clients take part."""
        return self.participation == 1

    @property
    def fewest_rounds(self) -> int:
        """Rounds after which a run can end early."""
        return max(FEWEST_ROUNDS, self.variant.second_start + 1)

    def starts_again(self, number: int) -> bool:
        """Whether clients start from the common centres as well in round `number`."""
        later = self.variant.second_start
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

    def known_covariance(self, features: int) -> np.ndarray | None:
        """(d, d), or (1, 1) of a regression; None if none is known. Raises ValueError if it is not one."""
        if isinstance(self.covariance, str):
            return None
        width = features if self.model == "gaussian" else 1
        matrix = np.asarray(self.covariance, np.float64)
        if matrix.ndim < 2 and matrix.size in (1, width):
            matrix = np.diag(np.broadcast_to(matrix, width))
        if matrix.shape != (width, width) or not np.allclose(matrix, matrix.T):
            raise ValueError(f"covariance must be a number, {width} variances, or a symmetric {width} x {width} matrix")
        if np.linalg.eigvalsh(matrix)[0] <= 0:
            raise ValueError("covariance must be positive definite")
        return matrix

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        gaussian = self.model == "gaussian"
        for wrong, text in (
            (
                not gaussian and self.standardise != "none",
                "standardise is for Gaussians: give a regression its covariance",
            ),
            (gaussian and self.intercept, "intercept is for regressions"),
            (not gaussian and self.covariance == "components", 'covariance = "components" is for Gaussians'),
        ):
            if wrong:
                raise ValueError(text)
        return self
