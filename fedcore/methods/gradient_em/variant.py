"""How clients are shrunk to the common centres, and how long their steps are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variant:
    """The defaults are what `gradient_em` does, and not settings: docs/notes/gradient-em.md has what others are worth.
    `paper_gradient_em` and tests of the paper's theorems have others.

    norm: all clients are shrunk by lambda / sqrt n, and the central update is solved in every round; else by how much
        they are found to differ, in one reweighting step a round
    penalty, penalty_decay, first_penalty: C, kappa0 and lambda before the first round, of the norm
    smallest_cluster: of the norm: a client's component of fewer rows is left out and takes the common centre
    step_size: C of the steps C / w; 1 is an EM step. step_of_start: w is that of the start, not the present one
    ward: whether Ward's hierarchy is one more first guess of a client's Gaussians
    start_steps: EM steps of each first guess; five times as many from the best
    """

    norm: bool = False
    penalty: float = 2.0
    penalty_decay: float = 0.1
    first_penalty: float = 1.0
    smallest_cluster: float = 5.0
    step_size: float = 1.0
    step_of_start: bool = False
    ward: bool = True
    start_steps: int = 15
