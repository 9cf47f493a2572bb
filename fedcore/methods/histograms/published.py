"""Algorithm 3 as it was published: private centring with a count and two noised sums a round. NOT PRIVATE.

Source: Setlur, Feldman, Talwar 2023, Algorithm 3 and appendix B. For comparison with
`fedcore.methods.histograms.private`,
which replaces it. Every round makes two passes, because b1 has to be released before clients can centre by it:

    rounds     a_k = max(count_k + Laplace, 1),  b1_k = max((sum_k + sigma N(0, I)) / a_k, s)
    centring   b2_k = sum over u in k of clip_{c/sqrt(d)}((q_u - b1_k) / sqrt(b1_k)) + c sigma N(0, I)
               P_k  = floor and renormalise b1_k + sqrt(b1_k) b2_k / a_k

`published_noise = "mean"` adds sigma N(0, I) to the mean instead, after the division by a_k, as line 4 is printed: the
mean's sensitivity is 1/a_k, so that is a_k times as much noise as needed. Clipping each coordinate bounds the norm by
c, as the paper says, but it is biased: histograms have few large positive deviations and many small negative ones. A
cluster that nobody chose becomes a live centre of noise. Both are kept, because they are what was published.

`published_step = "ifca"` is the paper's private IFCA as far as it can be told: one release a round of every cluster's
sum with its count behind it, L2 sensitivity sqrt(2), then the gradient step of `fedcore.methods.histograms.ifca`.

sigma comes from `fedcore.privacy.composition`. The noise is simulated from the run's seed, and starts, reduction, mean
and objective are exact: see `reasons`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedcore.methods.histograms import baselines
from fedcore.methods.histograms.baselines import BaselineMessage
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.ifca import gradient_step
from fedcore.methods.histograms.leaf import assign, clipped_deviations_by_cell
from fedcore.methods.histograms.reduction import lifted, reduced, reduced_block
from fedcore.methods.histograms.simplex import project
from fedcore.methods.histograms.state import HistogramsState
from fedcore.population.blocks import CountsBlock
from fedcore.privacy.composition import gdp, kov15, kov15_single
from fedcore.privacy.mechanisms import simulated_gaussian
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts, RoundInfo
from fedcore.rounds.statistics import FloatSum, Statistics

NOISE = "histograms/published"
COUNT_EPSILON = 0.05  # of each round's count under exact accounting, whose multiplier leaves the counts out


@dataclass(frozen=True, slots=True)
class CentringMessage:
    """Asks for the clusters' sums of clipped deviations from b1 (Algorithm 3, line 5).

    log_centres: (d, k) float32, ln of the smoothed centres that this round assigns by. first: (k, d) float64, b1.
    bound: c / sqrt(d). kept: (r,) int64; if it is not empty, d stands for r + 1.
    """

    log_centres: np.ndarray
    first: np.ndarray
    bound: float
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Noise:
    """sigma: scale of the noise of a sum of sensitivity 1. count: scale of the Laplace noise of the counts; 0 if they
    are released with the sum.
    """

    sigma: float
    count: float


def noise_of(config: HistogramsConfig) -> Noise:
    """The noise that makes `published_rounds` rounds cost (published_epsilon, published_delta) by `accounting`.

    kov: every release costs the same eps_0, the count too. exact: the sums alone make up the budget; the count's
    COUNT_EPSILON a round comes on top.
    """
    budget = config.published_epsilon, config.published_delta
    rounds, kov = config.published_rounds, config.accounting == "kov"
    if config.published_step == "ifca":
        return Noise(math.sqrt(2) * (kov15_single if kov else gdp)(*budget, rounds).sigma, 0.0)
    if kov:
        multiplier = kov15(*budget, rounds)
        return Noise(multiplier.sigma, 1.0 / multiplier.epsilon_0)
    return Noise(gdp(*budget, 2 * rounds).sigma, 1.0 / COUNT_EPSILON)


def reasons(config: HistogramsConfig) -> str:
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


# --- clients --------------------------------------------------------------------------------------------------------


def client_update(message: BaselineMessage | CentringMessage, block: CountsBlock) -> Statistics:
    """The leaf's float64 sums without noise; clients without tokens take no part."""
    if not isinstance(message, CentringMessage):
        return baselines.client_update(message, block)
    block = reduced_block(block, message.kept)
    cells = assign(block, message.log_centres)
    sums = clipped_deviations_by_cell(block, cells, message.first, message.bound)
    return {"deviations": FloatSum.at(block.leaf, sums)}


