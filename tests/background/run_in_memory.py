"""Runs the method `background` on one block in this process (`tests.run_in_memory`)."""

from fedcore.methods.background import Background, BackgroundConfig
from fedcore.population.blocks import RowsBlock
from tests.run_in_memory import Ran, block_of, facts, run_method

__all__ = ["block_of", "facts", "run"]

OPTIONS = ("seed", "given", "clients_per_leaf", "change", "image")


def run(block: RowsBlock, **settings) -> Ran:
    """settings: of the method, and options of `run_method`."""
    options = {name: settings.pop(name) for name in OPTIONS if name in settings}
    ran = run_method(Background(BackgroundConfig(**settings)), block, **options)
    assert {name for info in ran.infos for name in info.scalars} <= {metric.name for metric in Background.metrics}
    return ran
