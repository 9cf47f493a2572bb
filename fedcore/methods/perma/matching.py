"""Global matching: which atoms of the clients' dictionaries are the same, the most similar first (Algorithm 2).

path   the paper's: the clients in a chain, one atom of each on a path, whose length is the sum of the distances of
       neighbours; the shortest paths one after the other, no atom used twice
star   one client in the middle, the anchor: linear assignment of its atoms to those of every other client, each atom
       scored by its median distance over the clients, so that no single client can break the matching

How many atoms are global, where the settings leave it open, has two rules:

null   as many as the star matches better than half as well as it would match clients who share nothing
jump   up to the largest jump of the path lengths (the paper, Section 3.2)

Dictionaries may have different numbers of atoms; all atoms (r_i, d) have norm 1.

Alignment: which atoms of an updated dictionary are the global ones (Algorithm 3, steps 3 to 9).

lsa      linear sum assignment: no atom is chosen twice, least total distance
seq      for one global atom after the other the nearest atom that is left
greedy   the nearest atom, as in the paper: may choose an atom twice (a collision)

Aggregation: one global dictionary from the clients' versions of it (Algorithm 1, step 13).

mean, median        of aligned atoms, coordinate by coordinate
unit, polar, none   what is done with the norms of the result: scaled to 1; polar factor; nothing, as in the paper
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionary_learning.distances import (
    ZERO_DISTANCE,
    align_signs,
    assign,
    atom_distances,
    layer_matrices,
)
from fedcore.methods.dictionary_learning.operators import normalise, polar, random_atoms
from fedcore.randomness import stream

UNMATCHED = 2.0  # distance of an anchor's atom that found no partner
FAR = 0.7  # matched atoms further apart are left out of the aggregate
ALL_ANCHORS = 50  # clients up to which every one is tried as anchor
SOME_ANCHORS = 20
REPEATS, FEW_REPEATS = 12, 3  # simulated populations of the null; fewer in many dimensions
MANY_DIMENSIONS = 50
LAST = 0.15  # null for one dimension left, where all local atoms are equal and the simulated one is 0
SHARE = 0.5  # of the null that a global atom's score stays below
POINTS = 6  # places at which a long null is simulated; between them it is interpolated
NULL_CLIENTS = 30  # more clients change the null little


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


def path(dictionaries: Sequence[np.ndarray], count: int) -> Matching:
    """Shortest paths through the clients in their order. An atom of every client enters every aggregate."""
    index, lengths = shortest_paths(dictionaries, count)
    return Matching(index, np.ones(index.shape, bool), lengths, lengths, 0)


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


# --- how many atoms are global ----------------------------------------------------------------------------------------


def null_scores(dimensions: Sequence[int], atoms: Sequence[int], clients: int, seed: int) -> np.ndarray:
    """Best score of the star among clients who share nothing and have random atoms.

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
    """Number of leading scores below half of the null for the dimensions and atoms that are left at each place.

    scores: (r,) sorted scores of the star. features: d. For square dictionaries, r = d - 1 and d are indistinguishable.
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


@dataclass(frozen=True, slots=True)
class Aligned:
    """Dictionaries of c clients, divided.

    common:     (c, rg, d) the chosen atoms, with the signs of the global ones
    local:      (c, r - rg, d) the others, in their order
    index:      (c, rg) int64 which atoms were chosen
    distances:  (c, rg) of the chosen atoms from the global ones
    collisions: (c,) how many choices had been made before
    """

    common: np.ndarray
    local: np.ndarray
    index: np.ndarray
    distances: np.ndarray
    collisions: np.ndarray


def align(reference: np.ndarray, atoms: np.ndarray, rule: str = "lsa") -> Aligned:
    """Divide atoms (c, r, d) by their distances from the global ones `reference`, (rg, d) or (c, rg, d).

    The number of local atoms never changes: after collisions of "greedy" more than r - rg atoms are not chosen, and
    those after the first r - rg are dropped. Raises ValueError if rg > r or for an unknown rule.
    """
    c, r, d = atoms.shape
    wanted = reference.shape[-2]
    if wanted > r:
        raise ValueError(f"{wanted} global atoms cannot be chosen among {r}")
    reference = np.broadcast_to(reference, (c, wanted, d))
    if not wanted:
        none = np.zeros((c, 0))
        return Aligned(atoms[:, :0], atoms, none.astype(np.int64), none, np.zeros(c, np.int64))
    distances = atom_distances(reference, atoms)
    index = distances.argmin(2)
    collisions = wanted - _distinct(index)
    if rule == "lsa":
        # Nearest atoms that are all different are an assignment of least total; only the other clients need solving.
        for i in np.flatnonzero(collisions):
            index[i] = assign(distances[i])
        collisions = wanted - _distinct(index)
    elif rule == "seq":
        index = _in_turn(distances)
        collisions = wanted - _distinct(index)
    elif rule != "greedy":
        raise ValueError(f"unknown rule {rule!r}")
    common, local = divide(atoms, index)
    chosen = np.take_along_axis(distances, index[:, :, None], 2)[:, :, 0]
    return Aligned(align_signs(common, reference), local, index, chosen, collisions)


def divide(atoms: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(atoms at index (c, rg), the first r - rg of the others in their order)."""
    c, r, _ = atoms.shape
    free = np.ones((c, r), bool)
    np.put_along_axis(free, index, False, 1)
    order = np.argsort(~free, axis=1, kind="stable")[:, : r - index.shape[1]]
    return np.take_along_axis(atoms, index[:, :, None], 1), np.take_along_axis(atoms, order[:, :, None], 1)


