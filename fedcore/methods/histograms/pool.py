"""What the runs of a series released, added up: sums of cells, weighted by the inverse variance of their noise.

A run that starts from an earlier one takes its pool over, multiplies it by a factor of forgetting, and adds its own
releases. So noise falls from run to run, and what was released long ago counts less than what was released now. How
much less depends on how fast the population changes, which is unknown: every factor of FORGETTING has a `History` of
its own, each run scores all of them by how well they predict what it releases itself (`forecast_error`), and the best
one counts. All of it is a function of released arrays. Sums of different runs add up because all of them are released
in one metric, which the first run of the series made from its own mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

FORGETTING = (1.0, 0.95, 0.75, 0.5, 0.0)  # weight of what was there before a run, against 1 for what the run adds
SCORE_KEPT = 0.3  # of the score of earlier runs
SWITCH = 2.0  # standard deviations of the noise of a difference of scores, beyond which another factor is used
SPLIT_KEPT = 0.25  # of the past of a cell in either of its halves
SPLIT_PERTURBATION = 0.15  # standard deviation of the log of the factors that tell the halves of a cell apart


@dataclass(frozen=True, slots=True)
class Pool:
    """k cells over d tokens. A release S, with noise of the variance v w_j in token j, w the metric, counts f / v: f is
    1 in the run that made it, and smaller by a factor of forgetting in every later one.

    sums:      (k, d) sum of f S / v
    weights:   (k,) sum of f / v; 0 for a cell without a release
    variances: (k,) sum of f**2 / v: the noise in sums[k, j] has the variance variances[k] w_j
    """

    sums: np.ndarray
    weights: np.ndarray
    variances: np.ndarray

    def __len__(self) -> int:
        return len(self.weights)

    # --- what it says of one release --------------------------------------------------------------------------------

    @property
    def one_release(self) -> np.ndarray:
        """(k, d) mean sums of a release; zeros for a cell without one."""
        return _ratio(self.sums, self.weights[:, None])

    @property
    def counts(self) -> np.ndarray:
        """(k,) clients of each cell in a release: a histogram sums to 1."""
        return _ratio(self.sums.sum(axis=1), self.weights)

    @property
    def count_noise(self) -> np.ndarray:
        """(k,) standard deviation of the noise in `counts`: w sums to 1. Infinite for a cell without a release."""
        noise = np.full(len(self), np.inf)
        return np.divide(np.sqrt(self.variances), self.weights, out=noise, where=self.weights > 0)

    # --- other pools from it ----------------------------------------------------------------------------------------

    def __add__(self, other: Pool) -> Pool:
        return Pool(self.sums + other.sums, self.weights + other.weights, self.variances + other.variances)

    def forgotten(self, kept: float) -> Pool:
        """What counts of it in the next run."""
        return self.scaled(np.full(len(self), kept))

    def scaled(self, factors: np.ndarray) -> Pool:
        """factors: (k,) of the cells' weights; the ratio of signal to noise stays."""
        return Pool(self.sums * factors[:, None], self.weights * factors, self.variances * factors**2)

    def chosen(self, cells: Sequence[int] | np.ndarray) -> Pool:
        rows = np.asarray(cells, np.int64)
        return Pool(self.sums[rows], self.weights[rows], self.variances[rows])

    def joined(self, other: Pool) -> Pool:
        """These cells, then the others."""
        return Pool(
            np.vstack([self.sums, other.sums]),
            np.concatenate([self.weights, other.weights]),
            np.concatenate([self.variances, other.variances]),
        )

    def merged(self, groups: Sequence[Sequence[int] | np.ndarray]) -> Pool:
        """One cell for each group of live cells: sums of a release add up, and so does their noise. A group remembers
        as much as that one of its cells which remembers least.
        """
        merged = empty(0, self.sums.shape[1])
        for group in groups:
            cells = self.chosen(group)
            least = cells.weights.min()
            cells = cells.scaled(_ratio(np.full(len(cells), least), cells.weights))
            merged = merged.joined(Pool(cells.sums.sum(axis=0)[None, :], least[None], cells.variances.sum()[None]))
        return merged

    def split(self, cell: int) -> Pool:
        """One cell more, the last one: it and `cell` are halves of what `cell` was, and forget most of it.

        Which half of the sums is whose is not known yet; either is taken to be as noisy as the whole was.
        """
        halved, kept = self.sums.copy(), np.ones(len(self))
        halved[cell] /= 2
        kept[cell] = SPLIT_KEPT
        return Pool(halved, self.weights, self.variances).scaled(kept).chosen([*range(len(self)), cell])


def empty(cells: int, features: int) -> Pool:
    """Cells without a release."""
    return Pool(np.zeros((cells, features)), np.zeros(cells), np.zeros(cells))


