"""Settings of the method `paper_histograms`: one model for each algorithm, and what all of them share."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedcore.methods.histograms.config import DEFAULT_CLUSTERS, OutputSettings, check_cells, scaled
from fedcore.rounds.choices import ChoiceSettings

DEFAULT_ROUNDS = 50
ASSIGNMENT_SMOOTHING = 1e-6  # added to every entry of a centre before the logarithm of the assignment
START_SMOOTHING = 1e-4  # added to every entry of a client's row when it is compared in Algorithm 1
METRIC_FLOOR, EFFECTIVE_TOKENS = 3e-5, 150.0  # of the metric in which cells are merged
CENTRE_FLOOR = 1e-5  # of a noisy centre before it is renormalised


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FedAvg(Model):
    """The mean of the clients' histograms (Lemma 2.1)."""

    name: Literal["fedavg"] = "fedavg"


class Clusters(Model):
    """What all algorithms with clusters have."""

    clusters: int | None = Field(
        None,
        ge=1,
        le=1000,
        description=f"clusters K; None: {DEFAULT_CLUSTERS}, or as many as a warm start has if those are fewer",
    )
    rounds: int = Field(DEFAULT_ROUNDS, ge=1, le=1000, description="clustering rounds T, at most")
    start: Literal["algorithm1", "perturbed_mean", "uniform"] = Field(
        "algorithm1",
        description="first centres: rows of clients (the paper's Algorithm 1), or perturbed copies of the mean or of "
        "the uniform histogram",
    )
    temperature: float = Field(
        0.5, ge=0, le=1e6, description="tau of Algorithm 1: 0 draws clients uniformly, a large value the farthest one"
    )
    perturbation: float = Field(
        0.3, gt=0, le=3, description="standard deviation of the log of the factors of perturbed copies"
    )
    reduction: Literal["none", "eigenvectors", "frequency"] = Field(
        "none",
        description="cluster on fewer tokens, all others together as one: those that are largest in the leading "
        "eigenvectors of the clients' covariance (the paper's DimRed), or the most frequent ones",
    )
    keep: int | None = Field(
        None, ge=1, description="tokens that a reduction keeps; None: two fifths of the vocabulary"
    )
    personalisation: Literal["mixture", "centre"] = Field(
        "mixture",
        description="base of a client's estimate: its own mixture of all centres and the mean, or the centre of its "
        "cluster (the paper's)",
    )
    mixture_prior: float = Field(
        1.0, gt=0, le=1e6, description="pseudo-tokens of the prior on a client's mixture weights"
    )
    mixture_steps: int = Field(30, ge=1, le=1000, description="EM steps for a client's mixture weights")


class Algorithm2(Clusters):
    """Lloyd's iterations in KL."""

    name: Literal["algorithm2"] = "algorithm2"
    start: Literal["algorithm1", "perturbed_mean", "uniform"] = Field(
        "perturbed_mean", description=Clusters.model_fields["start"].description
    )
    overseed: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="cells K' >= K of the first rounds, merged to K later; None: 3 K from the perturbed mean, else K",
    )
    merge_after: int | None = Field(
        None, ge=1, le=998, description="round after which K' cells are merged to K, at most T - 2; None: T / 2 or 4"
    )

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        check_cells(self.clusters, self.overseed, self.merge_after, self.rounds)
        return self


class IFCA(Clusters):
    """Gradient steps in place of cluster means."""

    name: Literal["ifca"] = "ifca"
    learning_rate: float = Field(
        3.0,
        gt=0,
        le=1e3,
        description="eta: a centre moves eta times its cluster's share of all clients of the way to their mean",
    )


class Noisy(Clusters):
    """What the noise of the paper's private algorithms is made for. It is simulated and protects nobody."""

    accounting: Literal["kov", "exact"] = Field(
        "kov",
        description="noise from advanced composition, as in the paper's appendix B, or from the exact composition of "
        "its Gaussians",
    )
    published_epsilon: float = Field(15.0, gt=0, le=1e3, description="epsilon that the noise is made for")
    published_delta: float = Field(1e-10, gt=0, lt=1, description="delta that the noise is made for")
    published_rounds: int = Field(
        DEFAULT_ROUNDS, ge=1, le=10_000, description="rounds that the noise is made for, however many are run"
    )


class Published(Noisy):
    """Algorithm 3 as printed."""

    name: Literal["published"] = "published"
    published_noise: Literal["sum", "mean"] = Field(
        "sum", description="where the first noise is added: to a cluster's sum, or to its mean, as line 4 is printed"
    )
    published_clip: float = Field(3.0, gt=0, le=1e3, description="c: every coordinate is clipped at c / sqrt(d)")
    published_floor: float = Field(1e-3, gt=0, lt=1, description="s: floor of the first estimate b1")


class PublishedIFCA(Noisy):
    """The paper's private IFCA: one noisy gradient step a round."""

    name: Literal["published_ifca"] = "published_ifca"
    learning_rate: float = Field(3.0, gt=0, le=1e3, description=IFCA.model_fields["learning_rate"].description)


Algorithm = Annotated[FedAvg | Algorithm2 | IFCA | Published | PublishedIFCA, Field(discriminator="name")]


class PaperHistogramsConfig(ChoiceSettings):
    """The algorithms of Setlur, Feldman, Talwar 2023 and what they compare them with; none is private.

    A name in place of `algorithm` stands for its model: `{"algorithm": "ifca", "rounds": 5}` is
    `{"algorithm": {"name": "ifca", "rounds": 5}}`. Smoothing and floors are constants for vocabularies of up to 1000
    tokens (`fedcore.methods.histograms.config.scaled`).
    """

    algorithm: Algorithm = Field(
        Algorithm2(),
        description="algorithm2: the paper's clustering; fedavg: the plain mean; ifca: gradient steps; published: "
        "Algorithm 3 with simulated noise; published_ifca: gradient steps with simulated noise",
    )
    prior_tokens: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="a in the base's weight (a + c m) / (a + m) for a client with m tokens of its own; None: 800",
    )
    floor: float | None = Field(
        None, ge=0, lt=1, description="c in that weight; None: 0 if prior_tokens is given, else 0.35"
    )
    weights: Literal["shared", "local"] = Field(
        "shared",
        description="a and c are the same for all clients, or each client chooses its own a between 1/8 and 8 times "
        "prior_tokens (None: 1500), with c = 0",
    )

    def outputs(self, features: int) -> OutputSettings:
        """What clients are given by, with smoothing for a vocabulary of so many tokens."""
        own = self.algorithm
        mixture = Clusters() if isinstance(own, FedAvg) else own  # of a single mean there is nothing to mix
        return OutputSettings(
            personalisation=mixture.personalisation,
            mixture_prior=mixture.mixture_prior,
            mixture_steps=mixture.mixture_steps,
            prior_tokens=self.prior_tokens,
            floor=self.floor,
            weights=self.weights,
            assignment_smoothing=scaled(ASSIGNMENT_SMOOTHING, features),
            centre_floor=scaled(CENTRE_FLOOR, features),
        )
