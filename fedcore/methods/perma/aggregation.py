"""Aggregation: one global dictionary from the clients' versions of it (Algorithm 1, step 13).

mean, median        of aligned atoms, coordinate by coordinate
unit, polar, none   what is done with the norms of the result: scaled to 1; polar factor; nothing, as in the paper
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionary_learning.operators import normalise, polar

NOT_SHARED = 0.3  # norm of a mean of unit atoms, below which the clients do not agree on a direction


@dataclass(frozen=True, slots=True)
class Aggregate:
    """atoms: (rg, d); least_norm: smallest norm before scaling; not_shared: how many norms were below 0.3."""

    atoms: np.ndarray
    least_norm: float
    not_shared: int


def aggregate(versions: np.ndarray, how: str, norm: str, previous: np.ndarray | None = None) -> Aggregate:
    """Mean or median of aligned atoms (N, rg, d), NaN where a client has none. previous: (rg, d), stays where nobody
    has an atom.

    Raises ValueError if nobody has one of the atoms and there is no previous one.
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
