"""How many rounds and cells a private budget allows, and their utility. The rules were tuned on the synthetic
preset, never on data of people.

What matters is the norm of an average cell's sum against the norm of its noise,

    SNR = n mu / (K C sqrt(T d)),   mu = sqrt(2 rho),

n the *declared* number of clients, a public fact. Too many rounds or cells lose even at large budgets. The rules look
at b, the SNR of 8 rounds with a single cell (`signal_to_noise`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.histograms.config import DEFAULT_CLUSTERS, HistogramsConfig
from fedcore.methods.histograms.pool import FORGETTING, best_history
from fedcore.methods.histograms.reduction import tokens_kept
from fedcore.methods.histograms.sensitivities import sensitivity_factor
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts, Worth

REFERENCE_ROUNDS = 8
CLUSTERS_PER_SNR = 0.45
ROUNDS = ((18.0, 8), (8.0, 7), (5.0, 6), (0.0, 5))  # least b, rounds
LEAST_FOR_CLUSTERS = 4.0  # b below which one mean serves clients better, or clusters gain too little
LEAST_FOR_MORE = 5.0  # b below which there are two clusters
MORE_CLUSTERS = (  # least b, clusters from it on
    (LEAST_FOR_CLUSTERS, 2),
    (LEAST_FOR_MORE, 3),
    *((k / CLUSTERS_PER_SNR, k + 1) for k in range(3, DEFAULT_CLUSTERS)),
)
LOSS, LOSS_POWER = 0.0229, -1.65  # of `mean_loss`; measured on five sets (docs/notes/histograms.md)
Word = Literal["none", "weak", "fair", "good"]
WORDS: tuple[tuple[float, Word], ...] = ((0.0025, "good"), (0.005, "fair"), (0.35, "weak"), (math.inf, "none"))
EXPECT: dict[Word, str] = {
    "good": "about the best mean without privacy, and better where clients form clusters",
    "fair": "about as good as the best mean without privacy",
    "weak": "one mean for all clients, worse than the best one without privacy",
    "none": "less than what was ever measured, and perhaps no better than nothing",
}
WARM_ROUNDS = 2  # from centres of an earlier run; the last two rounds are pooled, so both count
GROWING_ROUNDS = 3  # with cells that were split, and have to find their place
WARM_CELLS = 2  # times the clusters of the rules
LARGE_PERTURBATION, SMALL_PERTURBATION = 0.5, 0.3
FIRST_SHARE, FIRST_SHARE_OF_MEAN = 0.04, 0.08  # of the flat release, with and without clustering rounds


@dataclass(frozen=True, slots=True)
class Sizes:
    """rounds T, clusters K, cells K' >= K of the first merge_after rounds (0: no merge), perturbation p.

    T is 0 where the mean serves all clients: then K is 1.
    """

    rounds: int
    clusters: int
    overseed: int
    merge_after: int
    perturbation: float

    def cells(self, round: int) -> int:
        """Cells of clustering round 1 .. T."""
        return self.overseed if round <= self.merge_after else self.clusters


def signal_to_noise(nominal_clients: int, features: int, rho: float, clip: float) -> float:
    """b = n mu / (C sqrt(8 d)): the SNR of 8 rounds with a single cell."""
    return nominal_clients * math.sqrt(2 * rho) / (clip * math.sqrt(REFERENCE_ROUNDS * features))


def size_rules(
    nominal_clients: int, features: int, rho: float, clip: float = 3.0, clusters: int | None = None
) -> Sizes:
    """The sizes of a private run. Pure; every size except p grows (never falls) with nominal_clients and with rho.

    rho: budget of the run. clusters: K; None: 1 to 10, as many as keep an SNR of about 2.

    A single cluster is the mean, which needs no clustering rounds. Where the SNR is small there are fewer rounds, then
    fewer clusters; where it is large, more cells to merge from.
    What the thresholds give on the preset is in `docs/notes/privacy-histograms.md`.
    """
    b = signal_to_noise(nominal_clients, features, rho, clip)
    k = clusters or _clusters(b)
    if k == 1:
        return Sizes(0, 1, 1, 0, SMALL_PERTURBATION)
    rounds = next(rounds for least, rounds in ROUNDS if b >= least)
    overseed, p = k, LARGE_PERTURBATION
    if b >= 13 * k:
        overseed, p = 3 * k, SMALL_PERTURBATION
    elif b >= 18 and b >= 2 * k:
        overseed = math.ceil(1.6 * k)
    return Sizes(rounds, k, overseed, rounds // 2 if overseed > k else 0, p)


def _clusters(b: float) -> int:
    if b < LEAST_FOR_CLUSTERS:
        return 1
    return 2 if b < LEAST_FOR_MORE else min(DEFAULT_CLUSTERS, math.ceil(CLUSTERS_PER_SNR * b))


def sizes_of(config: HistogramsConfig, public: PublicFacts) -> Sizes:
    """The sizes of a run: what the config names, the rest by rule. Raises ConfigError if they do not fit together.

    Another relation than add_or_remove_one costs noise, which counts as a smaller budget; fewer tokens count as a
    smaller vocabulary. For a warm start see `_sizes_of_warm_start`.
    """
    chosen = size_rules(*accumulated_budget(config, public), config.clip, config.clusters)
    if public.warm_start is not None:
        centres = len(public.warm_start["centres"])
        chosen = _sizes_of_warm_start(config, chosen, centres, continues_series(config, public))
    return with_merge(replace(chosen, rounds=config.rounds or chosen.rounds), config.overseed, config.merge_after)


def with_merge(chosen: Sizes, overseed: int | None, merge_after: int | None) -> Sizes:
    """The sizes with the round after which cells are merged, if there are more of them than clusters.

    overseed, merge_after: as the settings name them. Raises ConfigError if these leave too few rounds after the merge.
    """
    k = chosen.clusters if overseed is None else min(chosen.clusters, overseed)
    cells = chosen.overseed if overseed is None else overseed
    if cells <= k:
        return replace(chosen, clusters=k, overseed=cells, merge_after=0)
    after = merge_after or min(4, chosen.rounds // 2)
    if after <= chosen.rounds - 2:
        return replace(chosen, clusters=k, overseed=cells, merge_after=after)
    if overseed is None and merge_after is None:
        return replace(chosen, clusters=k, overseed=k, merge_after=0)
    raise ConfigError(
        f"{cells} cells cannot be merged to {k} after round {after} of {chosen.rounds}: the last two rounds are "
        "pooled.",
        "Raise rounds, or lower merge_after or overseed.",
    )


def effective_budget(config: HistogramsConfig, public: PublicFacts) -> tuple[int, int, float]:
    """(declared clients, features, rho) that the size rules of a private run reckon with. Raises ConfigError."""
    features = public.features
    if config.reduction != "none":
        features = tokens_kept(config.keep, features) + 1
    return _nominal(config, public), features, rho_of(public) / sensitivity_factor(public.relation) ** 2


def series_before(config: HistogramsConfig, public: PublicFacts) -> Mapping[str, np.ndarray] | None:
    """The warm start of a run that adds to what earlier runs released, which it then holds; None for other runs.

    A run on fewer tokens does not add to it: it has sums of these tokens only, and another run may choose others.
    """
    start = public.warm_start
    return start if config.reduction == "none" and start is not None and "pool_sums" in start else None


def continues_series(config: HistogramsConfig, public: PublicFacts) -> bool:
    """Whether the run adds to what earlier runs released."""
    return series_before(config, public) is not None


def accumulated_budget(config: HistogramsConfig, public: PublicFacts) -> tuple[int, int, float]:
    """`effective_budget`, but with rho of a run whose two pooled rounds alone would have as little noise as the sums
    of the series after this run, in the cell with the least noise. Without a series: that of this run.
    """
    nominal, features, rho = effective_budget(config, public)
    before = series_before(config, public)
    if before is None:
        return nominal, features, rho
    added = 2 * rho / config.clip**2  # rounds of rho / T each add 1 / (C sigma)**2 = 2 rho / (T C**2)
    weights, variances = (values[:-1] for values in remembered(before))
    return nominal, features, max(rho, float(((weights + added) ** 2 / (variances + added)).max()) * config.clip**2 / 2)


def remembered(start: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(k + 1,) weights and variances of a series in the next run, by the history in use: those of the cells, then that
    of all clients.
    """
    best = best_history(start)
    weights, variances = (np.atleast_2d(start[name])[best] for name in ("pool_weights", "pool_variances"))
    return FORGETTING[best] * weights, FORGETTING[best] ** 2 * variances


