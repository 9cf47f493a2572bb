"""The private pipeline: all that leaves the clients are exact integer sums with Gaussian noise.

    flat_mean       plain histograms, L2 clip 0.2, one cell       -> rough mean, first metric
    whitened_mean   whitened by the first metric, one cell        -> mean F, metric w, frozen from here on
    clusters_t      clients in the cell of their nearest centre, whitened by w, L2 clip C -> centres;  t = 1 .. T

The centres of a warm start (released by an earlier run, or public) replace the first two releases. A run that starts
from an earlier one on the same population adds what it releases to what all runs of the series have released so far
(`pool.py`), and has as many cells as these allow. Where the population has halves by document there is one
release more:

    weights         after the rounds: what clients lose on their second halves under each of a list of weights

Each release costs 1 / (2 sigma**2) for *all* its cells, because a client is in one cell (argument in
`docs/privacy/histograms.md`). There is no count and no second pass: a histogram sums to 1, so the sum of a released
cell is its noisy number of clients. Everything the server decides (metric, dead cells, merging, shrinkage, tokens)
depends on released values alone; the number of rounds is fixed beforehand.

Here is the server's side. What clients contribute is in `clients.py`, what is released, and its cost, in
`releases.py`.

Source: Setlur, Feldman, Talwar 2023, Algorithms 2 and 3, whose start and centring are replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.methods.histograms import sensitivities, weights
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.pool import (
    FORGETTING,
    SCORE_KEPT,
    History,
    Pool,
    best_history,
    empty,
    forecast_error,
    grown,
    score_noise,
    switched,
)
from fedcore.methods.histograms.reduction import kept_by_frequency, lift, reduce_rows, tokens_kept
from fedcore.methods.histograms.releases import FLAT, WHITENED, cluster_release, plan
from fedcore.methods.histograms.simplex import (
    assignment_logs,
    denoised_centre,
    denoised_mean,
    metric,
    perturbed,
    project,
    shrink,
    total_variation,
    ward_merge,
)
from fedcore.methods.histograms.sizes import continues_series, effective_budget, sizes_of
from fedcore.methods.histograms.start import chosen_by_counts, filled_up, mean_of_warm_start
from fedcore.methods.histograms.state import (
    HistogramsState,
    ReleaseMessage,
    Step,
    WeightsMessage,
    histories_of,
    initial_state,
)
from fedcore.methods.histograms.weights import WEIGHTS
from fedcore.privacy.grid import GRID_NORM, grid_step
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts, RoundInfo

FLOOR = 0.1  # of a denoised histogram, times `centre_floor`, which is that of a noised one
FEW_CELLS = 2
LEAST_KEPT = 0.1  # of a shrunken centre's difference from the mean: clients of equal centres are all in one cell
ENOUGH = 1.5  # standard deviations of its noise from which the count of the flat release is believed
DEAD = 6.0  # a cell whose noised count is below this many standard deviations of its noise is taken for empty
RESEED, SPLIT = "histograms/reseed", "histograms/split"


# --- rounds ---------------------------------------------------------------------------------------------------------


def init(config: HistogramsConfig, public: PublicFacts) -> HistogramsState:
    """The state before the first release. Raises ConfigError if there can be no such run."""
    sizes, planned = sizes_of(config, public), plan(config, public)
    releases = [release for release in planned if release.name != WEIGHTS]
    a, c = weights.usual_weights(config, public)
    state = replace(
        initial_state("flat", sizes, public),
        multipliers=np.array([release.noise_multiplier for release in releases]),
        spread=sensitivities.sensitivity_factor(public.relation),
        prior_tokens=a,
        floor=c,
        weights_multiplier=planned[-1].noise_multiplier if planned[-1].name == WEIGHTS else 0.0,
        weights_clients=float(effective_budget(config, public)[0]),
        one_whole=public.one_whole,
    )
    if public.warm_start is None:
        return state
    config = config.for_vocabulary(public.features)
    mean = mean_of_warm_start(public.warm_start, config.centre_floor)
    w = metric(mean, config.metric_floor, config.effective_tokens)
    state = replace(state, mean=mean, metric=w)
    if continues_series(config, public):
        state = _with_history(state, public.warm_start)
    centres, groups = chosen_by_counts(public.warm_start, state.metric, state.first_cells)
    if len(state.history.cells) > len(groups):
        state = state.remembering([past.with_cells(past.cells.merged(groups)) for past in state.histories])
    return _with_first_cells(config, replace(state, centres=centres))


def _with_history(state: HistogramsState, start: Mapping[str, np.ndarray]) -> HistogramsState:
    """What the series has released so far, as it counts in this run, and the metric of the series."""
    w = np.asarray(start["pool_metric"], np.float64)
    pools = [start[name] for name in ("pool_sums", "pool_weights", "pool_variances")]
    past = histories_of(*pools, mean_noise=start.get("pool_mean_noise"), metric=w)
    past = [past[min(number, len(past) - 1)].forgotten(kept) for number, kept in enumerate(FORGETTING)]
    state = replace(state, metric=w, pool_scores=start.get("pool_scores", np.zeros(len(past))))
    state = state.using(best_history(start))
    return replace(state, pool_score_noise=start.get("pool_score_noise", state.pool_score_noise)).remembering(past)


def total_rounds(state: HistogramsState) -> int:
    return len(state.multipliers) + (state.weights_multiplier > 0)


def message(config: HistogramsConfig, state: HistogramsState) -> ReleaseMessage | WeightsMessage | None:
    """What clients need to contribute to the release of this round; None after the last."""
    if state.phase == "done":
        return None
    if state.phase == "weights":
        return weights.message(config, state)
    return replace(_release(config, state), one_whole=state.one_whole)


def _release(config: HistogramsConfig, state: HistogramsState) -> ReleaseMessage:
    """Of one of the releases before that of the weights."""
    one_cell = np.zeros((len(state.mean), 1), np.float32)
    if state.phase == "flat":
        return ReleaseMessage(FLAT, 1, one_cell, np.ones(len(state.mean)), config.first_clip)
    whitening = 1.0 / np.sqrt(state.metric)
    if state.phase == "whitened":
        return ReleaseMessage(WHITENED, 1, one_cell, whitening, config.clip)
    logs = assignment_logs(reduce_rows(state.centres, state.kept), config.assignment_smoothing)
    name = cluster_release(state.round + 1)
    return ReleaseMessage(name, len(state.centres), logs, whitening, config.clip, state.kept)


def server_update(config: HistogramsConfig, state: HistogramsState, result: Mapping[str, np.ndarray]) -> Step:
    """result: the round's noisy int64 arrays, by planned name."""
    match state.phase:
        case "flat":
            return _flat_mean(config, state, result[FLAT])
        case "whitened":
            return _whitened_mean(config, state, result[WHITENED])
        case "weights":
            return _weights(state, result[WEIGHTS])
    step = _clusters_on_tokens if len(state.kept) else _clusters
    return step(config, state, result[cluster_release(state.round + 1)])


