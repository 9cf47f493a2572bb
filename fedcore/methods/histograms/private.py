"""The sound private pipeline: all that leaves the clients are exact integer sums with discrete Gaussian noise.

    flat_mean       plain histograms, L2 clip 0.2, one cell       -> rough mean, first metric
    whitened_mean   whitened by the first metric, one cell        -> mean F, metric w, frozen from here on
    clusters_t      clients in the cell of their nearest centre, whitened by w, L2 clip C -> centres;  t = 1 .. T

Given centres (a *start*: released by an earlier run, or public) replace the first two releases. On request there are
more:

    votes           one vote per client for its nearest given centre, if more are given than the budget pays cells for
    second_moment   products of whitened histograms -> the tokens to cluster on (`fedcore.methods.histograms.moments`)
    norms_t         clients within and beyond the clip, beside clusters_t -> the clip of the next round

Each release costs 1 / (2 sigma**2) of zCDP for *all* its cells, because a client is in one cell (argument in
`docs/privacy/histograms.md`). There is no count and no second pass: a histogram sums to 1, so the sum of a released
cell is its noised number of clients. Everything the server decides (metric, dead cells, merging, shrinkage, tokens,
clip) depends on released values alone; the number of rounds is fixed beforehand.

Sources: Setlur, Feldman, Talwar 2023, Algorithms 2 and 3, whose start and centring are replaced; Canonne, Kamath,
Steinke 2020 for the discrete Gaussian; Andrew, Thakkar, McMahan, Ramaswamy 2021 for the clip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedcore.methods.histograms import moments, sensitivities
from fedcore.methods.histograms.config import HistogramsConfig
from fedcore.methods.histograms.leaf import assign, clipped_on_grid, integer_sums_by_cell
from fedcore.methods.histograms.private_plan import (
    FLAT,
    MOMENT,
    NORMS,
    VOTES,
    WHITENED,
    cluster_release,
    counts_norms,
    elects,
    norms_release,
    plan,
)
from fedcore.methods.histograms.private_start import elected, filled_up, given_mean
from fedcore.methods.histograms.reduction import kept_by_frequency, lifted, reduced, reduced_block, tokens_kept
from fedcore.methods.histograms.simplex import assignment_logs, metric, perturbed, project, shrink, ward_merge
from fedcore.methods.histograms.sizes import sizes_of
from fedcore.methods.histograms.state import HistogramsState
from fedcore.population.blocks import CountsBlock, segment_sums
from fedcore.privacy.grid import GRID_NORM, grid_step
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts, RoundInfo
from fedcore.rounds.statistics import IntegerSum, Statistics

DEAD = 6.0  # a cell whose noised count is below this many standard deviations of its noise is taken for empty
STAGES = {"flat": FLAT, "whitened": WHITENED, "votes": VOTES, "moment": MOMENT}  # phases before the clustering rounds
RESEED = "histograms/reseed"
CLIP_RATE, CLIP_TARGET = 0.2, 0.5  # of the geometric update towards the median norm


@dataclass(frozen=True, slots=True)
class ReleaseMessage:
    """What clients need to contribute to a release; all of it published or public.

    release: planned name. cells: k. log_centres: (d, k) float32, ln of the smoothed centres; (d, 1) zeros for one cell.
    whitening: (d,) float64, 1 / sqrt(w). clip: L2 clip of the whitened histogram. kind: sums of clipped histograms,
    votes, or second moments. kept: (r,) tokens of a reduced problem, in which d is r + 1; (0,) or None without one.
    half_weight: m_0 of the clients' weights, 0: none. norms: planned name of the count of norms that goes with it, or
    empty.
    """

    release: str
    cells: int
    log_centres: np.ndarray
    whitening: np.ndarray
    clip: float
    kind: Literal["sums", "votes", "moment"] = "sums"
    kept: np.ndarray | None = None
    half_weight: float = 0.0
    norms: str = ""


# --- states and messages --------------------------------------------------------------------------------------------


def init(config: HistogramsConfig, public: PublicFacts) -> HistogramsState:
    sizes, d, releases = sizes_of(config, public), public.features, plan(config, public)
    uniform = np.full(d, 1.0 / d)
    firsts = {release.round: release.noise_multiplier for release in reversed(releases)}
    norms = [release.noise_multiplier for release in releases if release.name.startswith(NORMS)]
    state = HistogramsState(
        phase="flat",
        round=0,
        seed=public.seed,
        rounds=sizes.rounds,
        clusters=sizes.clusters,
        overseed=sizes.overseed,
        merge_after=sizes.merge_after,
        perturbation=sizes.perturbation,
        multipliers=np.array([firsts[number] for number in sorted(firsts)]),
        mean=uniform,
        mean_precision=0.0,
        metric=uniform,
        centres=uniform[None, :],
        counts=np.zeros(1),
        sums=np.zeros((0, d)),
        reseed=np.zeros(0, np.int64),
        entropy=0.0,
        clients=0.0,
        clip=config.clip,
        spread=sensitivities.spread(public.relation),
        norms_multiplier=norms[0] if norms else 0.0,
    )
    if public.warm_start is None:
        return state
    config = config.for_vocabulary(d)
    mean, given = (
        given_mean(public.warm_start, config.centre_floor),
        np.asarray(public.warm_start["centres"], np.float64),
    )
    w = metric(mean, config.metric_floor, config.effective_tokens)
    state = replace(state, mean=mean, metric=w, centres=given, counts=np.zeros(len(given)))
    return replace(state, phase="votes") if elects(public, sizes) else _with_cells(config, state)


def _with_cells(config, state) -> HistogramsState:
    """F, w and the first centres are there: fill up the cells, choose the tokens, or ask for what the choice needs."""
    cells = state.overseed if state.merge_after else state.clusters
    centres = filled_up(state.centres, cells, state.mean, state.perturbation, state.seed)
    state = replace(state, phase="rounds", centres=centres, counts=np.zeros(len(centres)))
    if config.reduction == "eigenvectors":
        return replace(state, phase="moment")
    if config.reduction == "frequency":
        return _on_tokens(config, state, kept_by_frequency(state.mean, tokens_kept(config.keep, len(state.mean))))
    return state


def _on_tokens(config, state, kept) -> HistogramsState:
    """The rounds go on with these tokens; w is that of the reduced mean."""
    w = metric(reduced(state.mean[None, :], kept)[0], config.metric_floor, config.effective_tokens)
    return replace(state, phase="rounds", kept=kept, metric=w, sums=np.zeros((0, len(w))))


def release_name(state: HistogramsState) -> str:
    """Planned name of the release that comes next, the first of its round."""
    return STAGES.get(state.phase, cluster_release(state.round + 1))


def message(config: HistogramsConfig, state: HistogramsState) -> ReleaseMessage | None:
    if state.phase == "done":
        return None
    d, name, weight = len(state.mean), release_name(state), config.half_weight_tokens
    one_cell = np.zeros((d, 1), np.float32)
    if state.phase == "flat":
        return ReleaseMessage(name, 1, one_cell, np.ones(d), config.first_clip, half_weight=weight)
    whitening = 1.0 / np.sqrt(state.metric)
    if state.phase in ("whitened", "moment"):
        kind = "moment" if state.phase == "moment" else "sums"
        return ReleaseMessage(name, 1, one_cell, whitening, config.clip, kind, half_weight=weight)
    centres = reduced(state.centres, state.kept)
    logs = assignment_logs(centres, config.assignment_smoothing)
    if state.phase == "votes":
        return ReleaseMessage(name, len(centres), logs, whitening, config.clip, "votes")
    t = state.round + 1
    norms = norms_release(t) if counts_norms(config, t, state.rounds) else ""
    return ReleaseMessage(name, len(centres), logs, whitening, _clip(config, state), "sums", state.kept, weight, norms)


def _clip(config, state) -> float:
    return state.clip or config.clip


# --- clients --------------------------------------------------------------------------------------------------------


def client_update(message: ReleaseMessage, block: CountsBlock) -> Statistics:
    """The leaf's exact sums on the grid under their planned names; no count that is not planned, and no objective."""
    if message.kept is not None:
        block = reduced_block(block, message.kept)
    if message.kind == "votes":
        return {message.release: IntegerSum(GRID_NORM * votes(block, message.log_centres))}
    grid = clipped_on_grid(block, message.whitening, message.clip)
    if message.half_weight > 0:
        grid = weighted(block, grid, message.half_weight)
    if message.kind == "moment":
        return {message.release: IntegerSum(moments.moment_on_grid(block, grid))}
    cells = own_cells(block, message.log_centres)
    statistics = {message.release: IntegerSum(integer_sums_by_cell(block, cells, message.cells, grid))}
    if message.norms:
        statistics[message.norms] = IntegerSum(GRID_NORM * count_norms(block, message.whitening, message.clip))
    return statistics


