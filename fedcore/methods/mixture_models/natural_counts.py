"""Natural units of mixtures of counts: what `fedcore.methods.mixture_models.natural_units` is for Gaussians.

A step d of a statistic with T(S) = theta moves, to first order and without a penalty, a component's means m (rates,
probabilities of a one, or expected tokens of a usual row) by (d1 - m d0) / pi, and the expected log-likelihood of the
complete data falls by

    1/2 sum_g [ d0^2 / pi + sum_v (d1 - m d0)^2 / (pi v) ],    v = m (Poisson, multinomial) or m (1 - m) (Bernoulli)

the Fisher information of m being pi / v. So z0 = d0 / sqrt(pi) and z1 = (d1 - m d0) / sqrt(pi v) have half their
squared norm as that loss. For the multinomial m = length beta, and what a difference adds to all tokens of a component
in proportion, sum_v d1 - length d0, contains no information on beta: the loss is smaller than |z|^2 / 2 by half the
square of that over pi length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.counts import BernoulliMixture, CountMixture, MultinomialMixture
from fedcore.methods.mixture_models.packing import WEIGHT_FLOOR

VARIANCE_FLOOR = 1e-10  # of one count
LEAST_LEFT = 0.2  # of a rate after a step


@dataclass(frozen=True, eq=False)
class CountUnits:
    """The map between differences of statistics and natural units at theta. A
    `fedcore.methods.mixture_models.natural_units.Units`."""

    model: CountMixture
    theta: Theta

    order: ClassVar[Literal["C", "F"]] = "C"

    def forward(self, differences: np.ndarray) -> np.ndarray:
        """z (C, q) float64 of packed differences of statistics (C, q), one row for each client."""
        z = np.array(differences, np.float64)
        counts, first = self._split(z)
        first -= self._means * counts[..., None]
        z /= self._sizes
        return z

    def backward(self, z: np.ndarray) -> np.ndarray:
        """Packed differences of statistics (C, q) float64 of z (C, q): the inverse of `forward`."""
        differences = z * self._sizes
        counts, first = self._split(differences)
        first += self._means * counts[..., None]
        return differences

    def possible(self, s: np.ndarray) -> np.ndarray:
        """No rate falls below a fifth of what it is at theta, nor does a Bernoulli's share of zeros. Errors of messages
        reach words that hardly any row has, and one of thousands of them would be negative in every round."""
        s = s.copy()
        counts, first = self._split(s[None])
        np.maximum(first, LEAST_LEFT * self._means * counts[..., None], out=first)
        if isinstance(self.model, BernoulliMixture):
            np.minimum(first, (1.0 - LEAST_LEFT * (1.0 - self._means)) * counts[..., None], out=first)
        return s

    def _split(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Views of contiguous (C, q): (C, G) and (C, G, V)."""
        g = self.model.components
        return packed[:, :g], packed[:, g:].reshape(len(packed), g, self.model.features)

    @cached_property
    def _means(self) -> np.ndarray:
        """(G, V)."""
        if isinstance(self.model, MultinomialMixture):
            return self.model.length * self.theta["probabilities"]
        return self.theta["probabilities" if isinstance(self.model, BernoulliMixture) else "rates"]

    @cached_property
    def _sizes(self) -> np.ndarray:
        """(q,) what recentred differences are divided by."""
        m = self._means
        variances = m * (1.0 - m) if isinstance(self.model, BernoulliMixture) else m
        root = np.sqrt(np.maximum(self.theta["weights"], WEIGHT_FLOOR))
        first = root[:, None] * np.sqrt(np.maximum(variances, VARIANCE_FLOOR))
        return np.concatenate([root, first.ravel()])
