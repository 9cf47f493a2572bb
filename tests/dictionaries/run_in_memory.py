"""Runs dictionary learning on one block in this process (`tests.run_in_memory`)."""

from fedcore.methods.dictionaries import Dictionaries, DictionariesConfig
from fedcore.population.blocks import RowsBlock
from tests.run_in_memory import Ran, block_of, facts, run_method

__all__ = ["block_of", "facts", "run"]

OPTIONS = ("seed", "given", "clients_per_leaf", "change")


def run(block: RowsBlock, **settings) -> Ran:
    """settings: of the method, and options of `run_method`."""
    if settings.get("model") != "background":
        settings.setdefault("profile", "recommended")
    options = {name: settings.pop(name) for name in OPTIONS if name in settings}
    ran = run_method(Dictionaries(DictionariesConfig(**settings)), block, **options)
    assert {name for info in ran.infos for name in info.scalars} <= {metric.name for metric in Dictionaries.metrics}
    return ran
