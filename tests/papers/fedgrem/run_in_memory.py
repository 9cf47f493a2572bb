"""Runs the paper's methods on one block in this process (`tests.run_in_memory`)."""

from fedcore.papers.fedgrem.paper_gradient_em import PaperGradientEM, PaperGradientEMConfig

from fedcore.population.blocks import RowsBlock
from tests.run_in_memory import Ran, block_of, facts, run_method

__all__ = ["block_of", "facts", "run"]

OPTIONS = ("seed", "given", "clients_per_leaf", "change")


def run(block: RowsBlock, **settings) -> Ran:
    """settings: of the method, and options of `run_method`."""
    options = {name: settings.pop(name) for name in OPTIONS if name in settings}
    return run_method(PaperGradientEM(PaperGradientEMConfig(**settings)), block, **options)