# --- before the clustering rounds -----------------------------------------------------------------------------------


def _flat_mean(config: HistogramsConfig, state: HistogramsState, released: np.ndarray) -> Step:
    """The rough mean; uniform still if noise explains the count. Its noise is that of d entries with whitening 1.

    A run without clustering rounds keeps the sums for the next release.
    """
    noise = _noise(state, config.first_clip)
    sums = released[0] * grid_step(config.first_clip)
    count = sums.sum()
    reliable = count >= ENOUGH * noise * math.sqrt(len(sums))
    mean = state.mean
    if reliable:
        mean = denoised_mean(sums / count, np.full(len(sums), noise / count), FLOOR * config.centre_floor)
    w = metric(mean, config.first_metric_floor, config.effective_tokens)
    info = _info(state, count, reliable, 0.0)
    kept = sums[None, :] if reliable and not state.rounds else state.sums
    known = replace(state, mean=mean, metric=w, centres=mean[None, :], counts=np.array([count]), sums=kept)
    return replace(known, phase="whitened"), info


def _whitened_mean(config: HistogramsConfig, state: HistogramsState, released: np.ndarray) -> Step:
    """The mean F and its precision, the metric w, and the first cells; if there are no rounds, the end."""
    noise = _noise(state, config.clip)
    sums = released * grid_step(config.clip) * np.sqrt(state.metric)
    refined = _with_mean(config, state.remembering([state.history.adding(sums, noise**2, state.metric)]))
    refined = replace(refined, sums=state.sums[:0])
    w = metric(refined.mean, config.metric_floor, config.effective_tokens)
    info = _info(state, sums.sum(), refined.mean_precision > 0, float(total_variation(refined.mean, state.mean)))
    if not state.rounds:
        end = replace(
            refined, phase=_after_rounds(state), metric=w, centres=refined.mean[None, :], counts=sums.sum(axis=1)
        )
        return end, info
    refined = refined.remembering([refined.history.with_cells(empty(0, len(w)))])
    return _with_first_cells(config, replace(refined, metric=w, centres=np.zeros((0, len(w))))), info


