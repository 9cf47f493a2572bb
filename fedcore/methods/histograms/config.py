"""Settings of the method `histograms`: one validated model for the TOML file, the command line and the flow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from fedcore.rounds.private_settings import PrivateRunSettings

DEFAULT_CLUSTERS = 10
REFERENCE_FEATURES = 1000  # vocabulary for which floors and smoothing are meant
SCALED = ("first_metric_floor", "metric_floor", "centre_floor", "assignment_smoothing")
PAPER = "belongs to the method paper_histograms"
MOVED = {
    "algorithm": "is not a setting: use the method paper_histograms for the algorithms that are not private",
    "algorithm=private": "is not a setting: histograms has one algorithm now, leave it out",
    "start": PAPER,
    "temperature": PAPER,
    "start_smoothing": "is a constant of the method paper_histograms",
    "learning_rate": PAPER,
    "published_step": 'is an algorithm of the method paper_histograms: "published" or "published_ifca"',
    "published_noise": PAPER,
    "published_clip": PAPER,
    "published_floor": PAPER,
    "accounting": PAPER,
    "published_epsilon": PAPER,
    "published_delta": PAPER,
    "published_rounds": PAPER,
    "perturbation": "is chosen by the size rules; paper_histograms has the setting",
    "reduction=eigenvectors": 'is a value of paper_histograms only: "frequency" keeps the most frequent tokens',
    "adaptive_clip": "is no longer a setting: the clip stays as it is",
    "half_weight_tokens": "is no longer a setting: all clients weigh the same",
}


def scaled(value: float, features: int) -> float:
    """A floor or a smoothing for a vocabulary of `features` tokens: d times a floor is the mass that it takes from the
    tokens that occur.
    """
    return value if features <= REFERENCE_FEATURES else value * REFERENCE_FEATURES / features


def check_cells(clusters: int | None, overseed: int | None, merge_after: int | None, rounds: int | None) -> None:
    """Raises ValueError unless the cells of the first rounds can be merged to the clusters in time."""
    if overseed is not None and overseed < (clusters or 1):
        raise ValueError(f"overseed ({overseed}) must be at least clusters ({clusters})")
    if merge_after is not None and rounds is not None and merge_after > rounds - 2:
        raise ValueError(
            f"merge_after ({merge_after}) must be at most rounds - 2 ({rounds - 2}), because the last two rounds are "
            "pooled"
        )


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """Settings of what clients are given, as they hold for the vocabulary; described in `HistogramsConfig`."""

    personalisation: Literal["mixture", "centre"]
    mixture_prior: float
    mixture_steps: int
    prior_tokens: float | None
    floor: float | None
    weights: Literal["shared", "local"]
    assignment_smoothing: float
    centre_floor: float


class HistogramsConfig(PrivateRunSettings):
    """Private personalised histograms.

    None means "choose by the size rules". Floors and smoothing hold for vocabularies of up to 1000 tokens
    (`for_vocabulary`).

    The constants were settings. No measurement in docs/notes/privacy-histograms.md and no table of the paper has
    others.
    first_clip: L2 bound of plain histograms in the first, flat release
    first_share, second_share: of the budget, for the first release (None: 0.04, or 0.08 in a run without rounds) and
        for the whitened mean (all that is left without rounds)
    first_metric_floor, metric_floor: of the mean in the first metric, and in that of the rounds
    centre_floor: of a noisy centre before it is renormalised; of a denoised one a tenth of it
    assignment_smoothing: added to every entry of a centre before the logarithm of the assignment
    mixture_prior: pseudo-tokens, spread evenly, of the prior on a client's mixture weights
    mixture_steps: EM steps for a client's mixture weights
    """

    first_clip: ClassVar[float] = 0.2
    first_share: ClassVar[float | None] = None
    second_share: ClassVar[float] = 0.04
    first_metric_floor: ClassVar[float] = 3e-5
    metric_floor: ClassVar[float] = 3e-5
    centre_floor: ClassVar[float] = 1e-5
    assignment_smoothing: ClassVar[float] = 1e-6
    mixture_prior: ClassVar[float] = 1.0
    mixture_steps: ClassVar[int] = 30

    # sizes
    clusters: int | None = Field(
        None,
        ge=1,
        le=1000,
        description=f"clusters K; None: {DEFAULT_CLUSTERS}, or fewer where the budget does not allow as many",
    )
    rounds: int | None = Field(None, ge=1, le=1000, description="clustering rounds T; None: by the size rules")
    overseed: int | None = Field(
        None, ge=1, le=1000, description="cells K' >= K of the first rounds, merged to K later; None: by the size rules"
    )
    merge_after: int | None = Field(
        None, ge=1, le=998, description="round T1 after which K' cells are merged to K, at most T - 2; None: T / 2 or 4"
    )

    # dimensionality reduction
    reduction: Literal["none", "frequency"] = Field(
        "none",
        description="cluster on the most frequent tokens, all others together as one; the others are filled from the "
        "mean",
    )
    keep: int | None = Field(
        None, ge=1, description="tokens that a reduction keeps; None: two fifths of the vocabulary"
    )

    # releases
    clip: float = Field(3.0, gt=0, le=1e3, description="L2 clip C of whitened histograms")
    effective_tokens: float = Field(
        150.0,
        gt=0,
        allow_inf_nan=False,
        description="m_eff of the metric w ~ P sqrt(1/m_eff + P): a public guess of tokens per client, discounted for "
        "burstiness",
    )

    # scores and personalisation
    personalisation: Literal["mixture", "centre"] = Field(
        "mixture",
        description="what is mixed with a client's own histogram: its own mixture of all released centres and the "
        "mean, or the centre of its cluster (the paper's)",
    )
    prior_tokens: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="a in the base's weight (a + c m) / (a + m) for a client that has m tokens; None: chosen by "
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
    def _sizes_agree(self) -> Self:
        check_cells(self.clusters, self.overseed, self.merge_after, self.rounds)
        return self

    @property
    def outputs(self) -> OutputSettings:
        return OutputSettings(**{field.name: getattr(self, field.name) for field in fields(OutputSettings)})

    def for_vocabulary(self, features: int) -> Self:
        """This config with its floors and smoothing for a vocabulary of `features` tokens."""
        return self.model_copy(update={name: scaled(getattr(self, name), features) for name in SCALED})


CONSTANTS: Final = [name for name in HistogramsConfig.__annotations__ if name in HistogramsConfig.__class_vars__]
FIXED: Final[Mapping[str, float | None]] = {
    "perturbation": None,
    **{name: getattr(HistogramsConfig, name) for name in CONSTANTS},
}
