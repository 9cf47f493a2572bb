"""What released values with known noise most likely were: empirical Bayes, made of nothing but these values.

    y_t = theta_t + s_t N(0, 1),   theta_t ~ G,   estimate E[theta_t | y_t]

G is the law of the thetas that makes the values most likely (the nonparametric maximum likelihood estimate of Kiefer
and Wolfowitz 1956), a mixture of pieces around the points of a fixed grid, whose weights EM finds. A value far above
its noise stays as it is; of those in the noise each is drawn to where most of them are. So the many rare tokens of a
sparse law get small shares, which a floor under each would overstate. It costs no privacy, because it is a function of
releases. Sums that are pooled are denoised once: the estimates of single ones are biased, and averages of them stay so.
"""

from __future__ import annotations

import math

import numpy as np

from fedcore.methods.histograms.simplex import project

MEAN_POINTS, LARGE_SHARE = 200, 0.3  # of the grid of shares
MEAN_STEPS, RATIO_STEPS = 300, 100  # of EM, at most
BANDS, BAND_TOKENS = 4, 250  # of the ratios of a cell, at most, and tokens of each, at least
BAND_STEPS = (
    10  # of EM, from the law of all tokens to that of a band: few, since a band has few tokens to learn it from
)
RATIO_STEP = math.log(50) / 64
RATIO_GRID = np.exp(RATIO_STEP * np.arange(-64, 57))  # of a centre to the mean: from 1/50 by 1 to 31
SETTLED = 1e-7  # gain in mean log likelihood, nats a step, at which EM ends
LEAST_LOG, LEAST_WEIGHT = -80.0, 1e-30  # smaller numbers change nothing, and denormal ones take a hundred times as long
FITTED = 20_000  # values that the weights are fitted to, evenly chosen from all; bounds time and memory
TILE = 4096  # values whose estimates are made at once


def denoised_mean(values: np.ndarray, noise: np.ndarray, floor: float) -> np.ndarray:
    """(d,) on the simplex: the shares of which `values` are the noised ones. noise: (d,) standard deviations."""
    grid = _share_grid(floor)
    return project(posterior_means(values, noise, grid, MEAN_STEPS), floor)


def denoised_centre(values: np.ndarray, noise: np.ndarray, mean: np.ndarray, floor: float) -> np.ndarray:
    """(d,) on the simplex: the mean F times the ratios whose products with it are `values` but for their noise.

    A cell like the mean, or one that is lost in noise, has ratios near 1. Frequent tokens may differ less between cells
    than rare ones: where there are enough tokens each band of them, by their share of the mean, has a law of its own,
    some steps of EM from that of all.
    """
    ratios, relative = values / mean, noise / mean
    law, likely = _law(ratios, relative, RATIO_GRID, RATIO_STEPS), np.empty(len(mean))
    count = min(BANDS, len(mean) // BAND_TOKENS)
    if count < 2:
        return project(mean * _means(ratios, relative, RATIO_GRID, law), floor)
    for band in np.array_split(np.argsort(mean, kind="stable"), count):
        own = _law(ratios[band], relative[band], RATIO_GRID, BAND_STEPS, law)
        likely[band] = _means(ratios[band], relative[band], RATIO_GRID, own)
    return project(mean * likely, floor)


def posterior_means(values: np.ndarray, noise: np.ndarray, grid: np.ndarray, steps: int) -> np.ndarray:
    """(n,) E[theta | y]. values, noise: (n,), noise > 0; grid: (g,) positive, rising by equal factors.

    A piece of the prior is normal around its point, as wide as half a step, so that values with little noise are not
    rounded to the grid.
    """
    return _means(values, noise, grid, _law(values, noise, grid, steps))


def _law(
    values: np.ndarray, noise: np.ndarray, grid: np.ndarray, steps: int, start: np.ndarray | None = None
) -> np.ndarray:
    """(g,) weights of the pieces, fitted to some of the values. start: of EM; None: equal ones."""
    some = slice(None, None, max(1, math.ceil(len(values) / FITTED)))
    return _fitted(_likelihood(values[some], noise[some], grid, _widths(grid)), steps, start)


def _means(values: np.ndarray, noise: np.ndarray, grid: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(n,) E[theta | y] under these weights of the pieces."""
    means, widths = np.empty(len(values)), _widths(grid)
    for begin in range(0, len(values), TILE):
        y, s = values[begin : begin + TILE, None], noise[begin : begin + TILE, None]
        posterior = _likelihood(y[:, 0], s[:, 0], grid, widths) * weights
        posterior /= posterior.sum(axis=1, keepdims=True)
        kept = widths**2 / (widths**2 + s**2)  # of a value's distance from a point
        means[begin : begin + TILE] = np.sum(posterior * (grid + kept * (y - grid)), axis=1)
    return means


def _widths(grid: np.ndarray) -> np.ndarray:
    return 0.5 * math.log(grid[-1] / grid[0]) / (len(grid) - 1) * grid


def _likelihood(values: np.ndarray, noise: np.ndarray, grid: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """(n, g), each row times a factor of its own, by which its largest entry is 1."""
    variance = noise[:, None] ** 2 + widths**2
    logs = -0.5 * ((values[:, None] - grid) ** 2 / variance + np.log(variance))
    return np.exp(np.maximum(logs - logs.max(axis=1, keepdims=True), LEAST_LOG))


def _fitted(likelihood: np.ndarray, steps: int, start: np.ndarray | None) -> np.ndarray:
    """(g,) weights of the pieces after at most so many steps of EM."""
    weights = np.full(likelihood.shape[1], 1.0 / likelihood.shape[1]) if start is None else start
    before = -math.inf
    for _ in range(steps):
        mixed = likelihood @ weights
        if (now := float(np.mean(np.log(mixed)))) < before + SETTLED:
            break
        weights = np.maximum(weights * ((1.0 / mixed) @ likelihood) / len(mixed), LEAST_WEIGHT)
        before = now
    return weights


def _share_grid(least: float) -> np.ndarray:
    """MEAN_POINTS shares from the least to LARGE_SHARE, and on by the same factor to 1 for small vocabularies."""
    step = math.log(LARGE_SHARE / least) / (MEAN_POINTS - 1)
    more = math.ceil(-math.log(LARGE_SHARE) / step)
    return LARGE_SHARE * np.exp(step * np.arange(1 - MEAN_POINTS, more + 1))