# --- server ---------------------------------------------------------------------------------------------------------


def init(config: HistogramsConfig, public: PublicFacts) -> HistogramsState:
    """Raises ConfigError as the baselines do, and if the budget cannot be turned into noise."""
    noise_of(config)
    return baselines.init(config, public)


def total_rounds(config: HistogramsConfig, state: HistogramsState) -> int:
    passes = 1 if config.published_step == "ifca" else 2
    return baselines.passes_before_rounds(config, state) + passes * state.rounds


def message(config: HistogramsConfig, state: HistogramsState) -> BaselineMessage | CentringMessage | None:
    if state.phase != "centring":
        return baselines.message(config, state)
    logs = baselines.reduced_logs(config, state, state.centres)
    bound = config.published_clip / math.sqrt(state.sums.shape[1])
    return CentringMessage(logs, state.sums, bound, state.kept)


def server_update(config: HistogramsConfig, state: HistogramsState, result: Mapping):
    """result: finished statistics of the pass. Returns the next state and its RoundInfo."""
    if state.phase == "centring":
        return _centring(config, state, result)
    if state.phase != "rounds":
        return baselines.server_update(config, state, result)
    if config.published_step == "ifca":
        return _gradient(config, state, result)
    return _first(config, state, result)


def _first(config, state, result):
    """Lines 3 and 4: the count and the first estimate."""
    noise, generator = noise_of(config), stream(state.seed, NOISE, 2 * state.round + 1)
    counts = np.asarray(result["counts"], np.float64)
    sizes = np.maximum(counts + generator.laplace(0.0, noise.count, len(counts)), 1.0)
    if config.published_noise == "mean":
        first = simulated_gaussian(generator, result["sums"] / sizes[:, None], noise.sigma)
    else:
        first = simulated_gaussian(generator, result["sums"], noise.sigma) / sizes[:, None]
    first = np.maximum(first, config.published_floor)
    info = RoundInfo(
        {
            "objective": baselines.objective(state, result),
            "noise_multiplier": noise.sigma,
            "released_count": float(sizes.sum()),
            "empty_clusters": float(np.sum(counts == 0)),
        }
    )
    return replace(state, phase="centring", sums=first, counts=sizes), info


def _centring(config, state, result):
    """Lines 5 and 6: the deviations, and the new centres."""
    scale = config.published_clip * noise_of(config).sigma
    generator = stream(state.seed, NOISE, 2 * state.round + 2)
    deviations = simulated_gaussian(generator, result["deviations"], scale)
    centres = refined(state.sums, deviations, state.counts, config.centre_floor)
    state = replace(state, sums=np.zeros((0, len(state.mean))))
    return _moved(state, reduced(state.centres, state.kept), centres, {})


def refined(first: np.ndarray, deviations: np.ndarray, sizes: np.ndarray, floor: float) -> np.ndarray:
    """(k, d): b1 + sqrt(b1) b2 / a (line 6), floored and renormalised. first, deviations: (k, d). sizes: (k,) a."""
    return project(first + np.sqrt(first) * deviations / sizes[:, None], floor)


def _gradient(config, state, result):
    """A noised step of IFCA. The number of all clients is taken as known."""
    noise, generator = noise_of(config), stream(state.seed, NOISE, 2 * state.round + 1)
    counts = np.asarray(result["counts"], np.float64)
    together = simulated_gaussian(generator, np.column_stack([result["sums"], counts]), noise.sigma)
    before = reduced(state.centres, state.kept)
    centres = gradient_step(before, together[:, :-1], together[:, -1], state.clients, config.learning_rate)
    info = {
        "objective": baselines.objective(state, result),
        "noise_multiplier": noise.sigma,
        "released_count": float(together[:, -1].sum()),
        "empty_clusters": float(np.sum(counts == 0)),
    }
    state = replace(state, counts=np.maximum(together[:, -1], 1.0))
    return _moved(state, before, project(centres, config.centre_floor), info)


def _moved(state, before, centres, info):
    """The state with its new centres, reduced ones, after a whole round."""
    t = state.round + 1
    moved = np.average(0.5 * np.abs(centres - before).sum(axis=1), weights=state.counts)
    phase = "done" if t == state.rounds else "rounds"
    state = replace(state, phase=phase, round=t, centres=lifted(centres, state.kept, state.mean))
    return state, RoundInfo({**info, "movement": float(moved)})
