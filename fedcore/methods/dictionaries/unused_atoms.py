"""Global atoms that nobody uses, replaced without a look at any sample."""

from __future__ import annotations

import numpy as np

from fedcore.methods.dictionaries.learners import UNUSED
from fedcore.methods.dictionaries.operators import normalise

SPLIT = 0.01  # by how much the two halves of a doubled atom differ


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
