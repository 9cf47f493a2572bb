"""How many rounds and cells a private budget can pay for: rules tuned on the synthetic preset, never on data of people.

What matters is the norm of an average cell's sum against the norm of its noise,

    SNR = n mu / (K C sqrt(T d)),   mu = sqrt(2 rho),

n the *nominal* number of clients, a public fact. Too many rounds or cells lose even at large budgets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedcore.errors import ConfigError
from fedcore.methods.histograms.config import DEFAULT_CLUSTERS, DEFAULT_ROUNDS, HistogramsConfig
from fedcore.methods.histograms.reduction import tokens_kept
from fedcore.methods.histograms.sensitivities import spread
from fedcore.rounds.method import PublicFacts

REFERENCE_ROUNDS = 8
CLUSTERS_PER_STRENGTH = 0.45
ROUNDS = ((50.0, 8), (18.0, 6), (8.0, 5), (3.0, 4), (0.0, 3))  # least strength, rounds
WARM_ROUNDS = 2  # from centres of an earlier run; the last two rounds are pooled, so both count
WARM_CELLS = 2  # times the clusters of the rules
LARGE_PERTURBATION, SMALL_PERTURBATION = 0.5, 0.3


@dataclass(frozen=True, slots=True)
class Sizes:
    """rounds T, clusters K, cells K' >= K of the first merge_after rounds (0: no merge), perturbation p."""

    rounds: int
    clusters: int
    overseed: int
    merge_after: int
    perturbation: float

    def cells(self, round: int) -> int:
        """Cells of clustering round 1 .. T."""
        return self.overseed if round <= self.merge_after else self.clusters


def strength(nominal_clients: int, features: int, rho: float, clip: float) -> float:
    """n mu / (C sqrt(8 d)): the SNR of 8 rounds with a single cell."""
    return nominal_clients * math.sqrt(2 * rho) / (clip * math.sqrt(REFERENCE_ROUNDS * features))


def size_rules(
    nominal_clients: int, features: int, rho: float, clip: float = 3.0, clusters: int | None = None
) -> Sizes:
    """The sizes of a private run. Pure; every size except p grows (never falls) with nominal_clients and with rho.

    rho: zCDP budget of the run. clusters: K if it is given, else 1 to 10, as many as keep an SNR of about 2.

    Where the SNR is small there are fewer rounds, then fewer clusters; where it is large, more cells to merge from.
    What the thresholds give on the preset is in `docs/privacy/histograms.md`.
    """
    b = strength(nominal_clients, features, rho, clip)
    k = clusters or min(DEFAULT_CLUSTERS, max(1, math.ceil(CLUSTERS_PER_STRENGTH * b)))
    if k == 1:
        return Sizes(1, 1, 1, 0, SMALL_PERTURBATION)
    rounds = next(rounds for least, rounds in ROUNDS if b >= least)
    overseed, p = k, LARGE_PERTURBATION
    if b >= 13 * k:
        overseed, p = 3 * k, SMALL_PERTURBATION
    elif b >= 18 and b >= 2 * k:
        overseed = math.ceil(1.6 * k)
    return Sizes(rounds, k, overseed, rounds // 2 if overseed > k else 0, p)


def sizes_of(config: HistogramsConfig, public: PublicFacts) -> Sizes:
    """The sizes of a run: what the config names, the rest by rule. Raises ConfigError if they do not fit together.

    Another relation than add_or_remove_one costs noise, which counts as a smaller budget; fewer tokens count as a
    smaller vocabulary. Given centres (public.warm_start): see `_with_start`.
    """
    if config.algorithm == "private":
        chosen = size_rules(*bought(config, public), config.clip, config.clusters)
    else:
        k = config.clusters or DEFAULT_CLUSTERS
        merges = config.algorithm == "algorithm2" and config.start == "perturbed_mean"
        overseed = 3 * k if merges else k
        chosen = Sizes(DEFAULT_ROUNDS, k, overseed, 0, SMALL_PERTURBATION)
    if public.warm_start is not None:
        chosen = _with_start(config, chosen, len(public.warm_start["centres"]))
    k = chosen.clusters if config.overseed is None else min(chosen.clusters, config.overseed)
    overseed = chosen.overseed if config.overseed is None else config.overseed
    rounds = config.rounds or chosen.rounds
    merge_after = 0
    if overseed > k:
        merge_after = config.merge_after or min(4, rounds // 2)
        if merge_after > rounds - 2:
            if config.overseed is not None or config.merge_after is not None:
                raise ConfigError(
                    f"{overseed} cells cannot be merged to {k} after round {merge_after} of {rounds}: the last two "
                    "rounds are pooled.",
                    "Raise rounds, or lower merge_after or overseed.",
                )
            overseed, merge_after = k, 0
    return Sizes(rounds, k, overseed, merge_after, config.perturbation or chosen.perturbation)


def bought(config: HistogramsConfig, public: PublicFacts) -> tuple[int, int, float]:
    """(nominal clients, features, rho) that the size rules of a private run reckon with. Raises ConfigError."""
    features = public.features
    if config.reduction != "none":
        features = tokens_kept(config.keep, features) + 1
    return _nominal(config, public), features, _rho(public) / spread(public.relation) ** 2


def _with_start(config: HistogramsConfig, chosen: Sizes, given: int) -> Sizes:
    """The sizes of a run that starts from `given` centres.

    As many as clusters, or fewer, or in a private run up to twice the clusters of the rules where the config names no
    number (two rounds in place of eight leave half the noise): every centre goes on, and a private run needs two
    rounds only. Fewer than the
    clusters that the config names: the others start from the perturbed mean, with the rounds of a start without any.
    More: they are over-seeded cells, as many as the size rules allow; if there are more still, the votes of a private
    run choose among them.
    """
    k = chosen.clusters
    if config.clusters is None:
        private = config.algorithm == "private"
        k = given if private and given <= WARM_CELLS * k else min(k, given)
    rounds = chosen.rounds
    if given == k and config.algorithm == "private":
        rounds = min(rounds, WARM_ROUNDS)
    cells = min(given, chosen.overseed) if config.algorithm == "private" else given
    return Sizes(rounds, k, max(cells, k), 0, chosen.perturbation)


def _rho(public: PublicFacts) -> float:
    if public.rho is None or not public.rho > 0:
        raise ConfigError(
            "a private histograms run needs a zCDP budget.",
            'Set a budget for the population, or choose algorithm = "algorithm2".',
        )
    return public.rho


def _nominal(config: HistogramsConfig, public: PublicFacts) -> int:
    nominal = config.nominal_clients or public.nominal_clients
    if nominal is None:
        raise ConfigError(
            "a private histograms run needs a nominal number of clients, because the exact one is not public.",
            "Set nominal_clients in the settings, or declare it when the population is made.",
        )
    return nominal
