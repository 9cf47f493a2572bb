"""Settings of the method `histograms`: one validated model for the TOML file, the command line and the flow."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DEFAULT_CLUSTERS = 10
REFERENCE_FEATURES = 1000  # vocabulary for which floors and smoothing are meant
SCALED = ("first_metric_floor", "metric_floor", "centre_floor", "assignment_smoothing", "start_smoothing")
DEFAULT_ROUNDS = 50  # non-private; private runs take theirs from `fedcore.histograms.sizes`


class HistogramsConfig(BaseModel):
    """Private personalised histograms (Setlur, Feldman, Talwar 2023), its private pipeline and its baselines.

    None means "choose by the size rules" (private) or the default named in the description (not private). Floors and
    smoothing hold for vocabularies of up to 1000 tokens; a larger one divides them by d / 1000 (`for_vocabulary`),
    because d times a floor is the mass that it takes from the tokens that occur.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Literal["private", "algorithm2", "fedavg"] = Field(
        "private",
        description="private: clustering with noised, whitened releases; algorithm2: the paper's clustering without "
        "privacy; fedavg: the plain mean without privacy",
    )

    # the budget of a private run
    epsilon: float | None = Field(
        None, gt=0, le=100, description="this run's share of the population's budget; None: all that is left"
    )
    nominal_clients: int | None = Field(
        None, ge=1, description="size of the population that the size rules assume; None: as declared in the manifest"
    )
    spare_releases: int = Field(
        1, ge=0, le=10, description="releases that are reserved beyond the plan, to redo one lost in a crash"
    )

    # sizes
    clusters: int | None = Field(
        None, ge=1, le=1000,
        description=f"clusters K; None: {DEFAULT_CLUSTERS}, or fewer where a private budget cannot pay for them",
    )  # fmt: skip
    rounds: int | None = Field(
        None, ge=1, le=1000,
        description=f"clustering rounds T; None: by the size rules if private, at most {DEFAULT_ROUNDS} if not",
    )  # fmt: skip
    overseed: int | None = Field(
        None, ge=1, le=1000,
        description="cells K' >= K of the first rounds, merged to K later; None: by the size rules if private, "
        "3 K from the perturbed mean, K from Algorithm 1",
    )  # fmt: skip
    merge_after: int | None = Field(
        None, ge=1, le=998, description="round T1 after which K' cells are merged to K, at most T - 2; None: T / 2 or 4"
    )

    # start
    start: Literal["algorithm1", "perturbed_mean"] = Field(
        "algorithm1",
        description="first centres of algorithm2: rows of clients (the paper's Algorithm 1) or perturbed copies of the "
        "mean; a private run always starts from the perturbed noised mean",
    )
    temperature: float = Field(
        0.5, ge=0, le=1e6, description="tau of Algorithm 1: 0 draws clients uniformly, a large value the farthest one"
    )
    perturbation: float | None = Field(
        None, gt=0, le=3,
        description="standard deviation p of the log of the factors that perturb the mean; None: by the size rules if "
        "private, else 0.3",
    )  # fmt: skip

    # releases
    clip: float = Field(3.0, gt=0, le=1e3, description="L2 clip C of whitened histograms")
    first_clip: float = Field(0.2, gt=0, le=1.0, description="L2 clip of plain histograms in the first, flat release")
    first_share: float = Field(0.04, gt=0, lt=0.5, description="share of the budget for the first, flat release")
    second_share: float = Field(0.04, gt=0, lt=0.5, description="share of the budget for the whitened mean")
    effective_tokens: float = Field(
        150.0, gt=0, allow_inf_nan=False,
        description="m_eff of the metric w ~ P sqrt(1/m_eff + P): a public guess of tokens per client, discounted for "
        "burstiness",
    )  # fmt: skip
    first_metric_floor: float = Field(1e-4, gt=0, lt=1, description="floor of the mean in the first metric")
    metric_floor: float = Field(3e-5, gt=0, lt=1, description="floor of the mean in the metric of the rounds")
    centre_floor: float = Field(1e-5, gt=0, lt=1, description="floor of a noised centre before it is renormalised")

    # scores and personalisation
    assignment_smoothing: float = Field(
        1e-6, gt=0, lt=1, description="added to every entry of a centre before the logarithm of the assignment"
    )
    start_smoothing: float = Field(
        1e-4, gt=0, lt=1, description="added to every entry of a client's row when it is compared in Algorithm 1"
    )
    personalisation: Literal["mixture", "centre"] = Field(
        "mixture",
        description="what is mixed with a client's own histogram: its own mixture of all released centres and the mean, "
        "or the centre of its cluster (the paper's)",
    )
    mixture_prior: float = Field(
        1.0, gt=0, le=1e6, description="pseudo-tokens, spread evenly, of the prior on a client's mixture weights"
    )
    mixture_steps: int = Field(30, ge=1, le=1000, description="EM steps for a client's mixture weights")
    prior_tokens: float = Field(
        1500.0, gt=0, allow_inf_nan=False,
        description="a in the base's weight a / (a + m) for a client with m tokens of its own",
    )  # fmt: skip
    weights: Literal["shared", "local"] = Field(
        "shared",
        description="a is prior_tokens for all clients, or each client chooses its own between 1/8 and 8 times that by "
        "leaving out its own tokens in turn; costs no privacy",
    )

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if self.overseed is not None and self.overseed < (self.clusters or 1):
            raise ValueError(f"overseed ({self.overseed}) must be at least clusters ({self.clusters})")
        if self.merge_after is not None and self.rounds is not None and self.merge_after > self.rounds - 2:
            raise ValueError(
                f"merge_after ({self.merge_after}) must be at most rounds - 2 ({self.rounds - 2}), because the last "
                "two rounds are pooled"
            )
        return self

    def weight_factors(self) -> tuple[float, ...]:
        """What a client may multiply prior_tokens by where weights are local."""
        return tuple(2.0**power for power in range(-3, 4))

    def for_vocabulary(self, features: int) -> Self:
        """This config with its floors and smoothing scaled to a vocabulary of so many tokens."""
        if features <= REFERENCE_FEATURES:
            return self
        return self.model_copy(update={name: getattr(self, name) * REFERENCE_FEATURES / features for name in SCALED})
