"""The sound private pipeline: all that leaves the clients are exact integer sums with discrete Gaussian noise.

    release 1        plain histograms, L2 clip 0.2, one cell       -> rough mean, first metric
    release 2        whitened by the first metric, one cell        -> mean F, metric w, frozen from here on
    releases 3..T+2  clients in the cell of their nearest centre, whitened by w, L2 clip C -> centres

Each release costs 1 / (2 sigma**2) of zCDP for *all* its cells, because a client is in one cell (argument in
`docs/privacy/histograms.md`). There is no count and no second pass: a histogram sums to 1, so the sum of a released
cell is its noised number of clients. Everything the server decides (metric, dead cells, merging, shrinkage) depends on
released values alone; the number of rounds is fixed beforehand.

Sources: Setlur, Feldman, Talwar 2023, Algorithms 2 and 3, whose start and centring are replaced; Canonne, Kamath,
Steinke 2020 for the discrete Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedcore.aggregation import IntegerSum, Statistics
from fedcore.histograms.config import HistogramsConfig
from fedcore.histograms.leaf import assign, clipped_on_grid, integer_sums_by_cell
from fedcore.histograms.simplex import assignment_logs, metric, perturbed, project, shrink, ward_merge
from fedcore.histograms.sizes import sizes_of
from fedcore.histograms.state import HistogramsState
from fedcore.population.blocks import CountsBlock
from fedcore.privacy.grid import GRID_NORM, grid_step
from fedcore.privacy.plan import PlannedRelease
from fedcore.randomness import stream
from fedcore.rounds import PublicFacts, RoundInfo

ARGUMENT = "docs/privacy/histograms.md"
DEAD = 6.0  # a cell whose noised count is below this many standard deviations of its noise is taken for empty
FLAT, WHITENED = "flat_mean", "whitened_mean"
START, RESEED = "histograms/start", "histograms/reseed"


@dataclass(frozen=True, slots=True)
class ReleaseMessage:
    """What clients need to contribute to a release; all of it published or public.

    release: planned name. cells: k. log_centres: (d, k) float32, ln of the smoothed centres; (d, 1) zeros for one cell.
    whitening: (d,) float64, 1 / sqrt(w). clip: L2 clip of the whitened histogram.
    """

    release: str
    cells: int
    log_centres: np.ndarray
    whitening: np.ndarray
    clip: float


# --- plan -----------------------------------------------------------------------------------------------------------


def plan(config: HistogramsConfig, public: PublicFacts) -> list[PlannedRelease]:
    """T + 2 releases whose prices, rounded up, sum to at most public.rho."""
    sizes = sizes_of(config, public)
    names = [FLAT, WHITENED, *(_cluster_release(t) for t in range(1, sizes.rounds + 1))]
    cells = [1, 1, *(sizes.cells(t) for t in range(1, sizes.rounds + 1))]
    left = 1.0 - config.first_share - config.second_share
    shares = [config.first_share, config.second_share, *([left / sizes.rounds] * sizes.rounds)]
    rho = public.rho
    while True:
        # Prices round up, hence a hair is kept back; the loop ends because the hair grows.
        rho *= 1.0 - 1e-12
        releases = [
            PlannedRelease(
                name, number, (k, public.features), GRID_NORM, math.sqrt(0.5 / (share * rho)), ARGUMENT,
                "one cell per client: all cells cost one release" if k > 1 else "one sum over all clients",
            )
            for number, (name, k, share) in enumerate(zip(names, cells, shares, strict=True), start=1)
        ]  # fmt: skip
        prices = [release.rho for release in releases]
        if max(sum(prices), math.fsum(prices)) <= public.rho:
            return releases


# --- states and messages --------------------------------------------------------------------------------------------


def init(config: HistogramsConfig, public: PublicFacts) -> HistogramsState:
    sizes, d = sizes_of(config, public), public.features
    uniform = np.full(d, 1.0 / d)
    return HistogramsState(
        phase="flat", round=0, seed=public.seed, rounds=sizes.rounds, clusters=sizes.clusters, overseed=sizes.overseed,
        merge_after=sizes.merge_after, perturbation=sizes.perturbation,
        multipliers=np.array([release.noise_multiplier for release in plan(config, public)]),
        mean=uniform, mean_precision=0.0, metric=uniform, centres=uniform[None, :], counts=np.zeros(1),
        sums=np.zeros((0, d)), reseed=np.zeros(0, np.int64), entropy=0.0, clients=0.0,
    )  # fmt: skip


def release_name(state: HistogramsState) -> str:
    """Planned name of the release that comes next."""
    return {"flat": FLAT, "whitened": WHITENED}.get(state.phase, _cluster_release(state.round + 1))


def _cluster_release(t: int) -> str:
    return f"clusters_{t:03d}"


def message(config: HistogramsConfig, state: HistogramsState) -> ReleaseMessage | None:
    if state.phase == "done":
        return None
    d, name = len(state.mean), release_name(state)
    if state.phase == "flat":
        return ReleaseMessage(name, 1, np.zeros((d, 1), np.float32), np.ones(d), config.first_clip)
    whitening = 1.0 / np.sqrt(state.metric)
    if state.phase == "whitened":
        return ReleaseMessage(name, 1, np.zeros((d, 1), np.float32), whitening, config.clip)
    logs = assignment_logs(state.centres, config.assignment_smoothing)
    return ReleaseMessage(name, len(state.centres), logs, whitening, config.clip)


def client_update(message: ReleaseMessage, block: CountsBlock) -> Statistics:
    """The leaf's exact sum on the grid, (cells, d) int64, and nothing else: no count and no objective leaves."""
    cells = assign(block, message.log_centres)
    grid = clipped_on_grid(block, message.whitening, message.clip)
    return {message.release: IntegerSum(integer_sums_by_cell(block, cells, message.cells, grid))}