def own_cells(block: CountsBlock, log_centres: np.ndarray) -> np.ndarray:
    """(C,) int64: `assign` in single precision, whatever the block's counts are stored in.

    A block stores double precision as soon as *one* of its clients has a huge count. Scores in that precision could
    send the other clients elsewhere, and then one client would change more than its own contribution.
    """
    if block.data.dtype != np.float32:
        block = replace(block, data=block.data.astype(np.float32))
    return assign(block, log_centres)


def weighted(block: CountsBlock, grid: np.ndarray, half_weight: float) -> np.ndarray:
    """(nnz,) whole numbers: grid values times m / (m + m_0), cut towards zero.

    The factor is at most 1, also as a float, and rounding is monotone: no entry grows, so no client's norm does.
    """
    factors = block.totals / (block.totals + half_weight)
    return np.trunc(grid * np.repeat(factors, np.diff(block.indptr)))


def votes(block: CountsBlock, log_centres: np.ndarray) -> np.ndarray:
    """(k,) int64: how many clients with tokens are nearest to each centre."""
    cells = own_cells(block, log_centres)[block.totals > 0]
    return np.bincount(cells, minlength=log_centres.shape[1]).astype(np.int64)


def count_norms(block: CountsBlock, whitening: np.ndarray, clip: float) -> np.ndarray:
    """(2,) int64: clients with tokens whose whitened histogram has a norm within the clip, and beyond it."""
    with np.errstate(over="ignore", invalid="ignore"):
        whitened = whitening[block.indices] * block.data
        squares = segment_sums(whitened * whitened, block.indptr)
        within = np.sqrt(squares) <= clip * block.totals  # beyond, if the floats overflow
    filled = block.totals > 0
    return np.array([np.sum(within & filled), np.sum(~within & filled)], np.int64)


