"""Global matching: which atoms of the clients' dictionaries are the same, the most similar first (Algorithm 2).

path   the paper's: the clients in a chain, one atom of each on a path, whose length is the sum of the distances of
       neighbours; the shortest paths one after the other, no atom used twice
star   one client in the middle, the anchor: linear assignment of its atoms to those of every other client, each atom
       scored by its median distance over the clients, so that no single client can break the matching

Dictionaries may have different numbers of atoms; all atoms (r_i, d) have norm 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionary_learning.distances import (
    ZERO_DISTANCE,
    align_signs,
    assign,
    atom_distances,
    layer_matrices,
)

UNMATCHED = 2.0  # distance of an anchor's atom that found no partner
FAR = 0.7  # matched atoms further apart are left out of the aggregate
ALL_ANCHORS = 50  # clients up to which every one is tried as anchor
SOME_ANCHORS = 20


@dataclass(frozen=True, slots=True)
class Matching:
    """Global atoms in the order in which they were found, best first.

    index:  (N, rg) int64 which atom of each client it is; -1 if the client has none
    kept:   (N, rg) bool, whether that atom enters the aggregate
    scores: (rg,) length of the path, or median distance from the anchor's atom
    all_scores: of all candidates, sorted: with `star` (r,), the anchor's other atoms too
    anchor: client whose atoms the signs agree with; with `path` the first in the chain
    """

    index: np.ndarray
    kept: np.ndarray
    scores: np.ndarray
    all_scores: np.ndarray
    anchor: int


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


def path(dictionaries: Sequence[np.ndarray], count: int, orders: Iterable[np.ndarray] = ()) -> Matching:
    """Shortest paths through the clients in their order, or in that of the other orders whose paths are the shortest in
    total. An atom of every client enters every aggregate.

    orders: (clients,) each, a permutation of them
    """
    index, lengths = shortest_paths(dictionaries, count)
    anchor = 0
    for order in orders:
        found, found_lengths = shortest_paths([dictionaries[i] for i in order.tolist()], count)
        if found_lengths.sum() < lengths.sum():
            index = np.empty_like(found)
            index[order] = found
            lengths, anchor = found_lengths, int(order[0])
    return Matching(index, np.ones(index.shape, bool), lengths, lengths, anchor)


def star(dictionaries: Sequence[np.ndarray], count: int, generator: np.random.Generator) -> Matching:
    """Every candidate anchor's atoms assigned to every client's; the anchor whose `count` best atoms have the least
    total of median distances. Up to 50 clients all are candidates, beyond that 20 drawn at random.

    The median is over the other clients. Atoms further than 0.7 from the anchor's are not kept for the aggregate,
    unless that would leave none but the anchor's. Raises ValueError if no anchor has `count` atoms.
    """
    clients = len(dictionaries)
    anchors = np.arange(clients)
    if clients > ALL_ANCHORS:
        anchors = np.sort(generator.choice(clients, SOME_ANCHORS, replace=False))
    best: tuple[float, Matching] | None = None
    for anchor in anchors.tolist():
        if len(dictionaries[anchor]) < count:
            continue
        index, distances = _assigned_to(dictionaries, anchor)
        others = np.delete(distances, anchor, axis=0)
        score = np.median(others, axis=0) if len(others) else np.zeros(len(dictionaries[anchor]))
        order = np.argsort(score, kind="stable")
        top = order[:count]
        value = float(score[top].sum()) if count else float(score.sum())
        if best is None or value < best[0]:
            near = distances[:, top] <= FAR
            near[:, near.sum(0) < 2] = True
            chosen = index[:, top]
            best = value, Matching(chosen, near & (chosen >= 0), score[top], score[order], anchor)
    if best is None:
        raise ValueError(f"no anchor has {count} atoms")
    return best[1]


def _assigned_to(dictionaries: Sequence[np.ndarray], anchor: int) -> tuple[np.ndarray, np.ndarray]:
    """((N, r) atoms assigned to the anchor's r atoms, or -1; (N, r) their distances)."""
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
        present = matching.kept[i] & (matching.index[i] >= 0)
        out[i, present] = align_signs(atoms[matching.index[i, present]], reference[present])
    return out