# --- what the server makes of a release -----------------------------------------------------------------------------


def server_update(config: HistogramsConfig, state: HistogramsState, published: np.ndarray):
    """published: (cells, d) int64 noised grid sums of the round. Returns the next state and its RoundInfo."""
    if state.phase == "flat":
        return _flat(config, state, published)
    if state.phase == "whitened":
        return _whitened(config, state, published)
    return _clusters(config, state, published)


def _flat(config, state, published):
    noise = config.first_clip * float(state.multipliers[0])
    sums = published[0] * grid_step(config.first_clip)
    count = sums.sum()
    reliable = count >= DEAD * noise * math.sqrt(len(sums))
    mean = project(sums / max(count, 1.0), config.centre_floor) if reliable else state.mean
    w = metric(mean, config.first_metric_floor, config.effective_tokens)
    info = _info(state, count, reliable, 0.0)
    return replace(state, phase="whitened", mean=mean, metric=w, centres=mean[None, :], counts=np.array([count])), info


def _whitened(config, state, published):
    noise = config.clip * float(state.multipliers[1])
    sums = published[0] * grid_step(config.clip) * np.sqrt(state.metric)
    count = sums.sum()
    reliable = count >= DEAD * noise
    mean = project(sums / max(count, 1.0), config.centre_floor) if reliable else state.mean
    moved = 0.5 * np.abs(mean - state.mean).sum()
    cells = state.overseed if state.merge_after else state.clusters
    centres = perturbed(mean, cells, state.perturbation, stream(state.seed, START))
    w = metric(mean, config.metric_floor, config.effective_tokens)
    precision = float(count / noise) ** 2 if reliable else 0.0
    info = _info(state, count, reliable, moved)
    state = replace(state, phase="rounds", mean=mean, mean_precision=precision, metric=w)
    return replace(state, centres=centres, counts=np.zeros(cells)), info


def _clusters(config, state, published):
    """One clustering round: normalise, find dead cells, shrink; merge after round T1, pool the last two rounds."""
    t, last = state.round + 1, state.round + 1 == state.rounds
    noise = config.clip * float(state.multipliers[t + 1])
    sums = published * grid_step(config.clip) * np.sqrt(state.metric)
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


def _info(state, count: float, live: int, moved: float) -> RoundInfo:
    release = {"flat": 0, "whitened": 1}.get(state.phase, state.round + 2)
    return RoundInfo({
        "noise_multiplier": float(state.multipliers[release]),
        "released_count": float(count),
        "live_cells": float(live),
        "movement": float(moved),
    })  # fmt: skip