def _distinct(index: np.ndarray) -> np.ndarray:
    """(c,) number of different entries of each row."""
    ordered = np.sort(index, axis=1)
    return 1 + (np.diff(ordered, axis=1) != 0).sum(1)


def _in_turn(distances: np.ndarray) -> np.ndarray:
    left = distances.copy()
    index = np.empty(distances.shape[:2], np.int64)
    clients = np.arange(len(distances))
    for j in range(distances.shape[1]):
        index[:, j] = left[:, j].argmin(1)
        left[clients, :, index[:, j]] = np.inf
    return index


# --- aggregation ------------------------------------------------------------------------------------------------------


NOT_SHARED = 0.3  # norm of a mean of unit atoms, below which the clients do not agree on a direction


@dataclass(frozen=True, slots=True)
class Aggregate:
    """atoms: (rg, d); least_norm: smallest norm before scaling; not_shared: how many norms were below 0.3."""

    atoms: np.ndarray
    least_norm: float
    not_shared: int


def aggregate(versions: np.ndarray, how: str, norm: str, previous: np.ndarray | None = None) -> Aggregate:
    """Mean or median of aligned atoms (N, rg, d), NaN where a client has none. previous: (rg, d), stays where no
    client has an atom.

    Raises ValueError if no client has one of the atoms and there is no previous one.
    """
    present = ~np.isnan(versions[:, :, 0])
    if present.all():  # NumPy's functions that look for NaN are far slower
        return with_norm(np.median(versions, axis=0) if how == "median" else np.mean(versions, axis=0), norm, previous)
    missing = ~present.any(0)
    if missing.any():
        if previous is None:
            raise ValueError("no client has one of the global atoms")
        versions = np.where(missing[None, :, None], previous[None], versions)
    raw = np.nanmedian(versions, axis=0) if how == "median" else np.nanmean(versions, axis=0)
    return with_norm(raw, norm, previous)


def with_norm(raw: np.ndarray, norm: str, previous: np.ndarray | None = None) -> Aggregate:
    """The raw mean or median (rg, d) with its norms treated. An atom of norm 0 becomes the previous one, if any."""
    unit, norms = normalise(raw)
    least = float(norms.min(initial=np.inf)) if len(norms) else 1.0
    not_shared = int((norms < NOT_SHARED).sum())
    if norm == "none":
        return Aggregate(raw, least, not_shared)
    if norm == "polar":
        return Aggregate(polar(raw, previous), least, not_shared)
    if previous is not None:
        unit = np.where(norms[:, None] > 0, unit, previous)
    return Aggregate(unit, least, not_shared)
