"""What a private run will release, and its cost: planned from config and public facts, before data are opened."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedcore.methods.histograms import sensitivities, weights
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.reduction import tokens_kept
from fedcore.methods.histograms.sizes import FIRST_SHARE, FIRST_SHARE_OF_MEAN, continues_series, rho_of, sizes_of
from fedcore.methods.histograms.weights import PAIRS, WEIGHTS
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts

ARGUMENT = "docs/privacy/histograms.md"
FLAT, WHITENED = "flat_mean", "whitened_mean"
POOLED = 2  # last rounds, whose sums are added
POOLED_SHARE = 2.0  # times the budget of an earlier round, whose sums only find the cells
ONE_SUM = "one sum over all clients"
ONE_CELL = "one cell per client: all cells cost one release"
ONE_SUM_OF_HALVES = "one sum over all clients, each with both halves of its data"


def cluster_release(t: int) -> str:
    """Planned name of the sums of clustering round t = 1 .. T."""
    return f"clusters_{t:03d}"


def plan(config: HistogramsConfig, public: PublicFacts) -> list[PlannedRelease]:
    """All releases, with costs that, rounded up, sum to at most public.rho.

    Raises ConfigError without a budget or a declared number of clients, and for sizes that do not fit together.
    """
    wanted = _with_weights(config, public, _wanted(config, public))
    budget = rho = rho_of(public)
    while True:
        # Prices round up, hence a hair is kept back; the loop ends because the hair grows.
        rho *= 1.0 - 1e-12
        releases = [release.priced(rho) for release in wanted]
        prices = [release.rho for release in releases]
        if max(sum(prices), math.fsum(prices)) <= budget:
            return releases


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A release before it has its noise. share: of the budget. optional: whether the run can end before it."""

    name: str
    round: int
    shape: tuple[int, ...]
    sensitivity: int
    share: float
    composition: str
    optional: bool = False

    def priced(self, rho: float) -> PlannedRelease:
        """With the noise for which it costs its share of rho."""
        sigma = math.sqrt(0.5 / (self.share * rho))
        return PlannedRelease(
            *(self.name, self.round, self.shape, self.sensitivity, sigma, ARGUMENT, self.composition),
            optional=self.optional,
        )


def _with_weights(config: HistogramsConfig, public: PublicFacts, wanted: list[_Wanted]) -> list[_Wanted]:
    """These, and as the last one that of the weights if it is worth making: its share comes off all others."""
    if weights.why_not_released(config, public):
        return wanted
    share = weights.share_of(config, public)
    others = [replace(release, share=release.share * (1.0 - share)) for release in wanted]
    bound = sensitivities.signed_sum(public.relation)
    number = wanted[-1].round + 1
    return [*others, _Wanted(WEIGHTS, number, (len(PAIRS),), bound, share, ONE_SUM_OF_HALVES, optional=True)]


def _wanted(config: HistogramsConfig, public: PublicFacts) -> list[_Wanted]:
    """The releases before the clustering rounds, each in a round of its own, then those of the rounds."""
    sizes, d, clipped_sum = sizes_of(config, public), public.features, sensitivities.clipped_sum(public.relation)
    wanted: list[_Wanted] = []

    def before(name: str, shape: tuple[int, ...], sensitivity: int, share: float, composition: str) -> None:
        wanted.append(_Wanted(name, len(wanted) + 1, shape, sensitivity, share, composition))

    if public.warm_start is None:
        first = config.first_share or (FIRST_SHARE if sizes.rounds else FIRST_SHARE_OF_MEAN)
        before(FLAT, (1, d), clipped_sum, first, ONE_SUM)
        before(WHITENED, (1, d), clipped_sum, config.second_share if sizes.rounds else 1.0 - first, ONE_SUM)
        if not sizes.rounds:
            return wanted
    left = 1.0
    for release in wanted:
        left -= release.share
    stages, last = len(wanted), sizes.rounds - POOLED
    even = last <= 0 or continues_series(config, public)  # all rounds are pooled
    parts = [1.0 if even or t <= last else POOLED_SHARE for t in range(1, sizes.rounds + 1)]
    width = d if config.reduction == "none" else tokens_kept(config.keep, d) + 1
    for t, part in enumerate(parts, 1):
        k, name = sizes.cells(t), cluster_release(t)
        composition = ONE_CELL if k > 1 else ONE_SUM
        # The round before it leaves as many centres and reseeds none of them; earlier rounds may do either.
        optional = t == sizes.rounds > max(1, sizes.merge_after)
        share = left * part / sum(parts)
        wanted.append(_Wanted(name, stages + t, (k, width), clipped_sum, share, composition, optional))
    return wanted
