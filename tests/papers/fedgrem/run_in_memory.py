"""Runs the paper's methods on one block in this process (`tests.run_in_memory`)."""

from dataclasses import replace
from typing import Any

from fedcore.papers.fedgrem.paper_gradient_em import PaperGradientEM, PaperGradientEMConfig

from fedcore.methods.gradient_em.config import Variant
from fedcore.population.blocks import RowsBlock
from tests.run_in_memory import Ran, block_of, facts, run_method

__all__ = ["NORM", "block_of", "facts", "run"]

OPTIONS = ("seed", "given", "clients_per_leaf", "change")
PARTS = ("penalty", "penalty_decay", "first_penalty", "smallest_cluster", "step_of_start")
NORM = {"preset": "paper", "step_of_start": False, "step_size": 1.0}  # the paper's shrinkage, with EM steps


class Varied(PaperGradientEMConfig):
    """Settings with other parts of a variant."""

    parts: dict[str, Any] = {}

    @property
    def variant(self) -> Variant:
        return replace(super().variant, **self.parts)


def run(block: RowsBlock, **settings) -> Ran:
    """settings: of the method, parts of a variant, and options of `run_method`."""
    options = {name: settings.pop(name) for name in OPTIONS if name in settings}
    parts = {name: settings.pop(name) for name in PARTS if name in settings}
    return run_method(PaperGradientEM(Varied(parts=parts, **settings)), block, **options)
