"""What a private run of this budget would buy, from public facts alone: for a plan of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.sensitivities import spread
from fedcore.methods.histograms.sizes import bought, sizes_of, strength
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts

WORDS = (  # least strength (fedcore.methods.histograms.sizes), what it means; the steps are those of the size rules
    (50.0, "strong: noise costs little"),
    (18.0, "good: noise is visible, and the clusters are worth it"),
    (8.0, "fair: noise costs about as much as some of the clusters bring"),
    (3.0, "weak: few clusters, and little better than one mean for all"),
    (0.0, "too weak for clusters: expect no more than a mean"),
)


@dataclass(frozen=True, slots=True)
class Sketch:
    """One run as it would be planned. rounds T, clusters K, cells K' of the first rounds, releases in all.

    strength: SNR of eight rounds with one cell; loss_nats: estimate of `noise_loss`.
    """

    rounds: int
    clusters: int
    first_cells: int
    releases: int
    strength: float
    in_words: str
    loss_nats: float


def budget_sketch(config: HistogramsConfig, public: PublicFacts, plan: Sequence[PlannedRelease]) -> dict[str, Any]:
    """The fields of `Sketch`, as JSON."""
    sizes = sizes_of(config, public)
    nominal, features, effective = bought(config, public)
    b = strength(nominal, features, effective, config.clip)
    sigma = [planned.noise_multiplier for planned in plan if planned.name.startswith("clusters")][-1]
    loss = noise_loss(
        sigma * spread(public.relation), config.clip, features, nominal / sizes.clusters, pooled=sizes.rounds > 1
    )
    return asdict(Sketch(sizes.rounds, sizes.clusters, sizes.cells(1), len(plan), b, strength_in_words(b), loss))


def noise_loss(sigma: float, clip: float, features: int, clients: float, pooled: bool) -> float:
    """Nats of KL that noise adds to a cluster's centre: (C sigma)**2 sum(w / P) / (2 N**2), N clients of the cluster.

    Before shrinkage, which saves a part of it. sum(w / P) is not known beforehand and set to its largest value, d: for
    w ~ P sqrt(1 / m_eff + P) it is d where all tokens are equally frequent, and less otherwise (Chebyshev's sum
    inequality). sigma: noise multiplier times the spread of the relation. pooled: two rounds are added, which halves
    the loss.
    """
    return (clip * sigma) ** 2 * features / (2 * clients**2) / (2 if pooled else 1)


def strength_in_words(b: float) -> str:
    return next(words for least, words in WORDS if b >= least)
