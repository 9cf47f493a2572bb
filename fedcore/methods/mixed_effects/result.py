"""What a run has learnt, for people: the common coefficients, and how much clients differ from them."""

from __future__ import annotations

import numpy as np

from fedcore.methods.mixed_effects.config import MixedEffectsConfig
from fedcore.methods.mixed_effects.state import MixedEffectsState
from fedcore.methods.mixture_models.tables import component_columns, of_inputs
from fedcore.rounds.results import Column, Features, Result, Table


def result_of(config: MixedEffectsConfig, state: MixedEffectsState, features: Features) -> Result:
    """Tables; the last two have a row for each input. Empty before the first round.

    components:  a row for each component: the standard deviation of the noise, and how many clients are left apart
    centres:     the common coefficients, in the units of the data
    differences: standard deviations of the clients' coefficients around the common ones
    """
    if state.round < 1:
        return Result()
    names = [f"component {r}" for r in range(len(state.centres))]
    of = of_inputs(features, config.intercept)
    deviations = np.sqrt(np.maximum(np.diagonal(state.between, axis1=1, axis2=2), 0.0))
    components = (
        Column("component", list(range(len(names)))),
        Column("noise", [float(np.sqrt(state.noise))] * len(names), features.unit(features.count - 1)),
        Column("clients left apart", [state.left_apart] * len(names)),
    )
    scatter = "Standard deviations of clients' coefficients around the common ones"
    return Result(
        (
            Table("components", "Components", components),
            Table("centres", "Common coefficients", (*of, *component_columns(names, state.centres))),
            Table("differences", scatter, (*of, *component_columns(names, deviations))),
        )
    )