def _with_first_cells(config: HistogramsConfig, state: HistogramsState) -> HistogramsState:
    """F, w and centres, or none, are there: fill up the cells, then choose the tokens."""
    if len(state.history.cells):
        histories, centres = grown(state.histories, state.centres, state.first_cells, stream(state.seed, SPLIT))
        state = state.remembering(histories)
    else:
        centres = filled_up(state.centres, state.first_cells, state.mean, state.perturbation, state.seed)
    state = replace(state, phase="rounds", centres=centres, counts=np.zeros(len(centres)))
    if config.reduction == "frequency":
        return _on_tokens(config, state, kept_by_frequency(state.mean, tokens_kept(config.keep, len(state.mean))))
    return state


def _on_tokens(config: HistogramsConfig, state: HistogramsState, kept: np.ndarray) -> HistogramsState:
    """The rounds go on with these tokens; w is that of the reduced mean."""
    w = metric(reduce_rows(state.mean[None, :], kept)[0], config.metric_floor, config.effective_tokens)
    every, noise = state.history.everybody, state.history.noise
    every = Pool(reduce_rows(every.sums, kept), every.weights, every.variances)
    reduced = History(empty(0, len(w)), every, reduce_rows(noise[None, :], kept)[0])
    state = state.remembering([reduced])
    return replace(state, phase="rounds", kept=kept, metric=w, sums=np.zeros((0, len(w))))


# --- clustering rounds ----------------------------------------------------------------------------------------------


def _clusters(config: HistogramsConfig, state: HistogramsState, released: np.ndarray) -> Step:
    """One clustering round: add the release to the histories, find dead cells, denoise; merge after round T1.

    A run that starts from a history adds all its rounds to it; another one begins one with its last two rounds.
    """
    t, noise = state.round + 1, _noise(state, config.clip)
    sums = released * grid_step(config.clip) * np.sqrt(state.metric)
    if t == 2 and len(state.histories) > 1:
        state = _scored(config, state, sums, noise**2)
    continues = len(state.history.cells) == len(sums)
    state = state.remembering([past.adding(sums, noise**2, state.metric) for past in state.histories])
    state = _with_mean(config, state)
    alive, moved = _alive(state.history.cells), _movement(state.history.cells, state.centres, config.centre_floor)
    info = _info(state, sums.sum(), int(alive.sum()), moved)
    if t == state.merge_after:
        state = _merged(config, state)

    pool = state.history.cells
    centres, alive = _centres(config, state, state.history, t), _alive(pool)
    if t <= state.rounds - 2 and not alive.all():
        fresh = perturbed(state.mean, len(pool), state.perturbation, stream(state.seed, RESEED, t))
        centres[~alive] = fresh[~alive]

    if not continues and t < state.rounds - 1:
        state = state.remembering([past.with_cells(empty(0, len(state.metric))) for past in state.histories])
    phase = _after_rounds(state) if t == state.rounds else "rounds"
    return replace(state, phase=phase, round=t, centres=centres, counts=pool.counts), info


