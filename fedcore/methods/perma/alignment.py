"""Alignment: which atoms of an updated dictionary are the global ones (Algorithm 3, steps 3 to 9).

lsa      linear sum assignment: no atom is chosen twice, least total distance
seq      for one global atom after the other the nearest atom that is left
greedy   the nearest atom, as in the paper: may choose an atom twice (a collision)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionary_learning.distances import align_signs, assign, atom_distances


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
