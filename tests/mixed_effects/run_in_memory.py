"""Runs mixed effects on one block in this process (`tests.run_in_memory`)."""

from fedcore.methods.mixed_effects import MixedEffects, MixedEffectsConfig
from fedcore.population.blocks import RowsBlock
from tests.run_in_memory import Ran, block_of, facts, run_method

__all__ = ["block_of", "facts", "run"]

OPTIONS = ("seed", "given", "clients_per_leaf", "change")


def run(block: RowsBlock, **settings) -> Ran:
    """settings: of the method, its constants, and options of `run_method`."""
    options = {name: settings.pop(name) for name in OPTIONS if name in settings}
    constants = {name: settings.pop(name) for name in MixedEffectsConfig.__class_vars__ & settings.keys()}
    varied = type("Varied", (MixedEffectsConfig,), constants)
    return run_method(MixedEffects(varied(**settings)), block, **options)
