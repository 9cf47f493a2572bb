"""The one release of a run, known from settings and public facts alone."""

from __future__ import annotations

import math

from fedcore.errors import ConfigError
from fedcore.methods.profile.config import ProfileConfig
from fedcore.methods.profile.layout import Layout, layout_of
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts

NAME = "profile"
ARGUMENT = "docs/privacy/profile.md"
COMPOSITION = "what a {unit} adds is one vector of counts with a bounded norm: all its parts cost one release"
RELATIONS = ("add_or_remove_one", "replace_one")
LARGEST_NOISE = 2.0**45  # grid steps


def sensitivity(layout: Layout, relation: str) -> int:
    """The L2 sensitivity in whole grid steps, rounded up. No count is negative, so replacing a unit moves the vector by
    at most sqrt(2) times as much as adding one. Raises ConfigError for another relation."""
    if relation not in RELATIONS:
        raise ConfigError(f"A profile knows no relation {relation!r}.", f"Known: {', '.join(RELATIONS)}.")
    squared = layout.squared * (1 if relation == "add_or_remove_one" else 2)
    root = math.isqrt(squared)
    return root if root * root == squared else root + 1


def planned_release(config: ProfileConfig, public: PublicFacts) -> PlannedRelease:
    """Its cost is at most public.rho. Raises ConfigError without a budget, or for a budget that is too small."""
    if public.rho is None or not public.rho > 0:
        raise ConfigError("A profile needs a privacy budget.", "Set a budget for the population.")
    layout, rho = layout_of(config, public.features), public.rho
    while True:
        rho *= 1.0 - 1e-15  # costs are rounded up
        planned = PlannedRelease(
            NAME,
            1,
            (layout.cells,),
            sensitivity(layout, public.relation),
            math.sqrt(0.5 / rho),
            ARGUMENT,
            COMPOSITION.format(unit=public.unit),
        )
        if planned.rho <= public.rho:
            break
    if planned.scale > LARGEST_NOISE:
        raise ConfigError("The budget of this profile is too small to count anything.", "Give it a larger epsilon.")
    return planned
