"""What the server does before clients have answered; what they answer first is in the modules of the rounds."""

from __future__ import annotations

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixed_effects.config import MixedEffectsConfig
from fedcore.methods.mixed_effects.messages import StartMessage
from fedcore.methods.mixed_effects.state import MixedEffectsState
from fedcore.methods.mixture_models.local_fits import compared_up_to
from fedcore.rounds.method import PublicFacts


def first_state(config: MixedEffectsConfig, public: PublicFacts) -> MixedEffectsState:
    """Raises ConfigError if the population has no column for an input."""
    p = config.inputs(public.features)
    if p < 1:
        raise ConfigError(
            "a regression needs an input or an intercept beside the response.", "Set intercept = true, or add a column."
        )
    return MixedEffectsState(
        "start",
        0,
        public.seed,
        public.clients or 0,
        centres=np.zeros((0, p)),
        orders=np.zeros((0, config.components), np.int32),
    )


def start_message(config: MixedEffectsConfig, state: MixedEffectsState) -> StartMessage:
    """Asks all clients for their own fits, or those with the smallest uniform numbers."""
    return StartMessage(compared_up_to(state.seed, state.population, config.aligned_clients), state.seed)
