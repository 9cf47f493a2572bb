"""One global dictionary from the clients' versions of it.

mean, median     of aligned atoms, coordinate by coordinate
unit, polar, none   what is done with its norms: scaled to 1; polar factor; as printed in the paper, nothing
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionaries.operators import normalise, polar

NOT_SHARED = 0.3  # norm of a mean of unit atoms, below which the clients do not agree on a direction


@dataclass(frozen=True, slots=True)
class Centre:
    """atoms: (rg, d); least: smallest norm before scaling; not_shared: atoms whose norm was below 0.3."""

    atoms: np.ndarray
    least: float
    not_shared: int


def centre(atoms: np.ndarray, how: str, norm: str, before: np.ndarray | None = None) -> Centre:
    """Of aligned atoms (N, rg, d), NaN where a client has none. before: (rg, d), stays where nobody has one.

    Raises ValueError if nobody has an atom and there is nothing before.
    """
    there = ~np.isnan(atoms[:, :, 0])
    missing = ~there.any(0)
    if missing.any() and before is None:
        raise ValueError("no client has one of the global atoms")
    if there.all():  # NumPy's functions that look for NaN are far slower
        found = np.median(atoms, axis=0) if how == "median" else np.mean(atoms, axis=0)
    else:
        filled = np.where(missing[None, :, None], before[None], atoms) if missing.any() else atoms
        found = np.nanmedian(filled, axis=0) if how == "median" else np.nanmean(filled, axis=0)
    return scaled(found, norm, before)


def scaled(found: np.ndarray, norm: str, before: np.ndarray | None = None) -> Centre:
    """The raw centre (rg, d) with its norms treated. An atom of norm 0 becomes the one before, if there is one."""
    unit, norms = normalise(found)
    least = float(norms.min(initial=np.inf)) if len(norms) else 1.0
    flagged = int((norms < NOT_SHARED).sum())
    if norm == "none":
        return Centre(found, least, flagged)
    if before is not None:
        unit = np.where(norms[:, None] > 0, unit, before)
    return Centre(polar(found, before) if norm == "polar" else unit, least, flagged)
