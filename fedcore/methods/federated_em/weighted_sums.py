"""Sums over the rows of a leaf of clients, by the weights of the clients and of the rows.

Weights w_i of the clients, which add up to 1 over the population, stand for the paper's 1 / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.methods.federated_em.leaf_rows import LeafRows
from fedcore.methods.mixture_models.client_sums import divisors_of
from fedcore.methods.mixture_models.contract import CurvedEM, Theta

TOGETHER = 8  # thetas that a pass over the rows serves: it holds a number for each, and each row of a piece
MOST_NUMBERS = 2**20  # of these numbers; then a pass serves fewer


@dataclass(frozen=True, slots=True)
class Weights:
    """w_i of a client with m_i rows: m_i / N (by_rows), or 1 / n over the n clients that have rows. Where rows have
    weights m_i is the sum of these.

    clients, rows: n and N of the population
    """

    by_rows: bool
    clients: float
    rows: float

    def of_clients(self, sizes: np.ndarray) -> np.ndarray:
        """(C,) w_i; 0 for a client without rows."""
        return sizes / self.rows if self.by_rows else (sizes > 0) / self.clients

    def of_observations(self, leaf: LeafRows, observations: slice) -> np.ndarray | None:
        """N w_i / m_i of the clients of these observations, times their own weights; None if that is 1 for all."""
        own = leaf.weights_at(observations)
        if self.by_rows:
            return own
        each = self.rows / (self.clients * divisors_of(leaf.sizes))
        ends = leaf.observation_ptr
        first, last = np.searchsorted(ends, [observations.start, observations.stop - 1], "right") - 1
        counts = np.diff(np.clip(ends[first : last + 2], observations.start, observations.stop))
        repeated = np.repeat(each[first : last + 1], counts)
        return repeated if own is None else repeated * own


def weighted_statistic(model: CurvedEM, theta: Theta, leaf: LeafRows, weights: Weights) -> np.ndarray:
    """(q,) sum of w_i s_bar_i(theta), without separate sums for clients."""
    total = np.zeros(model.q)
    for observations, y in leaf.pieces():
        total += model.e_total(theta, y, weights.of_observations(leaf, observations))
    return total / weights.rows


def weighted_statistics_and_losses(
    model: CurvedEM, thetas: Sequence[Theta], leaf: LeafRows, weights: Weights
) -> tuple[np.ndarray, np.ndarray]:
    """(R, q) `weighted_statistic` and (R,) `weighted_loss` of each theta; a pass over the rows for TOGETHER of them."""
    statistics, losses = np.zeros((len(thetas), model.q)), np.zeros(len(thetas))
    for observations, y in leaf.pieces():
        each = weights.of_observations(leaf, observations)
        together = max(1, min(TOGETHER, MOST_NUMBERS // max(1, y.shape[0])))
        for low in range(0, len(thetas), together):
            some = slice(low, low + together)
            totals, values = model.e_totals_and_log_likelihoods(thetas[some], y, each)
            statistics[some] += totals
            losses[some] += [total_of(-own, each) for own in values]
            del values  # before there are others
    return statistics / weights.rows, losses / weights.rows


def weighted_loss(model: CurvedEM, theta: Theta, leaf: LeafRows, weights: Weights) -> float:
    """Sum of -w_i / m_i ln p(y_ij; theta), nats."""
    total = 0.0
    for observations, y in leaf.pieces():
        losses = -model.log_likelihood(theta, y)
        each = weights.of_observations(leaf, observations)
        total += total_of(losses, each)
    return total / weights.rows


def sum_of_losses(model: CurvedEM, theta: Theta, leaf: LeafRows) -> float:
    """Sum of -ln p(y_ij; theta), nats, each row once, or by its weight."""
    total = 0.0
    for observations, y in leaf.pieces():
        each = leaf.weights_at(observations)
        total -= total_of(model.log_likelihood(theta, y), each)
    return total


def total_of(values: np.ndarray, weights: np.ndarray | None) -> float:
    """The sum of values (n,), by their weights (n,) if there are any."""
    return float(values.sum() if weights is None else values @ weights)