# --- what the server makes of a release -----------------------------------------------------------------------------


def server_update(config: HistogramsConfig, state: HistogramsState, result: Mapping[str, np.ndarray]):
    """result: the round's noised int64 arrays by planned name. Returns the next state and its RoundInfo."""
    published = result[release_name(state)]
    steps = {"flat": _flat, "whitened": _whitened, "votes": _votes, "moment": _moment}
    if state.phase in steps:
        return steps[state.phase](config, state, published)
    after, info = _clusters(config, state, published)
    if not config.adaptive_clip:
        return after, info
    clip = _clip(config, state)
    if (norms := result.get(norms_release(state.round + 1))) is not None:
        after = replace(after, clip=_moved_clip(state, clip, norms))
    return after, RoundInfo({**info.scalars, "clip": clip}, info.note)


def _flat(config, state, published):
    noise = config.first_clip * state.spread * float(state.multipliers[0])
    sums = published[0] * grid_step(config.first_clip)
    count = sums.sum()
    reliable = count >= DEAD * noise * math.sqrt(len(sums))
    mean = project(sums / max(count, 1.0), config.centre_floor) if reliable else state.mean
    w = metric(mean, config.first_metric_floor, config.effective_tokens)
    info = _info(state, count, reliable, 0.0)
    return replace(state, phase="whitened", mean=mean, metric=w, centres=mean[None, :], counts=np.array([count])), info


