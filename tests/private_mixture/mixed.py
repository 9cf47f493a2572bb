"""Synthetic tables of numbers and categories: mixtures whose components differ in both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from fedcore.papers.private_mixture.data import Truth, mixture


@dataclass(frozen=True)
class MixedTruth:
    """numbers: the mixture of the first columns. answers: of each category (k, values) probabilities. missing: share of
    answers that are not given."""

    numbers: Truth
    answers: tuple[np.ndarray, ...]
    missing: float = 0.0

    @property
    def d(self) -> int:
        return self.numbers.means.shape[1]

    @property
    def categories(self) -> tuple[tuple[int, ...], ...]:
        """The columns of each category, as they are in a setting."""
        ends = np.cumsum([self.d, *(each.shape[1] for each in self.answers)]).tolist()
        return tuple(tuple(range(low, high)) for low, high in zip(ends[:-1], ends[1:], strict=True))

    def sample(self, n: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(n, features) rows, NaN in all columns of an answer that is missing, and their labels."""
        x, labels = self.numbers.sample(n, generator)
        parts = [x]
        for each in self.answers:
            value = (each[labels].cumsum(axis=1) < generator.random((n, 1))).sum(axis=1).clip(max=each.shape[1] - 1)
            one_hot = np.eye(each.shape[1])[value]
            one_hot[generator.random(n) < self.missing] = np.nan
            parts.append(one_hot)
        return np.concatenate(parts, axis=1), labels

    def log_joint(self, x: np.ndarray, categories: bool = True) -> np.ndarray:
        """(n, k). categories: whether answers count."""
        found = self.numbers.log_joint(x[:, : self.d])
        for own, each in zip(self.categories, self.answers, strict=True):
            entries = x[:, list(own)]
            given = np.isfinite(entries).all(axis=1) & categories
            found[given] += np.log(each.T[entries[given].argmax(axis=1)])
        return found


def mixed(
    d: int, k: int, separation: float, sizes: tuple[int, ...], generator: np.random.Generator, missing: float = 0.0
) -> MixedTruth:
    """A mixture as `mixture` has it, with categories of so many values: probabilities are symmetric Dirichlet of
    parameter 1/2, so that components differ in them, and none is told by them alone."""
    numbers = mixture(d, k, separation, generator)
    return MixedTruth(numbers, tuple(generator.dirichlet(np.full(size, 0.5), k) + 1e-6 for size in sizes), missing)
