"""What a run has learnt, for people: the global atoms."""

from __future__ import annotations

import numpy as np

from fedcore.rounds.results import Column, Features, Pictures, Result, Table, of_columns

LARGEST = 5  # features of an atom that are named
CAPTION = (
    "Each atom as a picture, by its own largest weight; the sign of a whole atom means nothing. Exports have the "
    "weights."
)


def result_of(atoms: np.ndarray, features: Features, energies: np.ndarray | None = None) -> Result:
    """Tables of the global atoms (rg, d): their sizes, and all their weights with a line for each feature; and the
    atoms as pictures where rows are such. Empty if no atom is global. energies: (rg,) sums or means of squared codes,
    if they are known."""
    if not len(atoms):
        return Result()
    norms = np.linalg.norm(atoms, axis=1)
    columns = [
        Column("atom", list(range(len(atoms)))),
        Column("norm", norms.tolist()),
        Column("largest weights", [_largest_weights(atom, features) for atom in atoms]),
    ]
    if energies is not None and energies.sum() > 0:
        columns.insert(2, Column("share of energy", (energies / energies.sum()).tolist(), "%"))
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
