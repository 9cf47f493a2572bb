"""What a run has learnt, for people: the global atoms.

What each client is given: its local atoms, and its samples split into a global and a local part.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedcore.methods.dictionary_learning.distances import groups
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import ClientOutputs, Memory
from fedcore.rounds.results import Column, Features, Pictures, Result, Table, of_columns

Code = Callable[[np.ndarray, np.ndarray], np.ndarray]  # samples (..., n, d), atoms (..., r, d) -> codes (..., n, r)
# samples (..., n, d), global atoms (rg, d), local ones (..., l, d) -> the parts of the samples that they make, and
# perhaps the codes (..., n, rg + l)
Parts = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, ...]]


def parts_together(code: Code, with_codes: bool = False) -> Parts:
    """Samples coded with [G | L] together; leading axes of samples and local atoms are clients."""

    def parts(samples: np.ndarray, common: np.ndarray, local: np.ndarray) -> tuple[np.ndarray, ...]:
        atoms = common
        if local.shape[-2]:
            atoms = np.concatenate([np.broadcast_to(common, (*local.shape[:-2], *common.shape)), local], axis=-2)
        codes = code(samples, atoms)
        made = codes[..., : len(common)] @ common, codes[..., len(common) :] @ local
        return (*made, codes) if with_codes else made

    return parts


def outputs_of(
    parts: Parts, common: np.ndarray, block: RowsBlock, memory: Memory, stacked: bool = True, longest: int = 0
) -> ClientOutputs:
    """One row for each client of a leaf, or for each of its samples.

    common: (rg, d); memory: "rank" (C,), "local" (C, l, d), "distance" (C,); stacked: whether `parts` takes several
    clients at once; longest: atoms k of a code at most, where `parts` returns codes. Raises PopulationError for values
    that are not finite.

    local:    (C, r - rg, d) float64 local atoms, zeros beyond a client's rank
    rank:     (C,) int64 atoms of its dictionary [G | L_i]; 0 for a client without samples other than zero
    loss:     (C,) float64 mean squared residual of a sample with the codes given here; NaN without samples
    distance: (C,) float64 mean distance of the client's version of the global atoms from them, in its last round
    rows_global, rows_local: (N, d) float32 parts of the samples; their sum is the reconstruction
    rows_atoms:    (N, k) int32 atoms of [G | L_i] that a sample's code is made of, ascending; -1 beyond their number
    rows_weights:  (N, k) float32 their weights; with `rows_atoms` the sparse matrix of codes
    """
    shape = block.x.shape
    outputs = {
        "local": memory["local"],
        "rank": memory["rank"],
        "loss": np.full(block.clients, np.nan),
        "distance": memory["distance"],
        "rows_global": np.zeros(shape, np.float32),
        "rows_local": np.zeros(shape, np.float32),
    }
    if longest:
        outputs["rows_atoms"] = np.full((len(block.x), longest), -1, np.int32)
        outputs["rows_weights"] = np.zeros((len(block.x), longest), np.float32)
    sizes = np.diff(block.ptr)
    outputs["loss"][(sizes > 0) & (memory["rank"] == 0)] = 0.0
    wanted = len(common)
    for group in groups(block, memory["rank"]):
        done = np.zeros(len(group.clients), np.int64)
        loss = np.zeros(len(group.clients))
        local = memory["local"][group.clients, : group.rank - wanted]
        for tile in group.tiles():
            whole = parts(tile, common, local) if stacked else None
            for i, client in enumerate(group.clients):
                low = int(block.ptr[client] + done[i])
                high = min(low + tile.shape[1], int(block.ptr[client + 1]))
                samples = tile[i, : high - low]
                if whole is None:
                    global_part, local_part, *codes = parts(samples, common, local[i])
                else:
                    global_part, local_part, *codes = (part[i, : high - low] for part in whole)
                if longest:
                    at, weights = _sparse(codes[0], longest)
                    outputs["rows_atoms"][low:high, : at.shape[1]] = at
                    outputs["rows_weights"][low:high, : at.shape[1]] = weights
                outputs["rows_global"][low:high], outputs["rows_local"][low:high] = global_part, local_part
                loss[i] += ((samples - global_part - local_part) ** 2).sum()
                done[i] += high - low
        outputs["loss"][group.clients] = loss / group.sizes
    return outputs


def _sparse(codes: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """(atoms, weights), (n, at most `longest`) each: those of codes (n, r) that are not 0, ascending; then -1 and 0."""
    atoms = np.argsort(codes == 0, axis=1, kind="stable")[:, :longest]
    weights = np.take_along_axis(codes, atoms, axis=1)
    return np.where(weights == 0, -1, atoms), weights


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
