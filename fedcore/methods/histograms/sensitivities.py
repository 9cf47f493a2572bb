"""The sensitivities of the private releases, whole numbers of grid steps; argued in docs/privacy/histograms.md.

All arrays but one are sums over clients of vectors of whole numbers >= 0. Exchanging a client's vector a for another b
changes such a sum by ||a - b||**2 = ||a||**2 + ||b||**2 - 2 a.b <= ||a||**2 + ||b||**2, whichever cells they are in.
So a bound S for adding or removing a client is a bound sqrt(2) S for replacing one, in place of the general 2 S.
The losses of `weights` have both signs, and there it is 2 S.
"""

from __future__ import annotations

import math

from fedcore.errors import ConfigError
from fedcore.privacy.grid import GRID_NORM

RELATIONS = ("add_or_remove_one", "replace_one")


def clipped_sum(relation: str) -> int:
    """Of a stack of sums of clipped histograms: 2**16, or the whole number above sqrt(2) 2**16."""
    return GRID_NORM if _adds_or_removes(relation) else math.isqrt(2 * GRID_NORM**2) + 1


def signed_sum(relation: str) -> int:
    """Of a sum of clipped vectors whose entries have both signs: 2**16, or 2**17."""
    return GRID_NORM if _adds_or_removes(relation) else 2 * GRID_NORM


def signed_factor(relation: str) -> float:
    """`signed_sum` in units of the clip: 1 or 2."""
    return signed_sum(relation) / GRID_NORM


def sensitivity_factor(relation: str) -> float:
    """`clipped_sum` in units of the clip: 1, or a hair above sqrt(2)."""
    return clipped_sum(relation) / GRID_NORM


def relation_of(factor: float) -> str:
    """The relation whose `sensitivity_factor` this is."""
    return "add_or_remove_one" if factor == 1.0 else "replace_one"


def _adds_or_removes(relation: str) -> bool:
    """Raises ConfigError for a relation that these bounds are not made for."""
    if relation not in RELATIONS:
        raise ConfigError(f"a histograms run knows no relation {relation!r}.", f"Known: {', '.join(RELATIONS)}.")
    return relation == "add_or_remove_one"