def _sizes_of_warm_start(config: HistogramsConfig, chosen: Sizes, centres: int, series: bool) -> Sizes:
    """The sizes of a run that starts from so many centres; chosen: those of a run without a warm start, but with the
    budget of a whole series if the run continues one.

    K clusters: as many as the settings name. If they name none, all of the centres, up to twice as many as the rules
    chose, because two rounds in place of eight leave half the noise.

    - As many centres as clusters: two rounds suffice.
    - Fewer: the other clusters start from the perturbed mean, with the rounds of a run without a warm start. In a
      series there are never fewer clusters than centres because of the rules, and cells are split for what is missing:
      three rounds do.
    - More: they are over-seeded cells, as many as the rules allow. If there are more centres still, those with
      the largest counts are used.
    """
    k = chosen.clusters
    if config.clusters is None:
        k = max(centres, k if series else 1) if centres <= WARM_CELLS * k else min(k, centres)
    if centres == k:
        rounds = WARM_ROUNDS
    elif series and centres < k:
        rounds = min(chosen.rounds, GROWING_ROUNDS)
    else:
        rounds = max(chosen.rounds, 1)
    return Sizes(rounds, k, max(min(centres, chosen.overseed), k), 0, chosen.perturbation)


def rho_of(public: PublicFacts) -> float:
    """Of the run. Raises ConfigError without one."""
    if public.rho is None or not public.rho > 0:
        raise ConfigError(
            "a histograms run needs a privacy budget.",
            "Set a budget for the population, or train paper_histograms, which is not private.",
        )
    return public.rho


