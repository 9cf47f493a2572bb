"""What a private run will release, and at what price: planned from config and public facts, before data are opened."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedcore.methods.histograms import moments, sensitivities
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.reduction import tokens_kept
from fedcore.methods.histograms.sizes import Sizes, sizes_of
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts

ARGUMENT = "docs/privacy/histograms.md"
FLAT, WHITENED, VOTES, MOMENT = "flat_mean", "whitened_mean", "votes", "second_moment"
NORMS = "norms_"
POOLED = 2  # last rounds, whose sums are added; the clip is frozen in them
ONE_SUM = "one sum over all clients"
ONE_CELL = "one cell per client: all cells cost one release"


def cluster_release(t: int) -> str:
    return f"clusters_{t:03d}"


def norms_release(t: int) -> str:
    return f"{NORMS}{t:03d}"


def elects(public: PublicFacts, sizes: Sizes) -> bool:
    """Whether votes choose among the given centres."""
    return len(public.warm_start["centres"]) > sizes.cells(1)


def counts_norms(config: HistogramsConfig, t: int, rounds: int) -> bool:
    """Whether round t is followed by another clip: not where the next round is the last one."""
    return config.adaptive_clip and t <= rounds - POOLED


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A release before it has its noise. share: of the budget."""

    name: str
    round: int
    shape: tuple[int, ...]
    sensitivity: int
    share: float
    composition: str


def plan(config: HistogramsConfig, public: PublicFacts) -> list[PlannedRelease]:
    """All releases, with prices that, rounded up, sum to at most public.rho. Raises ConfigError."""
    wanted = _wanted(config, public, sizes_of(config, public))
    rho = public.rho
    while True:
        # Prices round up, hence a hair is kept back; the loop ends because the hair grows.
        rho *= 1.0 - 1e-12
        releases = [
            PlannedRelease(
                item.name,
                item.round,
                item.shape,
                item.sensitivity,
                math.sqrt(0.5 / (item.share * rho)),
                ARGUMENT,
                item.composition,
            )
            for item in wanted
        ]
        prices = [release.rho for release in releases]
        if max(sum(prices), math.fsum(prices)) <= public.rho:
            return releases


def _wanted(config: HistogramsConfig, public: PublicFacts, sizes: Sizes) -> list[_Wanted]:
    d = public.features
    largest = sensitivities.clipped_sum(public.relation)
    stages = []  # (name, shape, sensitivity, share, composition)
    if public.warm_start is None:
        stages.append((FLAT, (1, d), largest, config.first_share, ONE_SUM))
        stages.append((WHITENED, (1, d), largest, config.second_share, ONE_SUM))
    elif elects(public, sizes):
        shape = (len(public.warm_start["centres"]),)
        stages.append((VOTES, shape, largest, config.votes_share, "one vote per client: all counts cost one release"))
    if config.reduction == "eigenvectors":
        bound = sensitivities.second_moment(public.relation)
        stages.append((MOMENT, (moments.cells(d),), bound, config.moment_share, ONE_SUM))
    left = 1.0
    for stage in stages:
        left -= stage[3]
    wanted = [_Wanted(name, number, *rest) for number, (name, *rest) in enumerate(stages, start=1)]
    for t in range(1, sizes.rounds + 1):
        number, k, share = len(stages) + t, sizes.cells(t), left / sizes.rounds
        with_norms = counts_norms(config, t, sizes.rounds)
        shape = (k, _width(config, d))
        own = share * (1.0 - config.clip_share) if with_norms else share
        wanted.append(_Wanted(cluster_release(t), number, shape, largest, own, ONE_CELL if k > 1 else ONE_SUM))
        if with_norms:
            wanted.append(
                _Wanted(
                    norms_release(t),
                    number,
                    (2,),
                    largest,
                    share * config.clip_share,
                    "one count per client: both cost one release",
                )
            )
    return wanted


def _width(config: HistogramsConfig, features: int) -> int:
    """Tokens of the clustering rounds."""
    return features if config.reduction == "none" else tokens_kept(config.keep, features) + 1
