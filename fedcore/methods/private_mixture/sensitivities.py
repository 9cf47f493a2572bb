"""The L2 sensitivities of the releases, whole numbers of grid steps; argued in docs/privacy/private-mixture.md.

relation: "add_or_remove_one" or "replace_one". Each function raises ConfigError for any other.
"""

from __future__ import annotations

import math

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.whole_rows import OFF_DIAGONAL, ONE

RELATIONS = ("add_or_remove_one", "replace_one")
UNITS = ("client", "record")


def counts(relation: str, histograms: int = 1) -> int:
    """Sensitivity of counts in several histograms, to each of which a unit adds at most ONE, or of shares that sum to
    ONE at most: sqrt(histograms) ONE. No entry is negative, so replacing a unit changes the sum by sqrt(2) times as
    much."""
    return _root_above(histograms * ONE**2 * (1 if _one_sided(relation) else 2))


def sums(relation: str, parts: int = 1) -> int:
    """Of `parts` vectors of norm ONE each: sqrt(parts) ONE; to replace a unit, twice that."""
    bound = _root_above(parts * ONE**2)
    return bound if _one_sided(relation) else 2 * bound


def moments(relation: str) -> int:
    """Of `whole_products` of vectors whose squared norms sum to ONE at most, in one matrix or dealt to several:
    sqrt(OFF_DIAGONAL^2 / 2) ONE, rounded up; to replace a unit, OFF_DIAGONAL ONE, which is sqrt(2) times that."""
    return _root_above(OFF_DIAGONAL**2 * ONE**2 // (2 if _one_sided(relation) else 1))


def _root_above(squared: int) -> int:
    root = math.isqrt(squared)
    return root if root * root == squared else root + 1


def _one_sided(relation: str) -> bool:
    if relation not in RELATIONS:
        raise ConfigError(f"a private_mixture run knows no relation {relation!r}.", f"Known: {', '.join(RELATIONS)}.")
    return relation == "add_or_remove_one"