def _nominal(config: HistogramsConfig, public: PublicFacts) -> int:
    nominal = config.nominal_clients or public.nominal_clients
    if nominal is None:
        raise ConfigError(
            "Private histograms need a declared number of clients, because the exact count is not public.",
            "Set nominal_clients in the settings, or declare it when the population is made.",
        )
    return nominal


# --- what a budget buys ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sketch:
    """One run as it would be planned. rounds T, clusters K (none in a run that releases a mean alone), cells K' of the
    first rounds, releases in all.

    strength: b of `signal_to_noise`, loss_nats: by `expected_loss`, in_words: what that means. Of a run that continues
    a series they are those of all that the series has released by its end.
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
    sizes, (b, loss) = sizes_of(config, public), expected_loss(config, public)
    clusters = sizes.clusters if sizes.clusters > 1 else 0
    return asdict(Sketch(sizes.rounds, clusters, sizes.cells(1), len(plan), b, in_words(loss), loss))


def expected_loss(config: HistogramsConfig, public: PublicFacts) -> tuple[float, float]:
    """(b, nats of KL that the run's estimates lose to those of the mean without privacy at the same weights).

    It counts the noise of the mean, and nothing that clusters or better weights may win: that depends on the data. If
    the rules choose the clusters, it is the most of this and any larger budget, so that more budget never seems to cost
    more.
    """
    sizes, (nominal, features, rho) = sizes_of(config, public), effective_budget(config, public)
    b = signal_to_noise(*accumulated_budget(config, public), config.clip)
    rho = _rho_of_mean(config, public, rho, sizes.clusters)
    loss = mean_loss(signal_to_noise(nominal, features, rho, config.clip))
    later = [] if config.clusters else [(least, k) for least, k in MORE_CLUSTERS if least >= b]
    return b, max([loss, *(mean_loss(least * math.sqrt(part_of_mean(k))) for least, k in later)])


def part_of_mean(clusters: int, cold: bool = True) -> float:
    """Of a run's budget, in the mean F: K cells have K times the noise of one sum over all clients. cold: whether the
    run makes the releases before the rounds.
    """
    if not cold:
        return 1.0 / clusters
    before = HistogramsConfig.second_share
    return 1.0 - FIRST_SHARE_OF_MEAN if clusters == 1 else before + (1.0 - FIRST_SHARE - before) / clusters


def _rho_of_mean(config: HistogramsConfig, public: PublicFacts, rho: float, clusters: int) -> float:
    """Of one sum over all clients that has as little noise as the mean F after this run."""
    before = series_before(config, public)
    if before is None:
        return rho * part_of_mean(clusters, public.warm_start is None)
    weights, variances = (float(values[-1]) for values in remembered(before))
    added = 2 * rho * part_of_mean(clusters, cold=False) / config.clip**2
    return (weights + added) ** 2 / (variances + added) * config.clip**2 / 2


def mean_loss(b: float) -> float:
    """Nats that a mean of the strength b loses: the strength of a run whose only release it is."""
    return LOSS * b**LOSS_POWER


def worth(config: HistogramsConfig, public: PublicFacts) -> Worth:
    """What to expect of the budget, by `expected_loss`. Raises ConfigError as `sizes_of` does."""
    b, loss = expected_loss(config, public)
    word = _word(loss)
    expect = f"{EXPECT[word]} (strength {b:.2g}, loss about {loss:.2g} nats above that mean)"
    return Worth(word, expect, loss, "nats")


def in_words(loss: float) -> str:
    """What a loss in nats means."""
    return f"{_word(loss)}: {EXPECT[_word(loss)]}"


def _word(loss: float) -> Word:
    return next(word for most, word in WORDS if loss <= most)
