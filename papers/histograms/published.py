"""Algorithm 3 as it was published: private centring with a count and two noised sums a round. NOT PRIVATE.

Source: Setlur, Feldman, Talwar 2023, Algorithm 3 and appendix B. It is here to be compared with the private pipeline
(`fedcore.methods.histograms.server`). Every round makes two passes, because b1 has to be released before clients can
centre by it:

    rounds     a_k = max(count_k + Laplace, 1),  b1_k = max((sum_k + sigma N(0, I)) / a_k, s)
    centring   b2_k = sum over u in k of clip_{c/sqrt(d)}((q_u - b1_k) / sqrt(b1_k)) + c sigma N(0, I)
               P_k  = floor and renormalise b1_k + sqrt(b1_k) b2_k / a_k

`published_noise = "mean"` adds sigma N(0, I) to the mean instead, after the division by a_k, as line 4 is printed: the
mean's sensitivity is 1/a_k, so that is a_k times as much noise as needed. Clipping each coordinate bounds the norm by
c, as the paper says, but it is biased: histograms have few large positive deviations and many small negative ones. A
cluster that nobody chose becomes a live centre of noise. Both are kept, because they are what was published.

`PublishedIFCA` is the paper's private IFCA as far as it can be told: one release a round of every cluster's
sum with its count behind it, L2 sensitivity sqrt(2), then the gradient step of IFCA.

sigma comes from `fedcore.papers.histograms.composition`. The noise is simulated from the run's seed, and starts,
reduction, mean and objective are exact: see `not_private_because`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from fedcore.papers.histograms import algorithms
from fedcore.papers.histograms.clients import CentringMessage, PaperMessage
from fedcore.papers.histograms.composition import gdp, kov15, kov15_single
from fedcore.papers.histograms.config import CENTRE_FLOOR, Noisy, Published, PublishedIFCA

from fedcore.methods.histograms.config import scaled
from fedcore.methods.histograms.reduction import lift, reduce_rows
from fedcore.methods.histograms.simplex import project, total_variation
from fedcore.methods.histograms.state import HistogramsState, Step
from fedcore.privacy.mechanisms import simulated_gaussian
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts, RoundInfo

NOISE = "histograms/published"
COUNT_EPSILON = 0.05  # of each round's count under exact accounting, whose multiplier leaves the counts out


@dataclass(frozen=True, slots=True)
class Noise:
    """sigma: scale of the noise of a sum of sensitivity 1. count: scale of the Laplace noise of the counts; 0 if they
    are released with the sum.
    """

    sigma: float
    count: float


def noise_of(config: Noisy) -> Noise:
    """The noise that makes `published_rounds` rounds cost (published_epsilon, published_delta) by `accounting`.

    kov: every release costs the same eps_0, the count too. exact: the sums alone make up the budget; the count's
    COUNT_EPSILON a round comes on top.
    """
    budget = config.published_epsilon, config.published_delta
    rounds, kov = config.published_rounds, config.accounting == "kov"
    if isinstance(config, PublishedIFCA):
        return Noise(math.sqrt(2) * (kov15_single if kov else gdp)(*budget, rounds).sigma, 0.0)
    if kov:
        multiplier = kov15(*budget, rounds)
        assert multiplier.epsilon_0 is not None  # composition by eps_0 always has one
        return Noise(multiplier.sigma, 1.0 / multiplier.epsilon_0)
    return Noise(gdp(*budget, 2 * rounds).sigma, 1.0 / COUNT_EPSILON)


def not_private_because(config: Noisy) -> str:
    """Why a run of this config is not private, for its privacy statement."""
    why = ["its noise is simulated in floating point from the run's seed, and whoever knows that can subtract it"]
    if config.start == "algorithm1":
        why.append("its start, Algorithm 1, returns rows of clients, and the first clusters depend on them")
    if config.start == "perturbed_mean":
        why.append("its start is made from the exact mean")
    if config.reduction != "none":
        why.append("its tokens are chosen, and filled in again, from statistics without noise")
    why.append("the exact mean and objective are kept with the run")
    return "Algorithm 3 as published is not private: " + "; ".join(why)


# --- rounds ---------------------------------------------------------------------------------------------------------


def init(config: Noisy, public: PublicFacts) -> HistogramsState:
    """Raises ConfigError as all baselines do, and if the budget cannot be turned into noise."""
    noise_of(config)
    return algorithms.init_before(config, public)


def total_rounds(config: Noisy, state: HistogramsState) -> int:
    passes_per_round = 1 if isinstance(config, PublishedIFCA) else 2
    return algorithms.passes(config, state) + passes_per_round * state.rounds


def message(config: Published | PublishedIFCA, state: HistogramsState) -> PaperMessage | None:
    if state.phase != "centring" or isinstance(config, PublishedIFCA):
        return algorithms.message(config, state)
    bound = config.published_clip / math.sqrt(state.sums.shape[1])
    return CentringMessage(algorithms.assignment(state, state.centres), state.sums, bound, state.kept)


def server_update(config: Published | PublishedIFCA, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """result: finished statistics of the pass."""
    if state.phase not in ("rounds", "centring"):
        return algorithms.update_before(config, state, result)
    if isinstance(config, PublishedIFCA):
        return _gradient(config, state, result)
    return _first(config, state, result) if state.phase == "rounds" else _centring(config, state, result)


def _first(config: Published, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """Lines 3 and 4: the count and the first estimate."""
    noise, generator = noise_of(config), stream(state.seed, NOISE, 2 * state.round + 1)
    counts = np.asarray(result["counts"], np.float64)
    sizes = np.maximum(counts + generator.laplace(0.0, noise.count, len(counts)), 1.0)
    if config.published_noise == "mean":
        first = simulated_gaussian(generator, result["sums"] / sizes[:, None], noise.sigma)
    else:
        first = simulated_gaussian(generator, result["sums"], noise.sigma) / sizes[:, None]
    first = np.maximum(first, scaled(config.published_floor, len(state.mean)))
    info = RoundInfo(
        {
            "objective": algorithms.objective(state, result),
            "noise_multiplier": noise.sigma,
            "released_count": float(sizes.sum()),
            "empty_clusters": float(np.sum(counts == 0)),
        }
    )
    return replace(state, phase="centring", sums=first, counts=sizes), info


def _centring(config: Published, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """Lines 5 and 6: the deviations, and the new centres."""
    scale = config.published_clip * noise_of(config).sigma
    generator = stream(state.seed, NOISE, 2 * state.round + 2)
    deviations = simulated_gaussian(generator, result["deviations"], scale)
    centres = refined(state.sums, deviations, state.counts, _centre_floor(state))
    return _with_centres(replace(state, sums=np.zeros((0, len(state.mean)))), centres, {})


def refined(first: np.ndarray, deviations: np.ndarray, sizes: np.ndarray, floor: float) -> np.ndarray:
    """(k, d): b1 + sqrt(b1) b2 / a (line 6), floored and renormalised. first, deviations: (k, d). sizes: (k,) a."""
    return project(first + np.sqrt(first) * deviations / sizes[:, None], floor)


def _gradient(config: PublishedIFCA, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """A noised step of IFCA. The number of all clients is taken as known."""
    noise, generator = noise_of(config), stream(state.seed, NOISE, 2 * state.round + 1)
    counts = np.asarray(result["counts"], np.float64)
    together = simulated_gaussian(generator, np.column_stack([result["sums"], counts]), noise.sigma)
    before = reduce_rows(state.centres, state.kept)
    centres = algorithms.gradient_step(before, together[:, :-1], together[:, -1], state.clients, config.learning_rate)
    scalars = {
        "objective": algorithms.objective(state, result),
        "noise_multiplier": noise.sigma,
        "released_count": float(together[:, -1].sum()),
        "empty_clusters": float(np.sum(counts == 0)),
    }
    state = replace(state, counts=np.maximum(together[:, -1], 1.0))
    return _with_centres(state, project(centres, _centre_floor(state)), scalars)


def _centre_floor(state: HistogramsState) -> float:
    return scaled(CENTRE_FLOOR, len(state.mean))


def _with_centres(state: HistogramsState, centres: np.ndarray, scalars: Mapping[str, float]) -> Step:
    """The state with its new, reduced centres after a whole round, and its movement beside the scalars."""
    t = state.round + 1
    moved = total_variation(reduce_rows(state.centres, state.kept), centres)
    info = RoundInfo({**scalars, "movement": float(np.average(moved, weights=state.counts))})
    phase = "done" if t == state.rounds else "rounds"
    return replace(state, phase=phase, round=t, centres=lift(centres, state.kept, state.mean)), info
