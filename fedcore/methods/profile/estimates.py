"""Estimates from noisy counts: functions of published values, so they cost no privacy.

The counts of a tree disagree: the noise of a node is not the sum of the noise of its children. Least squares gives the
leaves that fit all levels best. Their errors have a known covariance, which gives every interval.

Least squares leaves negative counts, and small ones in cells that are empty. So the histogram that is shown is made
from the top of the tree down: a node divides its count between its two children by their estimates. A child that does
not stand out of its noise gets nothing if the other one does, and half if neither does.

Source: Hay, Rastogi, Miklau and Suciu 2010, "Boosting the accuracy of differentially private histograms through
consistency".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from fedcore.methods.profile.cells import LEAVES, LEVELS
from fedcore.methods.profile.layout import Amplitudes, tree_of

Z95 = 1.959964  # 97.5 % quantile of the normal distribution
OUT = 1.5  # standard errors above which a node stands out of its noise
LEAST = 4.0  # standard errors of a number of units, below which they are not described


@dataclass(frozen=True)
class _Fit:
    """Of noise of variance 1 in every node. solve: (LEAVES, nodes) from counts of nodes to leaves. covariance: (LEAVES,
    LEAVES) of the leaves. nodes: (nodes,) standard deviations of the fitted nodes. below: (LEAVES + 1,) variances of
    the sum of the first leaves; with_all: (LEAVES + 1,) their covariances with the sum of all."""

    solve: np.ndarray
    covariance: np.ndarray
    nodes: np.ndarray
    below: np.ndarray
    with_all: np.ndarray


@cache
def _fit() -> _Fit:
    nodes = tree_of(np.eye(LEAVES)).T
    covariance = np.linalg.inv(nodes.T @ nodes)
    of_nodes = np.sqrt(np.einsum("ij,ij->i", nodes @ covariance, nodes))
    sums = np.pad(covariance.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    return _Fit(covariance @ nodes.T, covariance, of_nodes, np.diagonal(sums).copy(), sums[:, -1].copy())


def not_negative(counts: np.ndarray) -> np.ndarray:
    """The nearest counts (n,) that are not negative and have the same sum; zeros if the sum is not positive."""
    total = float(counts.sum())
    if total <= 0:
        return np.zeros(len(counts))
    ordered = np.sort(counts)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(counts) + 1)
    return np.maximum(counts - excess[np.flatnonzero(ordered > excess)[-1]], 0.0)


@dataclass(frozen=True)
class Tree:
    """A column of numbers, of all rows or of a group.

    counts: (LEAVES,) by least squares, in units, possibly negative. noise: standard deviation of a node, in units.
    missing, missing_noise: units without the number. edges: (LEAVES + 1,)
    """

    counts: np.ndarray
    noise: float
    missing: float
    missing_noise: float
    edges: np.ndarray

    @cached_property
    def clean(self) -> np.ndarray:
        """(LEAVES,) counts that are not negative, with the same sum if that is positive."""
        fitted, least = tree_of(self.counts), OUT * self.noise * _fit().nodes
        counts, first = np.array([max(self.present, 0.0)]), 0
        for level in range(LEVELS):
            own = slice(first, first + 2 ** (level + 1))
            (left, right), (out_left, out_right) = (
                part.reshape(-1, 2).T for part in (fitted[own], fitted[own] > least[own])
            )
            alone = np.where(out_left, counts, np.where(out_right, 0.0, counts / 2))
            to_left = np.where(out_left & out_right, np.clip((left - right + counts) / 2, 0.0, counts), alone)
            counts, first = np.column_stack([to_left, counts - to_left]).ravel(), own.stop
        return counts

    @property
    def bounded(self) -> bool:
        """Whether the column has bounds."""
        return bool(self.edges[1] < self.edges[2])

    @property
    def present(self) -> float:
        """Units that have the number."""
        return float(self.counts.sum())

    @property
    def present_error(self) -> float:
        return self.noise * float(np.sqrt(_fit().below[-1]))

    @property
    def total(self) -> float:
        return self.present + self.missing

    @property
    def total_error(self) -> float:
        return float(np.hypot(self.present_error, self.missing_noise))

    def error_of(self, weights: np.ndarray) -> float:
        """Standard deviation of the noise in the sum of weights (LEAVES,) times counts."""
        return self.noise * float(np.sqrt(weights @ _fit().covariance @ weights))

    def error_below(self, leaf: int, share: float) -> float:
        """Standard deviation of the noise in the count of the first leaves less a share of all."""
        fit = _fit()
        return self.noise * float(np.sqrt(fit.below[leaf] - 2 * share * fit.with_all[leaf] + share**2 * fit.below[-1]))

    def missing_share(self) -> tuple[float, float]:
        """Share of the units that miss the number, and its standard error by noise."""
        total = max(self.total, 1.0)
        share = self.missing / total
        error = np.hypot((1 - share) * self.missing_noise, share * self.present_error) / total
        return float(np.clip(share, 0.0, 1.0)), float(error)

    @property
    def enough(self) -> bool:
        """Whether there are enough units to say more than how many they are."""
        return self.present > LEAST * self.present_error

    def mean(self) -> tuple[float, float]:
        """With its standard error by noise, NaN if there are too few units. Numbers count as the middle of their
        leaf."""
        if not self.enough:
            return np.nan, np.nan
        middle = (self.edges[:-1] + self.edges[1:]) / 2
        mean = float(self.clean @ middle) / self.present
        return mean, self.error_of(middle - mean) / self.present

    def quantile(self, share: float) -> tuple[float, float, float]:
        """The quantile, and a 95 % interval for the noise alone, made of whole leaves. NaN: too few units, or no such
        end of the interval."""
        if not self.enough:
            return np.nan, np.nan, np.nan
        reached = np.concatenate([[0.0], np.cumsum(self.clean)])
        whole = reached[-1]
        leaf = min(int(np.searchsorted(reached, share * whole, side="right")), LEAVES)
        error = self.error_below(leaf, share) / self.present
        least, most = (share - Z95 * error) * whole, (share + Z95 * error) * whole
        first = max(int(np.searchsorted(reached, least, side="right")) - 1, 0)
        last = min(int(np.searchsorted(reached, most, side="left")), LEAVES)
        low = float(self.edges[first]) if self.bounded or least > 0 else np.nan
        high = float(self.edges[last]) if self.bounded or most < whole else np.nan
        return float(np.interp(share * whole, reached, self.edges)), low, high


def tree_from(released: np.ndarray, of: Amplitudes, noise: float, edges: np.ndarray) -> Tree:
    """released: (TREE,) int64 nodes and missing. noise: standard deviation of a cell, in grid steps."""
    nodes = released.astype(np.float64)
    counts = _fit().solve @ (nodes[:-1] / of.level)
    return Tree(counts, noise / of.level, float(nodes[-1] / of.missing), noise / of.missing, edges)
