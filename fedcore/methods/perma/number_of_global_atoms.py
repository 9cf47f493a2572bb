"""How many atoms are global, where the settings leave it open: two rules.

null   as many as the star matches better than half as well as it would match clients who share nothing
jump   up to the largest jump of the path lengths (the paper, Section 3.2)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.methods.perma.matching import path, star
from fedcore.randomness import stream

REPEATS, FEW_REPEATS = 12, 3  # simulated populations of the null; fewer in many dimensions
MANY_DIMENSIONS = 50
LAST = 0.15  # null for one dimension left, where all local atoms are equal and the simulated one is 0
SHARE = 0.5  # of the null that a global atom's score stays below
POINTS = 6  # places at which a long null is simulated; between them it is interpolated
NULL_CLIENTS = 30  # more clients change the null little


def null_scores(dimensions: Sequence[int], atoms: Sequence[int], clients: int, seed: int) -> np.ndarray:
    """Best score of the star among clients who share nothing: each has so many random atoms in so many dimensions.

    Means over simulated populations, one number for each pair of `dimensions` and `atoms`.
    """
    out = []
    for m, r in zip(dimensions, atoms, strict=True):
        if m <= 1:
            out.append(LAST)
            continue
        generator = stream(seed, "dictionaries/null", m)
        scores = []
        for _ in range(REPEATS if m <= MANY_DIMENSIONS else FEW_REPEATS):
            dictionaries = [random_atoms(generator, r, m) for _ in range(min(clients, NULL_CLIENTS))]
            scores.append(star(dictionaries, 1, generator).scores[0])
        out.append(float(np.mean(scores)))
    return np.array(out)


def by_null(scores: np.ndarray, features: int, clients: int, seed: int) -> int:
    """Number of leading scores below half of the null for the dimensions and atoms that are left after so many.

    scores: (r,) sorted scores of the star. features: d. For square dictionaries r = d - 1 and d cannot be told apart.
    """
    r = len(scores)
    at = np.arange(r) if r <= 2 * POINTS else np.unique(np.linspace(0, r - 1, POINTS).round().astype(int))
    null = null_scores((features - at).tolist(), (r - at).tolist(), clients, seed)
    below = scores < SHARE * np.interp(np.arange(r), at, null)
    return int(r if below.all() else np.argmin(below))


def by_jump(lengths: np.ndarray, clients: int) -> int:
    """Number of paths before the largest ratio of consecutive lengths; cannot be 0 or all. lengths: (r,)."""
    if len(lengths) < 2:
        return len(lengths)
    floor = 1e-7 * max(clients - 1, 1)  # of rounding, below which ratios mean nothing
    ordered = np.sort(lengths) + floor
    return int(np.argmax(ordered[1:] / ordered[:-1])) + 1


def number_by_rule(rule: str, dictionaries: Sequence[np.ndarray], seed: int) -> tuple[int, np.ndarray]:
    """(number of global atoms, the scores that it was read from) by the rule "null" or "jump"."""
    count = min(len(atoms) for atoms in dictionaries)
    if rule == "jump":
        lengths = path(dictionaries, count).scores
        return by_jump(lengths, len(dictionaries)), lengths
    scores = star(dictionaries, min(1, count), stream(seed, "dictionaries/anchors")).all_scores[:count]
    return by_null(scores, dictionaries[0].shape[1], len(dictionaries), seed), scores
