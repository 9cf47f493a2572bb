"""What a run of dictionaries has learnt, for people: the global atoms."""

from __future__ import annotations

import numpy as np

from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.rounds.results import Column, Features, Result, Table

ATOMS = 100  # that are shown at most
LARGEST = 5  # features of an atom that are named


def result_of(state: DictionariesState, features: Features) -> Result:
    """A table of the global atoms; empty before the matching, and if no atom is global."""
    atoms = state.common
    if state.phase == "start" or not len(atoms):
        return Result()
    norms = np.linalg.norm(atoms, axis=1)
    columns = [
        Column("atom", list(range(1, len(atoms[:ATOMS]) + 1))),
        Column("norm", norms[:ATOMS].tolist()),
        Column("largest weights", [_largest_weights(atom, features) for atom in atoms[:ATOMS]]),
    ]
    energy = np.diagonal(state.xx) * norms**2 if len(state.xx) else np.zeros(0)
    if energy.sum() > 0:  # known to the learner "statistics" alone
        columns.insert(2, Column("share of energy", (energy / energy.sum())[:ATOMS].tolist(), "%"))
    title = "Global atoms" if len(atoms) <= ATOMS else f"The first {ATOMS} of {len(atoms)} global atoms"
    return Result((Table("global_atoms", title, tuple(columns)),))


def _largest_weights(atom: np.ndarray, features: Features) -> list[str]:
    """The features of the largest |weights| of an atom (d,), each with its weight."""
    order = np.argsort(-np.abs(atom), kind="stable")[:LARGEST]
    return [f"{features.name(int(i))} ({atom[i]:+.2f})" for i in order if atom[i] != 0]
