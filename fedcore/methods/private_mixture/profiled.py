"""The range of every column, as a profile of the population has released it.

A run that starts from a profile does not release centres and spans again (`fedcore.methods.private_mixture.plan`). It
still counts its own cells of columns, from which the form of a column and its gaps follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.profiled import CENTRE, PROFILED_NAMES, REACH
from fedcore.methods.private_mixture.layout import Layout
from fedcore.rounds.method import PublicFacts

LARGEST = 2.0**1000  # of a centre or a reach, so that no message overflows


@dataclass(frozen=True, slots=True)
class Ranges:
    """(d,) each, of the columns of numbers, in the units of the data. reach: the distance that holds most numbers."""

    centre: np.ndarray
    reach: np.ndarray


def is_of_profile(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether the arrays of a warm start are those of a profile."""
    return CENTRE in arrays or REACH in arrays


def ranges_in(public: PublicFacts, layout: Layout) -> Ranges | None:
    """What the run starts from; None if that is no profile. Raises ConfigError for what `checked` refuses."""
    start = public.warm_start
    return checked(start, layout, "the start") if start and is_of_profile(start) else None


def checked(arrays: Mapping[str, np.ndarray], layout: Layout, what: str) -> Ranges:
    """Raises ConfigError unless a profile of these columns could leave the arrays, with a range of each number."""
    found = [np.asarray(arrays.get(name, np.zeros(0))) for name in PROFILED_NAMES]
    if set(arrays) != {*PROFILED_NAMES} or any(
        each.shape != (layout.features,) or each.dtype.kind not in "iuf" for each in found
    ):
        raise ConfigError(
            f"{what} does not hold what a profile of these {layout.features} columns leaves.",
            "Start from a profile of this population, or from nothing.",
        )
    centre, reach = (each.astype(np.float64)[layout.numeric] for each in found)
    if not (np.abs(centre) <= LARGEST).all() or not ((reach >= 0) & (reach <= LARGEST)).all():
        raise ConfigError(f"{what} holds what no profile leaves.", "Start from another run, or from nothing.")
    if (unknown := layout.numeric[reach == 0]).size:
        raise ConfigError(
            f"{what} knows no range of column {unknown[0]}, counted from 0: the column has no bounds, or too few "
            "people have a number in it.",
            "Declare bounds of the column and make a new profile, or start from nothing.",
        )
    return Ranges(centre, reach)
