"""The L2 sensitivities of the releases, whole numbers of grid steps; argued in docs/privacy/private-gmm.md.

relation: "add_or_remove_one" or "replace_one". Each function raises ConfigError for any other.
"""

from __future__ import annotations

import math

from fedcore.errors import ConfigError
from fedcore.methods.private_gmm.integer_rows import ONE

RELATIONS = ("add_or_remove_one", "replace_one")
UNITS = ("client", "record")


def counts(relation: str, histograms: int = 1) -> int:
    """Sensitivity of counts in several histograms, to each of which a unit adds at most 2**16: sqrt(histograms) 2**16.

    Entries of a unit are never negative, so replacing it changes the sum by sqrt(2) times as much.
    """
    squared = histograms * ONE**2 * (1 if _one_sided(relation) else 2)
    return _root_above(squared)


def sums(relation: str, parts: int = 1) -> int:
    """Of sums of clipped vectors, at most `parts` of them from a unit: sqrt(parts) 2**16; twice that to replace one."""
    bound = _root_above(parts * ONE**2)
    return bound if _one_sided(relation) else 2 * bound


def moments(relation: str) -> int:
    """Of the triangle of a second moment: the whole number above 2**32 / sqrt(2); to replace one, twice that."""
    bound = math.isqrt(ONE**4 // 2) + 1
    return bound if _one_sided(relation) else 2 * bound


def squares(relation: str) -> int:
    """Of sums of squares of the coordinates, or of squared norms, at most 2**32 in all: 2**32; to replace one, sqrt(2)
    times that."""
    return _root_above(ONE**4 * (1 if _one_sided(relation) else 2))


def weight(planned: int, used: int) -> int:
    """What a unit may add to each of `used` histograms if noise was planned for more: sqrt(planned / used) 2**16."""
    return math.isqrt(planned * ONE**2 // max(used, 1))


def _root_above(squared: int) -> int:
    root = math.isqrt(squared)
    return root if root * root == squared else root + 1


def _one_sided(relation: str) -> bool:
    if relation not in RELATIONS:
        raise ConfigError(f"a private_gmm run knows no relation {relation!r}.", f"Known: {', '.join(RELATIONS)}.")
    return relation == "add_or_remove_one"
