"""Runs gradient EM on one block in this process (`tests.run_in_memory`)."""

from dataclasses import fields

from fedcore.methods.gradient_em import GradientEM, GradientEMConfig
from fedcore.methods.gradient_em.config import Variant
from fedcore.population.blocks import RowsBlock
from tests.run_in_memory import Ran, block_of, facts, run_method

__all__ = ["block_of", "facts", "run"]

OPTIONS = ("seed", "given", "clients_per_leaf", "change")
PARTS = {field.name for field in fields(Variant)}


class Varied(GradientEMConfig):
    """Settings with another variant."""

    own: Variant = Variant()

    @property
    def variant(self) -> Variant:
        return self.own


def run(block: RowsBlock, **settings) -> Ran:
    """settings: of the method, parts of a variant, and options of `run_method`."""
    options = {name: settings.pop(name) for name in OPTIONS if name in settings}
    own = Variant(**{name: settings.pop(name) for name in PARTS & settings.keys()})
    return run_method(GradientEM(Varied(own=own, **settings)), block, **options)
