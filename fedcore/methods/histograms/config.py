"""Settings of the method `histograms`: one validated model for the TOML file, the command line and the flow."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedcore.rounds.cohort_settings import ABLE, AtLeast, ChosenCohorts, Horizon, RecentCohorts

DEFAULT_CLUSTERS = 10
REFERENCE_FEATURES = 1000  # vocabulary for which floors and smoothing are meant
SCALED = (
    "first_metric_floor",
    "metric_floor",
    "centre_floor",
    "assignment_smoothing",
    "start_smoothing",
    "published_floor",
)
DEFAULT_ROUNDS = 50  # non-private; private runs take theirs from `fedcore.methods.histograms.sizes`


class HistogramsConfig(BaseModel):
    """Private personalised histograms (Setlur, Feldman, Talwar 2023), its private pipeline and its baselines.

    None means "choose by the size rules" (private) or the default named in the description (not private). Floors and
    smoothing hold for vocabularies of up to 1000 tokens; a larger one divides them by d / 1000 (`for_vocabulary`),
    because d times a floor is the mass that it takes from the tokens that occur.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Literal["private", "algorithm2", "fedavg", "ifca", "published"] = Field(
        "private",
        description="private: clustering with noised, whitened releases; algorithm2: the paper's clustering without "
        "privacy; fedavg: the plain mean without privacy; ifca: gradient steps instead of cluster means, without "
        "privacy; published: the paper's Algorithm 3 as printed, with simulated noise, which protects nobody",
    )

    # the budget of a private run
    epsilon: float | None = Field(
        None, gt=0, le=100, description="this run's share of the population's budget; None: all that is left"
    )
    horizon: Horizon = None
    at_least: AtLeast = None
    recent_cohorts: RecentCohorts = None
    cohorts: ChosenCohorts = ABLE
    nominal_clients: int | None = Field(
        None, ge=1, description="size of the population that the size rules assume; None: as declared in the manifest"
    )
    anyway: bool = Field(
        False, description="make a private run also if its budget is too small for it to be of any use"
    )
    spare_releases: int = Field(
        0, ge=0, le=10, description="releases set aside beyond the plan, to draw one again that a crash lost"
    )

    # sizes
    clusters: int | None = Field(
        None,
        ge=1,
        le=1000,
        description=f"clusters K; None: {DEFAULT_CLUSTERS}, or fewer where a private budget cannot pay for them",
    )
    rounds: int | None = Field(
        None,
        ge=1,
        le=1000,
        description=f"clustering rounds T; None: by the size rules if private, at most {DEFAULT_ROUNDS} if not",
    )
    overseed: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="cells K' >= K of the first rounds, merged to K later; None: by the size rules if private, "
        "3 K from the perturbed mean, K from Algorithm 1",
    )
    merge_after: int | None = Field(
        None, ge=1, le=998, description="round T1 after which K' cells are merged to K, at most T - 2; None: T / 2 or 4"
    )

    # start
    start: Literal["algorithm1", "perturbed_mean", "uniform"] | None = Field(
        None,
        description="first centres of algorithm2, ifca and published: rows of clients (the paper's Algorithm 1), "
        "perturbed copies of the mean, or of the uniform histogram; None: perturbed_mean for algorithm2, algorithm1 "
        "for the others; a private run always starts from the perturbed noised mean",
    )
    temperature: float = Field(
        0.5, ge=0, le=1e6, description="tau of Algorithm 1: 0 draws clients uniformly, a large value the farthest one"
    )
    perturbation: float | None = Field(
        None,
        gt=0,
        le=3,
        description="standard deviation p of the log of the factors that perturb the mean; None: by the size rules if "
        "private, else 0.3",
    )

    # dimensionality reduction
    reduction: Literal["none", "eigenvectors", "frequency"] = Field(
        "none",
        description="cluster on fewer tokens, all others together as one: keep those that are largest in the leading "
        "eigenvectors of the clients' covariance (the paper's), or the most frequent ones; the others are filled from "
        "the mean",
    )
    keep: int | None = Field(
        None, ge=1, description="tokens that a reduction keeps; None: two fifths of the vocabulary"
    )

    # variants of the paper without privacy
    learning_rate: float = Field(
        3.0,
        gt=0,
        le=1e3,
        description="eta of ifca: a centre moves eta times its cluster's share of all clients of the way to their mean",
    )
    published_step: Literal["centring", "ifca"] = Field(
        "centring", description="step of published: Algorithm 3, or one noised gradient step of ifca a round"
    )
    published_noise: Literal["sum", "mean"] = Field(
        "sum",
        description="where Algorithm 3 adds its first noise: to a cluster's sum, or to its mean, as line 4 is printed",
    )
    published_clip: float = Field(
        3.0, gt=0, le=1e3, description="c of Algorithm 3: every coordinate is clipped at c / sqrt(d)"
    )
    published_floor: float = Field(1e-3, gt=0, lt=1, description="s of Algorithm 3: floor of the first estimate b1")
    accounting: Literal["kov", "exact"] = Field(
        "kov",
        description="noise of published from advanced composition, as in the paper's appendix B, or from the exact "
        "composition of its Gaussians",
    )
    published_epsilon: float = Field(15.0, gt=0, le=1e3, description="epsilon that the noise of published is made for")
    published_delta: float = Field(1e-10, gt=0, lt=1, description="delta that the noise of published is made for")
    published_rounds: int = Field(
        DEFAULT_ROUNDS,
        ge=1,
        le=10_000,
        description="rounds that the noise of published is made for, however many are run",
    )

    # releases
    clip: float = Field(3.0, gt=0, le=1e3, description="L2 clip C of whitened histograms")
    first_clip: float = Field(0.2, gt=0, le=1.0, description="L2 clip of plain histograms in the first, flat release")
    first_share: float | None = Field(
        None,
        gt=0,
        lt=0.5,
        description="share of the budget for the first, flat release; None: 0.04, or 0.08 in a run without rounds",
    )
    second_share: float = Field(
        0.04, gt=0, lt=0.5, description="share of the budget for the whitened mean; all that is left without rounds"
    )
    votes_share: float = Field(
        0.04,
        gt=0,
        lt=0.5,
        description="share of the budget for the votes that choose among the centres of a warm start, if they are more "
        "than the cells",
    )
    moment_share: float = Field(
        0.3,
        gt=0,
        lt=0.9,
        description="share of the budget for the second moments of reduction = eigenvectors, if private",
    )
    adaptive_clip: bool = Field(
        False,
        description="move the clip C towards the median norm, from one more noised count in every round but the "
        "last two",
    )
    clip_share: float = Field(
        0.05, gt=0, lt=0.5, description="share of a round's budget for the count of norms of adaptive_clip"
    )
    half_weight_tokens: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="m_0: a private run weights a client with m tokens by m / (m + m_0), after the clip; 0: all alike",
    )
    effective_tokens: float = Field(
        150.0,
        gt=0,
        allow_inf_nan=False,
        description="m_eff of the metric w ~ P sqrt(1/m_eff + P): a public guess of tokens per client, discounted for "
        "burstiness",
    )
    first_metric_floor: float = Field(3e-5, gt=0, lt=1, description="floor of the mean in the first metric")
    metric_floor: float = Field(3e-5, gt=0, lt=1, description="floor of the mean in the metric of the rounds")
    centre_floor: float = Field(
        1e-5,
        gt=0,
        lt=1,
        description="floor of a noised centre before it is renormalised; of a denoised one a tenth of it",
    )

    # scores and personalisation
    assignment_smoothing: float = Field(
        1e-6, gt=0, lt=1, description="added to every entry of a centre before the logarithm of the assignment"
    )
    start_smoothing: float = Field(
        1e-4, gt=0, lt=1, description="added to every entry of a client's row when it is compared in Algorithm 1"
    )
    personalisation: Literal["mixture", "centre"] = Field(
        "mixture",
        description="what is mixed with a client's own histogram: its own mixture of all released centres and the "
        "mean, or the centre of its cluster (the paper's)",
    )
    mixture_prior: float = Field(
        1.0, gt=0, le=1e6, description="pseudo-tokens, spread evenly, of the prior on a client's mixture weights"
    )
    mixture_steps: int = Field(30, ge=1, le=1000, description="EM steps for a client's mixture weights")
    prior_tokens: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="a in the base's weight (a + c m) / (a + m) for a client with m tokens of its own; None: chosen by "
        "a private release where the budget and the population allow it, else 800, or 500 where the budget is very "
        "small",
    )
    floor: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="c in that weight, the base's share that no number of tokens takes away; None: 0 if prior_tokens "
        "is named, else chosen with it, or 0.35, or 0.2 where the budget is very small",
    )
    weights: Literal["shared", "local"] = Field(
        "shared",
        description="a and c are the same for all clients, or each client chooses its own a between 1/8 and 8 times "
        "prior_tokens (None: 1500) by leaving out its own tokens in turn, with c = 0; costs no privacy",
    )

    @model_validator(mode="after")
    def _shares_agree(self) -> Self:
        moments = self.moment_share if self.reduction == "eigenvectors" else 0.0
        if max((self.first_share or 0.04) + self.second_share, self.votes_share) + moments >= 1:
            raise ValueError("the shares of the releases before the rounds leave nothing for the rounds")
        return self

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if self.algorithm in ("ifca", "published") and (self.overseed or self.merge_after):
            raise ValueError(f"{self.algorithm} has no cells to merge: overseed and merge_after do not apply")
        if self.algorithm == "fedavg" and self.reduction != "none":
            raise ValueError("fedavg has nothing to reduce: the mean is the mean of all tokens")
        if self.overseed is not None and self.overseed < (self.clusters or 1):
            raise ValueError(f"overseed ({self.overseed}) must be at least clusters ({self.clusters})")
        if self.merge_after is not None and self.rounds is not None and self.merge_after > self.rounds - 2:
            raise ValueError(
                f"merge_after ({self.merge_after}) must be at most rounds - 2 ({self.rounds - 2}), because the last "
                "two rounds are pooled"
            )
        return self

    @property
    def first_centres(self) -> str:
        """The start, chosen."""
        return self.start or ("perturbed_mean" if self.algorithm == "algorithm2" else "algorithm1")

    def weight_factors(self) -> tuple[float, ...]:
        """What a client may multiply prior_tokens by where weights are local."""
        return tuple(2.0**power for power in range(-3, 4))

    def for_vocabulary(self, features: int) -> Self:
        """This config with its floors and smoothing scaled to a vocabulary of so many tokens."""
        if features <= REFERENCE_FEATURES:
            return self
        return self.model_copy(update={name: getattr(self, name) * REFERENCE_FEATURES / features for name in SCALED})