def _clusters_on_tokens(config: HistogramsConfig, state: HistogramsState, released: np.ndarray) -> Step:
    """The round of the reduced problem, its centres and mean lifted again: a run that stops early serves all tokens."""
    kept, mean = state.kept, state.mean
    small = replace(
        state, kept=kept[:0], mean=reduce_rows(mean[None, :], kept)[0], centres=reduce_rows(state.centres, kept)
    )
    after, info = _clusters(config, small, released)
    rows = lift(np.vstack([after.mean, after.centres]), kept, mean)
    return replace(after, kept=kept, mean=rows[0], centres=rows[1:]), info


def _scored(config: HistogramsConfig, state: HistogramsState, sums: np.ndarray, variance: float) -> HistogramsState:
    """How well each history forecasts the second release of the run, after the first one was added to it; and which one
    is used from now on.
    """
    live, numbers = sums.sum(axis=1) >= DEAD * math.sqrt(variance), np.arange(len(state.histories))

    def centres_of(number: int) -> np.ndarray:
        expected = _with_mean(config, state.using(number))
        return _centres(config, expected, expected.history, state.rounds)

    centres = [centres_of(number) for number in range(len(numbers))]
    errors = [forecast_error(each, sums, variance, state.metric, live) for each in centres]
    scores = SCORE_KEPT * state.pool_scores + errors

    def noise_to(used: int) -> np.ndarray:
        noise = [score_noise(each, centres[used], sums, variance, state.metric, live) for each in centres]
        return np.where(numbers == used, 0.0, np.maximum(noise, np.finfo(np.float64).tiny))

    noise = noise_to(state.best) + SCORE_KEPT**2 * state.pool_score_noise
    used = switched(scores, noise)
    noise = noise if used == state.best else noise_to(used)
    return replace(state, pool_scores=scores, pool_score_noise=noise)


def _after_rounds(state: HistogramsState) -> str:
    return "weights" if state.weights_multiplier else "done"


def _weights(state: HistogramsState, released: np.ndarray) -> Step:
    """The weight of the base that serves the clients' second halves."""
    spread = sensitivities.signed_factor(sensitivities.relation_of(state.spread))
    scale = state.weights_multiplier * spread * GRID_NORM
    usual = (state.prior_tokens, state.floor)
    (a, c), margin = weights.chosen(released, state.weights_clients, scale, usual)
    shown = {"noise_multiplier": state.weights_multiplier, "prior_tokens": a, "floor": c, "margin": margin}
    return replace(state, phase="done", prior_tokens=a, floor=c, margin=margin), RoundInfo(shown)


def _with_mean(config: HistogramsConfig, state: HistogramsState) -> HistogramsState:
    """F from all sums over all clients that there are; as it was where noise explains their count.

    Free, because it only uses what is released; the metric stays frozen.
    """
    every = state.history.everybody
    count = float(every.counts[0])
    ratio = count / float(every.count_noise[0])
    if ratio < DEAD:
        return state
    values, noise = every.sums[0] / every.sums[0].sum(), np.sqrt(state.history.noise) / every.sums[0].sum()
    if len(state.sums):
        values, noise = _with_flat(config, state, values, noise)
    return replace(state, mean=denoised_mean(values, noise, FLOOR * config.centre_floor), mean_precision=ratio**2)


