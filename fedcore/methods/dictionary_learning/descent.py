"""Moves of atoms by sums of codes and samples, which need no sample.

Source: Mairal, Bach, Ponce, Sapiro 2010, Algorithm 2.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.dictionary_learning.operators import normalise

UNUSED = 1e-12  # an atom with less than this share of the mean energy of codes is unused
SPLIT = 0.01  # by how much the two halves of a doubled atom differ


def descend(atoms: np.ndarray, xx: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Every atom in turn to its exact minimum of |Y - X D|^2 given the others and the codes, then scaled to norm 1.

    atoms, xy: (r, d); xx: (r, r). Unused atoms stay. Returns (r, d).
    """
    atoms = np.array(atoms, np.float64)
    if not len(atoms):
        return atoms
    energy = np.diagonal(xx)
    used = np.flatnonzero(energy > UNUSED * max(float(energy.mean()), np.finfo(float).tiny))
    for j in used:
        new = atoms[j] + (xy[j] - xx[j] @ atoms) / energy[j]
        norm = np.linalg.norm(new)
        if norm > 0:
            atoms[j] = new / norm
    return atoms


def without_unused(common: np.ndarray, energy: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, int]:
    """(dictionary, number of replaced atoms): an atom that nobody uses becomes a slightly moved copy of the most used
    one that has not been copied yet; the next codes tell them apart. No sample is needed for that.

    common: (rg, d); energy: (rg,) sum of squared codes of each atom.
    """
    if not len(common):
        return common, 0
    dead = np.flatnonzero(energy <= UNUSED * max(float(energy.mean()), np.finfo(float).tiny))
    if not len(dead) or len(dead) == len(energy):
        return common, 0
    common = common.copy()
    order = np.setdiff1d(np.argsort(-energy, kind="stable"), dead, assume_unique=True)
    for at, source in zip(dead, np.resize(order, len(dead)), strict=True):
        noise = generator.standard_normal(common.shape[1]) / np.sqrt(common.shape[1])
        common[at] = normalise(common[source] + SPLIT * noise)[0]
    return common, len(dead)
