"""Categories on the server: each component's probabilities from noisy counts of answers.

A component has a probability for each value of each category, and categories are independent within it. A round counts
answers by component and value; the probabilities move from those of the round before (in the first round, from those of
all units) as far as noise is not expected to have moved them, as means do (`fedcore.methods.private_mixture.em`). What
noise makes of a rare value may be negative: a count stands for the mean of what it may be if it cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy

from fedcore.methods.private_mixture.em import believed

LOWEST = -30.0  # deviations below zero, beyond which a count says no more
PRIOR = 0.5  # of each value, in units (Krichevsky and Trofimov)


@dataclass(frozen=True, slots=True)
class Answers:
    """probabilities: (k + 1, values), each category's sum to one; those of the background, the last, are those of all
    units. known: (k, categories) variances of the noise in a probability. Both are of no component before the first
    round."""

    probabilities: np.ndarray
    known: np.ndarray


def slices(sizes: tuple[int, ...]) -> Iterator[slice]:
    """Of each category among all values."""
    first = 0
    for size in sizes:
        yield slice(first, first + size)
        first += size


def not_negative(counts: np.ndarray, noise: np.ndarray | float) -> np.ndarray:
    """The posterior mean of numbers that are at least 0, with a flat prior. counts: noisy values of them, with normal
    noise of this standard deviation."""
    sd = np.maximum(noise, 1e-12)
    t = np.maximum(counts / sd, LOWEST)
    mean: np.ndarray = sd * (t + np.exp(-0.5 * t * t - scipy.special.log_ndtr(t)) / math.sqrt(2 * math.pi))
    return np.maximum(mean, 0.0)


def moved(
    before: Answers, counts: np.ndarray, noise: float, sizes: tuple[int, ...], stay: np.ndarray, pooled: bool = False
) -> Answers:
    """After a round. counts: (k + 1, values) published, in units, the background's last; noise: of each. stay: (k,)
    bool, the components that are kept. pooled: whether what was known counts, as in runs of a series."""
    k = len(counts) - 1
    probabilities, known = np.zeros(counts.shape), np.zeros((k, len(sizes)))
    for category, own in enumerate(slices(sizes)):
        size, found = sizes[category], counts[:, own]
        everybody = not_negative(found.sum(axis=0), noise * math.sqrt(k + 1)) + PRIOR
        everybody /= everybody.sum()
        old = before.probabilities[:k, own] if len(before.probabilities) else np.tile(everybody, (k, 1))
        answered = np.maximum(found[:k].sum(axis=1), max(noise * math.sqrt(size), 1.0))
        away = found[:k] - answered[:, None] * old
        numbers = size - 2 + size * (old**2).sum(axis=1)  # of noise in `away`, in its own variance
        uncertain = (noise / answered) ** 2
        prior = before.known[:, category] if pooled else None
        step = believed((away**2).sum(axis=1) / answered**2, uncertain, prior, numbers)
        here = not_negative(answered[:, None] * old + step.share[:, None] * away, step.share[:, None] * noise) + PRIOR
        probabilities[:k, own] = here / here.sum(axis=1, keepdims=True)
        probabilities[k, own] = everybody
        known[:, category] = step.known
    return Answers(probabilities[np.append(stay, True)], known[stay])