def _whitened(config, state, published):
    noise = config.clip * state.spread * float(state.multipliers[1])
    sums = published[0] * grid_step(config.clip) * np.sqrt(state.metric)
    count = sums.sum()
    reliable = count >= DEAD * noise
    mean = project(sums / max(count, 1.0), config.centre_floor) if reliable else state.mean
    moved = 0.5 * np.abs(mean - state.mean).sum()
    w = metric(mean, config.metric_floor, config.effective_tokens)
    precision = float(count / noise) ** 2 if reliable else 0.0
    info = _info(state, count, reliable, moved)
    state = replace(state, mean=mean, mean_precision=precision, metric=w, centres=np.zeros((0, len(mean))))
    return _with_cells(config, state), info


def _votes(config, state, published):
    """One release for all given centres: those with too few votes go, the rest is merged to the cells of the run."""
    noise, counts = float(state.multipliers[0]) * state.spread, published / GRID_NORM
    cells = state.overseed if state.merge_after else state.clusters
    chosen, live = elected(state.centres, counts, DEAD * noise, state.metric, cells)
    info = _info(state, counts.sum(), len(live), 0.0)
    return _with_cells(config, replace(state, centres=chosen)), info


def _moment(config, state, published):
    d, number = len(state.mean), _number(state)
    bound = sensitivities.second_moment(_relation(state))
    matrix = moments.covariance(published, state.metric, state.mean, config.clip)
    noise = moments.noise_norm(float(state.multipliers[number]) * bound, config.clip, d)
    keep = tokens_kept(config.keep, d)
    kept, clear = moments.choose_tokens(matrix, state.mean, noise, state.clusters - 1, keep)
    note = "" if clear else "no eigenvector stands above the noise: the most frequent tokens are kept"
    info = RoundInfo(
        {
            "noise_multiplier": float(state.multipliers[number]),
            "clear_eigenvectors": float(clear),
            "kept_tokens": float(len(kept)),
        },
        note,
    )
    return _on_tokens(config, state, kept), info


def _relation(state) -> str:
    return "add_or_remove_one" if state.spread == 1.0 else "replace_one"


def _moved_clip(state, clip: float, norms: np.ndarray) -> float:
    """C exp(-0.2 (b - 1/2)), b the noised share of clients within the clip; C where noise explains their number."""
    counts = norms / GRID_NORM
    total = float(counts.sum())
    if total < DEAD * math.sqrt(2) * state.norms_multiplier * state.spread:
        return clip
    within = min(max(float(counts[0]) / total, 0.0), 1.0)
    return clip * math.exp(-CLIP_RATE * (within - CLIP_TARGET))


