"""What the next round of a private_gmm run needs: arrays and scalars only, so that a checkpoint is Zarr and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from fedcore.methods.private_gmm.boxes import Boxes
from fedcore.methods.private_gmm.series import QUANTITIES, Pool
from fedcore.methods.private_gmm.tree import COLUMNS, Tree

SEARCHING, FOUND = "searching", "found"
NOTHING = "no separated structure found at this budget"
LOST = "the components of the series are not where they were"


@dataclass(frozen=True, slots=True)
class PrivateGMMState:
    """State after a round. N: nodes, d: columns, q: of a basis, B: heavy boxes, M: candidates, m: cells, which become
    components. The names of the fields are stored with the run.

    phase:   "search", "leaves" (the cells are being estimated), "done"
    round:   finished rounds
    seed:    of the public shifts of the boxes
    unit, relation: of the budget
    noise:   (releases,) standard deviations in grid steps, in the order of the plan
    needed:  t, the noised number of units that a ball or a cell must hold; 0 before the first count
    outcome: "searching", "found", or why nothing was: `NOTHING` or `LOST`
    reason:  of the outcome, in one sentence; made of published values
    units_needed, epsilon_factor: forecast of what would be enough: units at this budget, and times this run's epsilon
        at this size; 0 unless the search failed
    tree_*:  columns of the tree (`fedcore.methods.private_gmm.tree.Tree`)
    box_*:   heavy boxes of the level (`fedcore.methods.private_gmm.boxes.Boxes`): box_place (B, 3) int64, box_code
        (B, qb) int64, box_count (B,)
    place_*: candidate centres of the level: place_node (M,) int64 their nodes; place (M, q) whole numbers in steps of
        the node's ball; place_width (M,) steps, the width of the box; place_count (M,) noised, of units
    leaf:    (m,) nodes of the cells; weights: (m,); means: (m, d); covariances: (m,), (m, d) or (m, d, d); reach: (m,)
        radius that a cell's rows are cut to, in the units of the data
    unreliable: (m,) bool, where the noise of a full covariance is not small beside its eigenvalues, which are then
        those of its diagonal or of a sphere
    pairs: (e, 2) int64 cells between which a valley was looked for; valley_mass: (e,) units that were counted there;
        valley_depth: (e,) valley / lower peak; valley_p: (e,) of that under one peak; empty in runs that did not look
    searches: whether the run looks for components, or estimates those of its series anew
    pooled_*: what the series knew before the run; after a run that found components, with what it released
        (`fedcore.methods.private_gmm.series.Pool`)
    """

    phase: str
    round: int
    seed: int
    unit: str
    relation: str
    noise: np.ndarray
    needed: float
    outcome: str
    reason: str
    units_needed: float
    epsilon_factor: float
    tree_centre: np.ndarray
    tree_radius: np.ndarray
    tree_basis: np.ndarray
    tree_parent: np.ndarray
    tree_level: np.ndarray
    tree_kind: np.ndarray
    tree_status: np.ndarray
    tree_ball: np.ndarray
    tree_ball_radius: np.ndarray
    tree_count: np.ndarray
    box_place: np.ndarray
    box_code: np.ndarray
    box_count: np.ndarray
    place_node: np.ndarray
    place: np.ndarray
    place_width: np.ndarray
    place_count: np.ndarray
    leaf: np.ndarray
    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    reach: np.ndarray
    unreliable: np.ndarray
    searches: bool = True
    pairs: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    valley_mass: np.ndarray = field(default_factory=lambda: np.zeros(0))
    valley_depth: np.ndarray = field(default_factory=lambda: np.zeros(0))
    valley_p: np.ndarray = field(default_factory=lambda: np.zeros(0))
    pooled_shares: np.ndarray = field(default_factory=lambda: np.zeros(0))
    pooled_means: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    pooled_moments: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    pooled_precision: np.ndarray = field(default_factory=lambda: np.zeros((0, QUANTITIES)))
    pooled_noise: np.ndarray = field(default_factory=lambda: np.zeros((0, QUANTITIES)))
    pooled_present: np.ndarray = field(default_factory=lambda: np.zeros(0))
    pooled_lost: np.ndarray = field(default_factory=lambda: np.zeros(1))

    @property
    def features(self) -> int:
        return self.tree_centre.shape[1]

    @property
    def tree(self) -> Tree:
        return Tree(**{name: getattr(self, f"tree_{name}") for name in COLUMNS})

    @property
    def boxes(self) -> Boxes:
        return Boxes(self.box_place, self.box_code, self.box_count)

    @property
    def pool(self) -> Pool:
        return Pool(**{each.name: getattr(self, f"pooled_{each.name}") for each in fields(Pool)})

    @property
    def found(self) -> bool:
        return self.outcome == FOUND

    def with_tree(self, tree: Tree) -> PrivateGMMState:
        return replace(self, **tree_columns(tree))

    def with_pool(self, pool: Pool) -> PrivateGMMState:
        return replace(self, **pool_columns(pool))

    def with_boxes(self, boxes: Boxes) -> PrivateGMMState:
        return replace(self, box_place=boxes.place, box_code=boxes.code, box_count=boxes.count)


def tree_columns(tree: Tree) -> dict[str, Any]:
    """The tree as fields of the state."""
    return {f"tree_{name}": getattr(tree, name) for name in COLUMNS}


def pool_columns(pool: Pool) -> dict[str, Any]:
    """The pool as fields of the state."""
    return {f"pooled_{each.name}": getattr(pool, each.name) for each in fields(pool)}
