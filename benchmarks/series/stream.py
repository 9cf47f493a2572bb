"""A stream of clients that come and leave, week by week, whose law drifts and is known.

Clients are those of `fedcore.population.synthetic`, without a held-out part: their counts are drawn once, in the week
in which they come. The logarithms of a cluster's law walk at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from pydantic import BaseModel, ConfigDict, Field

from fedcore.population.synthetic import SyntheticSettings, cluster_weights, dirichlet, multinomial, true_centres
from fedcore.randomness import stream


class StreamSettings(BaseModel):
    """Settings of a stream."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weeks: int = Field(default=104, ge=2, le=1000, description="weeks that the stream lasts")
    clients: int = Field(default=4000, ge=10, le=10**6, description="clients of the first week")
    arrivals: float = Field(default=0.03, ge=0, le=1, description="clients that come in a week, of those present")
    leaving: float = Field(default=0.02, gt=0, lt=1, description="share of the clients that leave in a week")
    features: int = Field(default=300, ge=2, le=10**5, description="vocabulary size d")
    clusters: int = Field(default=6, ge=1, le=100, description="number of clusters K")
    tokens: int = Field(default=100, ge=1, le=10**6, description="tokens of each client")
    drift: float = Field(default=5e-4, ge=0, le=1, description="nats that a cluster's distribution moves in a week")
    gamma: float = Field(default=300.0, gt=0, allow_inf_nan=False, description="concentration of initial distributions")
    alpha: float = Field(default=200.0, gt=0, allow_inf_nan=False, description="concentration of clients around them")


@dataclass(frozen=True)
class Stream:
    """The stream of a seed."""

    settings: StreamSettings
    seed: int

    @cached_property
    def _first(self) -> SyntheticSettings:
        s = self.settings
        return SyntheticSettings(clients=s.clients, features=s.features, clusters=s.clusters, gamma=s.gamma)

    @cached_property
    def weights(self) -> np.ndarray:
        """(K,) float64 share of the clients that are in each cluster."""
        return cluster_weights(self._first)

    @cached_property
    def laws(self) -> np.ndarray:
        """(weeks + 2, K, d) float64: the law of each cluster in weeks 0 .. weeks + 1; rows on the simplex."""
        laws = [true_centres(self._first, self.seed)]
        step = np.sqrt(2 * self.settings.drift)
        for week in range(1, self.settings.weeks + 2):
            moved = laws[-1] * np.exp(step * stream(self.seed, "stream/drift", week).standard_normal(laws[-1].shape))
            laws.append(moved / moved.sum(axis=1, keepdims=True))
        return np.stack(laws)

    @cached_property
    def calendar(self) -> tuple[np.ndarray, np.ndarray]:
        """(came, leaves) of every client that ever comes, int64 weeks: it is present in came[i] .. leaves[i] - 1."""
        came, leaves, present = np.zeros(0, np.int64), np.zeros(0, np.int64), self.settings.clients
        for week in range(1, self.settings.weeks + 1):
            new = self.settings.clients if week == 1 else round(self.settings.arrivals * present)
            stays = stream(self.seed, "stream/leaving", week).geometric(self.settings.leaving, new)
            came = np.concatenate([came, np.full(new, week)])
            leaves = np.concatenate([leaves, week + stays])
            present = int((leaves > week).sum())
        return came, leaves

    def arrived(self, week: int) -> tuple[list[str], sp.csr_matrix]:
        """(ids, (C, d) counts) of the clients that come in this week."""
        numbers = np.flatnonzero(self.calendar[0] == week)
        clusters = stream(self.seed, "stream/cluster", week).choice(len(self.weights), len(numbers), p=self.weights)
        own = dirichlet(self.settings.alpha * self.laws[week][clusters], stream(self.seed, "stream/own", week))
        counts = multinomial(self.settings.tokens, own, stream(self.seed, "stream/tokens", week))
        return names(numbers), counts

    def left(self, week: int) -> list[str]:
        """Ids of the clients that are present no more from this week on."""
        return names(np.flatnonzero(self.calendar[1] == week))

    def loss(self, centres: np.ndarray, week: int) -> float:
        """Mean KL(P || Q) in nats over the clusters by weight: P the law of a cluster in this week, Q that of the
        centres, (k, d) rows on the simplex, which is next to it.
        """
        law = self.laws[week]
        logs = np.log(np.maximum(centres, np.finfo(np.float64).tiny))
        divergence = (law * np.log(law)).sum(axis=1)[:, None] - law @ logs.T
        return float(self.weights @ divergence.min(axis=1))


def names(numbers: np.ndarray) -> list[str]:
    return [f"c{number:07d}" for number in numbers]
