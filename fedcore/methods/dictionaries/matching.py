"""Global matching: which atoms of the clients' dictionaries are the same (Algorithm 2), the surest first.

    path   shortest paths through the clients' atoms, one after the other, no atom used twice
    star   linear assignment of an anchor client's atoms to everybody's; scored by medians over the clients, so that no
           single client can break it

Dictionaries may have different numbers of atoms; all atoms (r_i, d) have norm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionaries.distances import ZERO_DISTANCE, align_signs, assign, atom_distances, layer_matrices

UNMATCHED = 2.0  # distance of an anchor's atom that found no partner
FAR = 0.7  # matched atoms further apart are left out of their centre
ALL_ANCHORS = 50  # clients up to which every one is tried as anchor
SOME_ANCHORS = 20


@dataclass(frozen=True, slots=True)
class Matching:
    """Global atoms in the order in which they were found, best first.

    index:  (N, rg) int64 which atom of each client it is; -1 if the client has none
    kept:   (N, rg) bool, whether that atom enters the centre
    scores: (rg,) length of the path, or median distance from the anchor's atom; all candidates of the star follow in
            `every`: (r,) sorted
    anchor: client whose atoms the signs agree with
    """

    index: np.ndarray
    kept: np.ndarray
    scores: np.ndarray
    every: np.ndarray
    anchor: int

    def first(self, count: int) -> Matching:
        return Matching(self.index[:, :count], self.kept[:, :count], self.scores[:count], self.every, self.anchor)


def shortest_paths(dictionaries: Sequence[np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` successive shortest paths by dynamic programming over the layers; used atoms are removed.

    Returns (index (N, count), lengths (count,)). Ties go to the lowest atom. Raises ValueError if a client has fewer
    atoms than `count`.
    """
    if min(len(atoms) for atoms in dictionaries) < count:
        raise ValueError(f"{count} disjoint paths need as many atoms of every client")
    layers = [without_rounding(layer) for layer in layer_matrices(list(dictionaries))]
    removed = [np.zeros(len(atoms)) for atoms in dictionaries]
    index = np.empty((len(dictionaries), count), np.int64)
    lengths = np.empty(count)
    for j in range(count):
        cost, back = removed[0], []
        for layer, penalty in zip(layers, removed[1:], strict=True):
            through = cost[:, None] + layer
            best = through.argmin(0)
            back.append(best)
            cost = through[best, np.arange(len(best))] + penalty
        at = int(cost.argmin())
        lengths[j] = cost[at]
        for i in range(len(dictionaries) - 1, -1, -1):
            index[i, j] = at
            removed[i][at] = np.inf
            if i:
                at = int(back[i - 1][at])
    return index, lengths


def path(
    dictionaries: Sequence[np.ndarray], count: int, tries: int = 1, generator: np.random.Generator | None = None
) -> Matching:
    """Shortest paths in the clients' order, or the best in total length of `tries` orders, all but one of them random.

    Returns the matching; an atom of every client enters every centre.
    """
    clients = len(dictionaries)
    best = None
    for attempt in range(tries):
        order = np.arange(clients) if attempt == 0 else generator.permutation(clients)
        found, lengths = shortest_paths([dictionaries[i] for i in order], count)
        if best is None or lengths.sum() < best[1].sum():
            index = np.empty_like(found)
            index[order] = found
            best = index, lengths, int(order[0])
    index, lengths, first = best
    return Matching(index, np.ones(index.shape, bool), lengths, lengths, first)


def star(dictionaries: Sequence[np.ndarray], count: int, generator: np.random.Generator) -> Matching:
    """Every candidate anchor's atoms assigned to every client's; the anchor whose `count` best atoms have the least
    total of median distances. Up to 50 clients all are candidates, beyond that 20 drawn at random.

    The median is over the other clients. Atoms further than 0.7 from the anchor's are not kept for the centre, unless
    that would leave none but the anchor's.
    """
    clients = len(dictionaries)
    if clients <= ALL_ANCHORS:
        anchors = np.arange(clients)
    else:
        anchors = np.sort(generator.choice(clients, SOME_ANCHORS, replace=False))
    best = None
    for anchor in anchors:
        if len(dictionaries[anchor]) < count:
            continue
        index, distances = _around(dictionaries, int(anchor))
        others = np.delete(distances, anchor, axis=0)
        score = np.median(others, axis=0) if len(others) else np.zeros(len(dictionaries[anchor]))
        order = np.argsort(score, kind="stable")
        value = float(score[order[:count]].sum()) if count else float(score.sum())
        if best is None or value < best[0]:
            best = value, int(anchor), index, distances, score, order
    if best is None:
        raise ValueError(f"no anchor has {count} atoms")
    _, anchor, index, distances, score, order = best
    top = order[:count]
    near = distances[:, top] <= FAR
    near[:, near.sum(0) < 2] = True
    index = index[:, top]
    return Matching(index, near & (index >= 0), score[top], score[order], anchor)


def _around(dictionaries: Sequence[np.ndarray], anchor: int) -> tuple[np.ndarray, np.ndarray]:
    """((N, r) atoms assigned to the anchor's, or -1; (N, r) their distances)."""
    middle = dictionaries[anchor]
    index = np.full((len(dictionaries), len(middle)), -1, np.int64)
    distances = np.full(index.shape, UNMATCHED)
    for i, atoms in enumerate(dictionaries):
        costs = without_rounding(atom_distances(middle, atoms))
        if i == anchor:
            index[i], distances[i] = np.arange(len(middle)), 0.0
        elif len(atoms) >= len(middle):
            index[i] = assign(costs)
            distances[i] = costs[np.arange(len(middle)), index[i]]
        else:
            mine = assign(costs.T)
            index[i, mine] = np.arange(len(atoms))
            distances[i, mine] = costs[mine, np.arange(len(atoms))]
    return index, distances


def without_rounding(distances: np.ndarray) -> np.ndarray:
    """Distances below what rounding leaves of equal atoms become 0, so that ties are ties and go to the first."""
    return np.where(distances < ZERO_DISTANCE, 0.0, distances)


def matched_atoms(dictionaries: Sequence[np.ndarray], matching: Matching) -> np.ndarray:
    """(N, rg, d) atoms of a matching, signs as the anchor's; NaN where a client has none or its atom is not kept."""
    reference = dictionaries[matching.anchor][matching.index[matching.anchor]]
    out = np.full((len(dictionaries), *reference.shape), np.nan)
    for i, atoms in enumerate(dictionaries):
        there = matching.kept[i] & (matching.index[i] >= 0)
        out[i, there] = align_signs(atoms[matching.index[i, there]], reference[there])
    return out
