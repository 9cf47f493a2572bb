"""Unimodality test: whether a noisy histogram has a density dip between two peaks, against the best fit with one peak.

Everything is a function of released counts and public streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcore.methods.mixture_models.noisy_matrices import increasing

RUNS = (1, 2, 3)  # neighbouring cells that are added up: narrow peaks and wide ones
DRAWS = 400  # of the null
EULER = 0.5772156649015329


@dataclass(frozen=True, slots=True)
class Valley:
    """p: of the statistic under one peak; depth: density dip / lower peak, in runs of cells, 1 if there is no dip."""

    p: float
    depth: float


def unimodal(counts: np.ndarray) -> np.ndarray:
    """(cells,) the sequence with one peak, not negative, nearest in squares."""
    best, loss = counts, math.inf
    for peak in range(len(counts)):
        rise = increasing(counts[: peak + 1])
        fall = increasing(counts[peak + 1 :][::-1])[::-1]
        fit = np.maximum(np.concatenate([rise, fall]), 0.0)
        squares = float(((fit - counts) ** 2).sum())
        if squares < loss:
            best, loss = fit, squares
    return best


def deepest(counts: np.ndarray, sd: float) -> tuple[np.ndarray, np.ndarray]:
    """(...,) the largest (lower peak - dip) / deviation over runs of cells, and dip / lower peak there.

    counts: (..., cells). sd: of the noise of a cell; sampling adds the runs' own counts to the variance.
    """
    score = np.full(counts.shape[:-1], -np.inf)
    depth = np.ones(counts.shape[:-1])
    for run in RUNS:
        runs = np.lib.stride_tricks.sliding_window_view(counts, run, axis=-1).sum(axis=-1)
        left = np.maximum.accumulate(runs, axis=-1)
        right = np.maximum.accumulate(runs[..., ::-1], axis=-1)[..., ::-1]
        lower = np.minimum(left, right)
        spread = np.sqrt(2 * run * sd**2 + np.maximum(lower, 0.0) + np.maximum(runs, 0.0) + 1e-12)
        scores = (lower - runs) / spread
        at = scores.argmax(axis=-1)[..., None]
        here, peak, valley = (np.take_along_axis(part, at, axis=-1)[..., 0] for part in (scores, lower, runs))
        share = np.where(peak > 0, np.clip(valley / np.maximum(peak, 1e-12), 0.0, 1.0), 1.0)
        score, depth = np.where(here > score, here, score), np.where(here > score, share, depth)
    return score, depth


def valley_of(counts: np.ndarray, sd: float, generator: np.random.Generator) -> Valley:
    """counts: (cells,) noisy, in units. sd: of the noise of a cell. generator: of the null's draws.

    The null draws Poisson counts about the best fit with one peak, adds the known noise, and takes the tail of a Gumbel
    distribution of the draws' mean and variance. For clients whose rows are shares of one, Poisson counts vary at least
    as much as theirs do (docs/privacy/private-mixture.md).
    """
    score, depth = deepest(counts, sd)
    fit = unimodal(counts)
    draws = generator.poisson(fit, (DRAWS, len(fit))) + generator.normal(0.0, sd, (DRAWS, len(fit)))
    null, _ = deepest(draws, sd)
    scale = max(float(null.std()) * math.sqrt(6) / math.pi, 1e-12)
    location = float(null.mean()) - EULER * scale
    p = -math.expm1(-math.exp(min(-(float(score) - location) / scale, 700.0)))
    return Valley(float(np.clip(p, 0.0, 1.0)), float(depth))


def spanning_tree(
    distances: np.ndarray, saddles: np.ndarray, mass: np.ndarray, far: float, beside: float
) -> list[tuple[int, int]]:
    """The edges (i < j) of a spanning tree, sorted. The highest saddles come first (Kruskal), so groups separate where
    the density between them is highest. If even the nearest pair that is left to join is further apart than `far`, any
    pair up to `beside` times as far may be taken.

    Of these, the pair is taken whose lighter node keeps most mass for each of its edges. A dip can be detected only
    between nodes that hold enough, and a light node in the middle of a star does not. distances, saddles: (k, k); mass:
    (k,) not negative.
    """
    k = len(distances)
    part, degree, edges = np.arange(k), np.zeros(k), list[tuple[int, int]]()
    while len(edges) < k - 1:
        open_pairs = np.where(part[:, None] != part, distances, np.inf)
        nearest = float(open_pairs.min())
        if nearest <= far:
            open_saddles = np.where(np.isfinite(open_pairs), saddles, -np.inf)
            allowed = open_saddles == open_saddles.max()
        else:
            allowed = open_pairs <= beside * nearest
        share = mass / (degree + 1)
        worth = np.where(allowed & np.triu(np.ones((k, k), bool), 1), np.minimum(share[:, None], share), -1.0)
        i, j = (int(each) for each in np.unravel_index(int(worth.argmax()), worth.shape))
        edges.append((i, j))
        degree[[i, j]] += 1
        part[part == part[j]] = part[i]
    return sorted(edges)


def connected(k: int, edges: list[tuple[int, int]]) -> np.ndarray:
    """(k,) int64: the number of each node's group, groups in order of their lowest node."""
    group = list(range(k))
    for i, j in edges:
        old, new = max(group[i], group[j]), min(group[i], group[j])
        group = [new if each == old else each for each in group]
    return np.unique(group, return_inverse=True)[1].astype(np.int64)
