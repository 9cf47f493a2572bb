"""Mixed-effects regressions: clients' coefficients scatter around common ones by a covariance that is estimated."""

from fedcore.methods.mixed_effects.config import MixedEffectsConfig
from fedcore.methods.mixed_effects.method import MixedEffects
from fedcore.methods.mixed_effects.state import MixedEffectsState

__all__ = ["MixedEffects", "MixedEffectsConfig", "MixedEffectsState"]
