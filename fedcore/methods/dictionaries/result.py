"""What a run of dictionaries has learnt, for people: the global atoms."""

from __future__ import annotations

import numpy as np

from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.rounds.results import Column, Features, Pictures, Result, Table, of_columns

LARGEST = 5  # features of an atom that are named
CAPTION = (
    "Each atom as a picture, by its own largest weight; the sign of a whole atom means nothing. Exports have the "
    "weights."
)


def result_of(state: DictionariesState, features: Features) -> Result:
    """Tables of the global atoms: their sizes, and all their weights with a line for each feature; and the atoms as
    pictures where rows are such. Empty before the matching, and if no atom is global."""
    atoms = state.common
    if not state.begun or not len(atoms):
        return Result()
    norms = np.linalg.norm(atoms, axis=1)
    columns = [
        Column("atom", list(range(len(atoms)))),
        Column("norm", norms.tolist()),
        Column("largest weights", [_largest_weights(atom, features) for atom in atoms]),
    ]
    energy = np.diagonal(state.xx) * norms**2 if len(state.xx) else np.maximum(state.energies, 0.0)
    if energy.sum() > 0:  # known to the learner "statistics" alone
        columns.insert(2, Column("share of energy", (energy / energy.sum()).tolist(), "%"))
    weights = [Column(f"atom {number}", atom.tolist()) for number, atom in enumerate(atoms)]
    by_feature = (*of_columns(features, atoms.shape[1]), *weights)
    whole = Table("atoms", "Weights of the global atoms", by_feature, shown=features.image is None)
    tables = (Table("global_atoms", "Global atoms", tuple(columns)), whole)
    if features.image is None:
        return Result(tables)
    labels = tuple(f"atom {number}" for number in range(len(atoms)))
    return Result(tables, (Pictures("atoms", "Global atoms", CAPTION, labels, features.pictures(atoms)),))


def _largest_weights(atom: np.ndarray, features: Features) -> list[str]:
    """The features of the largest |weights| of an atom (d,), each with its weight."""
    order = np.argsort(-np.abs(atom), kind="stable")[:LARGEST]
    return [f"{features.name(int(i))} ({atom[i]:+.2f})" for i in order if atom[i] != 0]