def _with_flat(
    config: HistogramsConfig, state: HistogramsState, values: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(d,) shares and their noise from both releases of a mean, each token weighted by inverse variance.

    values, noise: (d,) of the whitened release. The flat one has the same noise in every token, so it adds the most in
    frequent tokens.
    """
    count = state.sums[0].sum()
    flat, flat_noise = state.sums[0] / count, config.first_clip * state.spread * float(state.multipliers[0]) / count
    precision = 1.0 / noise**2 + 1.0 / flat_noise**2
    return (values / noise**2 + flat / flat_noise**2) / precision, 1.0 / np.sqrt(precision)


def _merged(config: HistogramsConfig, state: HistogramsState) -> HistogramsState:
    """K' cells to K: dead ones dropped, the others merged by Ward cost; sums and noise of a group add."""
    pool = state.history.cells
    live, groups = np.flatnonzero(_alive(pool)), []
    if len(live):
        rows = project(pool.one_release[live] / pool.counts[live, None], config.centre_floor)
        groups = [live[group] for group in ward_merge(rows, pool.counts[live], state.metric, state.clusters)]
    missing = empty(state.clusters - len(groups), len(state.metric))
    return state.remembering([past.with_cells(past.cells.merged(groups).joined(missing)) for past in state.histories])


def _alive(pool: Pool) -> np.ndarray:
    """(k,) bool: whether a cell's count is more than noise."""
    return pool.counts >= DEAD * pool.count_noise


def _centres(config: HistogramsConfig, state: HistogramsState, past: History, t: int) -> np.ndarray:
    """(k, d) after round t: the denoised histograms of live cells; F for the others, and for the only one.

    Those that only assign clients, before the last round, are shrunken towards F instead if there are more than
    FEW_CELLS: denoised, cells come apart too slowly, and too few of those that are to be merged die.
    """
    pool, centres = past.cells, np.tile(state.mean, (len(past.cells), 1))
    if len(pool) == 1:
        return centres
    alive = _alive(pool)
    rows = pool.one_release[alive] / pool.counts[alive, None]
    relative = pool.count_noise[alive] / pool.counts[alive]
    if t < state.rounds and (state.merge_after or len(pool) > FEW_CELLS):
        energy = pool.sums.shape[1] * relative**2
        shrunken = shrink(rows, state.mean, state.metric, energy, LEAST_KEPT)
        centres[alive] = project(shrunken, config.centre_floor)
        return centres
    root, floor = np.sqrt(state.metric), FLOOR * config.centre_floor
    for cell, row, noise in zip(np.flatnonzero(alive), rows, relative, strict=True):
        centres[cell] = denoised_centre(row, noise * root, state.mean, floor)
    return centres


def live_cells(state: HistogramsState) -> Pool:
    """The released sums of the cells that are more than noise; none if they are not kept."""
    pool = state.history.cells
    return pool.chosen(np.flatnonzero(_alive(pool)))


def _movement(pool: Pool, centres: np.ndarray, floor: float) -> float:
    """Mean total variation between the new and the old centres of live cells, weighted by their noised counts."""
    alive = _alive(pool)
    if not alive.any():
        return 0.0
    new = project(pool.one_release[alive] / pool.counts[alive, None], floor)
    return float(np.average(total_variation(new, centres[alive]), weights=pool.counts[alive]))


# --- noise ----------------------------------------------------------------------------------------------------------


def _multiplier(state: HistogramsState) -> float:
    """sigma of the release that comes next. T clustering rounds are the last ones."""
    before = len(state.multipliers) - state.rounds
    number = {"flat": 0, "whitened": 1}.get(state.phase, before + state.round)
    return float(state.multipliers[number])


def _noise(state: HistogramsState, clip: float) -> float:
    """Standard deviation of the noise of a sum that is clipped at so much, whitened; of a noised count for w."""
    return clip * state.spread * _multiplier(state)


def _info(state: HistogramsState, count: float, live: int, moved: float) -> RoundInfo:
    return RoundInfo(
        {
            "noise_multiplier": _multiplier(state),
            "released_count": float(count),
            "live_cells": float(live),
            "movement": float(moved),
        }
    )