def _clusters(config, state, published):
    """One clustering round: normalise, find dead cells, shrink; merge after round T1, pool the last two rounds."""
    if len(state.kept):
        return _clusters_on_tokens(config, state, published)
    t, last = state.round + 1, state.round + 1 == state.rounds
    clip = _clip(config, state)
    noise = clip * state.spread * float(state.multipliers[_number(state)])
    sums = published * grid_step(clip) * np.sqrt(state.metric)
    counts = sums.sum(axis=1)
    total = counts.sum()
    state = _refined_mean(state, sums, total, len(sums) * noise**2, config.centre_floor)
    kept, draws = sums, np.ones(len(sums))  # draws: how many noise arrays are in each row of `sums`
    pooled = last and len(state.sums) == len(sums)
    if pooled:
        sums, counts, draws = sums + state.sums, counts + state.counts, draws * 2
    alive = counts >= DEAD * noise * np.sqrt(draws)
    moved = _movement(sums, counts, alive, state.centres, config.centre_floor)
    info = _info(state, total, int(alive.sum()), moved)
    if t == state.merge_after:
        sums, counts, draws, alive = _merge(state, sums, counts, draws, alive, config.centre_floor)
        kept = sums
    centres = np.tile(state.mean, (len(sums), 1))
    energy = sums.shape[1] * draws[alive] * (noise / counts[alive]) ** 2
    shrunk = shrink(sums[alive] / counts[alive, None], state.mean, state.metric, energy)
    centres[alive] = project(shrunk, config.centre_floor)
    if t <= state.rounds - 2 and not alive.all():
        fresh = perturbed(state.mean, len(sums), state.perturbation, stream(state.seed, RESEED, t))
        centres[~alive] = fresh[~alive]
    if last:
        kept, counts = np.zeros((0, sums.shape[1])), counts / (2 if pooled else 1)
    phase = "done" if last else "rounds"
    return replace(state, phase=phase, round=t, centres=centres, counts=counts, sums=kept), info


def _clusters_on_tokens(config, state, published):
    """The round of the reduced problem, its centres and mean lifted again: a run that stops early serves all tokens."""
    kept, mean = state.kept, state.mean
    small = replace(state, kept=kept[:0], mean=reduced(mean[None, :], kept)[0], centres=reduced(state.centres, kept))
    after, info = _clusters(config, small, published)
    whole = lifted(np.vstack([after.mean, after.centres]), kept, mean)
    return replace(after, kept=kept, mean=whole[0], centres=whole[1:]), info


def _refined_mean(state, sums, total, variance, floor):
    """F averaged with the mean that the cells of this round add up to, each weighted by (count / noise)**2.

    Free, because it only uses what is released; the metric stays frozen.
    """
    if total < DEAD * math.sqrt(variance):
        return state
    precision = float(total**2 / variance)
    all_cells = project(sums.sum(axis=0) / total, floor)
    known = state.mean_precision
    mean = (known * state.mean + precision * all_cells) / (known + precision)
    return replace(state, mean=mean, mean_precision=known + precision)


def _merge(state, sums, counts, draws, alive, floor):
    """K' cells to K: dead ones dropped, the others merged by Ward cost; sums and noise of a group add."""
    live = np.flatnonzero(alive)
    groups = []
    if len(live):
        rows = project(sums[live] / counts[live, None], floor)
        groups = [live[group] for group in ward_merge(rows, counts[live], state.metric, state.clusters)]
    merged = np.zeros((state.clusters, sums.shape[1]))
    new_counts, new_draws, new_alive = np.zeros(state.clusters), np.ones(state.clusters), np.zeros(state.clusters, bool)
    for row, group in enumerate(groups):
        merged[row], new_counts[row] = sums[group].sum(axis=0), counts[group].sum()
        new_draws[row], new_alive[row] = draws[group].sum(), True
    return merged, new_counts, new_draws, new_alive


def _movement(sums, counts, alive, centres, floor) -> float:
    """Mean total variation between the new and the old centres of live cells, weighted by their noised counts."""
    if not alive.any():
        return 0.0
    new = project(sums[alive] / counts[alive, None], floor)
    return float(np.average(0.5 * np.abs(new - centres[alive]).sum(axis=1), weights=counts[alive]))


def _number(state) -> int:
    """Which of the run's rounds comes next, from 0."""
    stages = len(state.multipliers) - state.rounds
    return {"flat": 0, "whitened": 1, "votes": 0, "moment": stages - 1}.get(state.phase, stages + state.round)


def _info(state, count: float, live: int, moved: float) -> RoundInfo:
    return RoundInfo(
        {
            "noise_multiplier": float(state.multipliers[_number(state)]),
            "released_count": float(count),
            "live_cells": float(live),
            "movement": float(moved),
        }
    )
