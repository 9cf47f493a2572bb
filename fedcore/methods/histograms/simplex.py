"""Operations on histograms: smoothing, the metric of the whitened release, shrinkage, merging.

Everything here acts on published or public values; nothing looks at a client. Histograms are rows (k, d) float64.

What released values with known noise most likely were: empirical Bayes, made of nothing but these values.

    y_t = theta_t + s_t N(0, 1),   theta_t ~ G,   estimate E[theta_t | y_t]

G is the distribution of the thetas that makes the values most likely (the nonparametric maximum likelihood estimate of
Kiefer and Wolfowitz 1956), a mixture of pieces around the points of a fixed grid, whose weights EM finds. A value far
above its noise stays as it is; of those in the noise each is drawn to where most of them are. So the many rare tokens
of a sparse distribution get small shares, which a floor under each would overstate. It costs no privacy, because it is
a function of releases. Sums that are pooled are denoised once: the estimates of single ones are biased, and averages of
them stay so.
"""

from __future__ import annotations

import math

import numpy as np


def smooth(p: np.ndarray, e: float) -> np.ndarray:
    """(p + e) / (1 + d e): additive smoothing; p (..., d) with rows that sum to 1."""
    return (p + e) / (1 + p.shape[-1] * e)


def assignment_logs(centres: np.ndarray, e: float) -> np.ndarray:
    """(d, k) float32, contiguous: ln of the smoothed centres, what clients need to find their nearest one."""
    return np.ascontiguousarray(np.log(smooth(centres, e)).T.astype(np.float32))


def project(p: np.ndarray, floor: float) -> np.ndarray:
    """Onto the simplex: every entry at least `floor`, then each row divided by its sum."""
    p = np.maximum(p, floor)
    return p / p.sum(axis=-1, keepdims=True)


def metric(mean: np.ndarray, floor: float, effective_tokens: float) -> np.ndarray:
    """w ~ P sqrt(1/m_eff + P), P = max(mean, floor): (d,) positive, sums to 1.

    A noisy sum released in y = q / sqrt(w) costs (C sigma)**2 / (2 N**2) * sum w / P nats, and the norm of y is about
    sqrt(sum E q**2 / w). Their product is smallest at w ~ sqrt(P E q**2), with E q**2 = P (1/m_eff + P).
    """
    p = np.maximum(mean, floor)
    w = p * np.sqrt(1.0 / effective_tokens + p)
    return w / w.sum()


def total_variation(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """(...,) float64: half the sum of |p - q| over the last axis."""
    return 0.5 * np.abs(p - q).sum(axis=-1)


def perturbed(mean: np.ndarray, copies: int, p: float, generator: np.random.Generator) -> np.ndarray:
    """(copies, d): mean * exp(p N(0, 1)), each renormalised."""
    rows = mean * np.exp(p * generator.standard_normal((copies, len(mean))))
    return rows / rows.sum(axis=1, keepdims=True)


def shrink(centres: np.ndarray, mean: np.ndarray, w: np.ndarray, energy: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Positive-part James-Stein shrinkage of every centre towards the mean.

    D = (P - F) / sqrt(w) is scaled by max(least, 1 - energy / ||D||**2).

    centres: (k, d); mean, w: (d,); energy: (k,) expected squared norm of the noise in D, d (C sigma / N)**2.
    """
    difference = centres - mean
    norms = np.sum(difference**2 / w, axis=1)
    kept = np.maximum(least, 1.0 - energy / np.maximum(norms, np.finfo(np.float64).tiny))
    return mean + kept[:, None] * difference


def ward_merge(centres: np.ndarray, counts: np.ndarray, w: np.ndarray, clusters: int) -> list[list[int]]:
    """Merges greedily, always the pair with the least Ward cost, until `clusters` groups are left.

    Cost of a pair: N_i N_j / (N_i + N_j) * sum (P_i - P_j)**2 / w. A tie goes to the pair of lowest numbers.
    counts must be positive. Returns the groups as ascending lists of row numbers, by their lowest member.
    """
    points = centres / np.sqrt(w)
    counts = np.array(counts, np.float64)
    points = np.array(points, np.float64)
    groups = [[i] for i in range(len(points))]
    squares = _squares(points)
    while len(groups) > max(clusters, 1):
        cost = counts[:, None] * counts[None, :] / (counts[:, None] + counts[None, :]) * squares
        cost[np.tril_indices(len(groups))] = np.inf
        i, j = np.unravel_index(np.argmin(cost), cost.shape)
        points[i] = (counts[i] * points[i] + counts[j] * points[j]) / (counts[i] + counts[j])
        counts[i] += counts[j]
        groups[i] = sorted(groups[i] + groups[j])
        del groups[j]
        points, counts = np.delete(points, j, axis=0), np.delete(counts, j)
        squares = np.delete(np.delete(squares, j, axis=0), j, axis=1)
        squares[i] = squares[:, i] = np.sum((points - points[i]) ** 2, axis=1)
    return groups


def _squares(points: np.ndarray) -> np.ndarray:
    """(k, k) squared distances, row by row so that memory stays at one (k, d) array."""
    return np.stack([np.sum((points - point) ** 2, axis=1) for point in points])


# --- denoising --------------------------------------------------------------------------------------------------------


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
    """(d,) on the simplex: the shares of which `values` are the noisy ones. noise: (d,) standard deviations."""
    grid = _share_grid(floor)
    return project(posterior_means(values, noise, grid, MEAN_STEPS), floor)


def denoised_centre(values: np.ndarray, noise: np.ndarray, mean: np.ndarray, floor: float) -> np.ndarray:
    """(d,) on the simplex: the mean F times the ratios whose products with it are `values` but for their noise.

    A cell like the mean, or one that is lost in noise, has ratios near 1. Frequent tokens may differ less between cells
    than rare ones: where there are enough tokens each band of them, by their share of the mean, has a separate
    distribution, some steps of EM from that of all.
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