def separation(pool: Pool, w: np.ndarray) -> float:
    """How sure it is that the two most similar of k >= 2 live cells differ, in standard deviations of noise.

    With P = S / N and relative noise s of two cells, D = sum (P_i - P_j)^2 / w is about d v for equal cells,
    v = s_i^2 + s_j^2, with a standard deviation of v sqrt(2 d). Returns the least (D - d v) / (v sqrt(2 d)).
    """
    rows, relative = _ratio(pool.one_release, pool.counts[:, None]), pool.count_noise / pool.counts
    i, j = np.triu_indices(len(pool), 1)
    apart = ((rows[i] - rows[j]) ** 2 / w).sum(axis=1)
    noise = relative[i] ** 2 + relative[j] ** 2
    return float(np.min((apart - len(w) * noise) / (noise * np.sqrt(2.0 * len(w)))))


def of_release(sums: np.ndarray, variance: float) -> Pool:
    """The pool of one release. sums: (k, d) with noise of the variance `variance` times w."""
    every = np.full(len(sums), 1.0 / variance)
    return Pool(sums / variance, every, every)


# --- histories ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class History:
    """All that a series has released, under one factor of forgetting.

    cells:     k, or none while their sums are not kept
    `everybody`: one cell of all clients, from which the mean F is made
    noise:     (d,) variance of `everybody.sums` in every token: not all releases of it are in the metric of the cells
    """

    cells: Pool
    everybody: Pool
    noise: np.ndarray

    def forgotten(self, kept: float) -> History:
        return History(self.cells.forgotten(kept), self.everybody.forgotten(kept), kept**2 * self.noise)

    def with_cells(self, cells: Pool) -> History:
        return History(cells, self.everybody, self.noise)

    def adding(self, sums: np.ndarray, variance: float, w: np.ndarray) -> History:
        """With a release of the cells, (k, d), with noise of `variance` w_j: one more sum over all clients. The cells
        begin again unless there are as many.
        """
        own, every = of_release(sums, variance), len(sums) * variance
        cells = self.cells + own if len(self.cells) == len(own) else own
        everybody = self.everybody + of_release(sums.sum(axis=0)[None, :], every)
        return History(cells, everybody, self.noise + w / every)


def grown(
    histories: Sequence[History], centres: np.ndarray, cells: int, generator: np.random.Generator
) -> tuple[list[History], np.ndarray]:
    """Of k <= cells cells this number, by splitting always the one with the most clients in the first history; the
    other cells lose nothing.

    centres: (k, d). Those of the halves are on opposite sides of what they come from.
    """
    pools = [history.cells for history in histories]
    while len(pools[0]) < cells:
        largest = int(np.argmax(pools[0].counts))
        factors = np.exp(SPLIT_PERTURBATION * generator.standard_normal(centres.shape[1]))
        halves = np.stack([centres[largest] * factors, centres[largest] / factors])
        halves /= halves.sum(axis=1, keepdims=True)
        centres = np.vstack([centres[:largest], halves[:1], centres[largest + 1 :], halves[1:]])
        pools = [pool.split(largest) for pool in pools]
    return [history.with_cells(pool) for history, pool in zip(histories, pools, strict=True)], centres


def forecast_error(centres: np.ndarray, sums: np.ndarray, variance: float, w: np.ndarray, live: np.ndarray) -> float:
    """How far (k, d) centres are from a release that they do not rest on, in units of its noise: the sum over live
    cells of N**2 |S / N - P|**2 / (variance w).
    """
    far = sums[live] - sums[live].sum(axis=1, keepdims=True) * centres[live]
    return float(np.sum(far**2 / w) / variance)


def best_history(arrays: Mapping[str, np.ndarray]) -> int:
    """Number of the history in use, by the arrays of a state or of a warm start."""
    for name in ("pool_score_noise", "pool_scores"):
        if len(values := arrays.get(name, ())):
            return int(np.argmin(values))
    return 0


def score_noise(
    centres: np.ndarray, used: np.ndarray, sums: np.ndarray, variance: float, w: np.ndarray, live: np.ndarray
) -> float:
    """Variance that the noise of a release gives to the difference of two `forecast_error`s, of (k, d) centres and of
    those in use: 4 sum N**2 |P - P'|**2 / (v w). The noise is common to both, only its product with P - P' stays.
    """
    far = sums[live].sum(axis=1, keepdims=True) * (centres[live] - used[live])
    return float(4.0 * np.sum(far**2 / w) / variance)


def switched(scores: np.ndarray, noise: np.ndarray) -> int:
    """The history to use from now on: the one in use, whose noise is 0, or one whose score is lower by more than SWITCH
    standard deviations. scores, noise: (h,), noise that of the difference to the one in use.
    """
    lower = scores < scores[np.argmin(noise)] - SWITCH * np.sqrt(noise)
    return int(np.argmin(np.where(lower, scores, np.inf))) if lower.any() else int(np.argmin(noise))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.zeros_like(above), where=np.broadcast_to(below > 0, above.shape))
