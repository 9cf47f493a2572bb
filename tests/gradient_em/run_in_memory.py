"""Runs gradient EM on one block in this process (`tests.run_in_memory`)."""

from fedcore.methods.gradient_em import GradientEM, GradientEMConfig
from fedcore.population.blocks import RowsBlock
from tests.run_in_memory import Ran, block_of, facts, run_method

__all__ = ["block_of", "facts", "run"]

OPTIONS = ("seed", "given", "clients_per_leaf", "change")


def run(block: RowsBlock, **settings) -> Ran:
    """settings: of the method, and options of `run_method`."""
    options = {name: settings.pop(name) for name in OPTIONS if name in settings}
    return run_method(GradientEM(GradientEMConfig(**settings)), block, **options)
