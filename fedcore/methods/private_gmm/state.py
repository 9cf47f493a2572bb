"""What the next round of a private_gmm run needs: arrays and scalars only, so that a checkpoint is Zarr and JSON.

What the server asks of clients in a pass; all of it is published or public.

Slots number the nodes of a pass: slot s of a release is about nodes[s].
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from fedcore.methods.mixture_models.whole_rows import WholeMap
from fedcore.methods.private_gmm.boxes import LARGEST_SHIFT, Boxes
from fedcore.methods.private_gmm.config import Covariance
from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.plan import ESTIMATION, PassKind
from fedcore.methods.private_gmm.series import QUANTITIES, Pool
from fedcore.methods.private_gmm.tree import BASIS, COLUMNS, MOST_LEVELS, Tree
from fedcore.rounds.messages import POSITIVE, between


@dataclass(frozen=True, slots=True)
class Message:
    """What clients need to contribute to a pass.

    kind: of the pass. names, shapes: of its releases. by_client: whether a unit is a client.
    tree, and level: to which it is followed, ESTIMATION: to its cells.
    nodes: (s,) those of the slots, with centre (s, d), radius (s,) in the units of the data and basis (s, d, q).
    edges: squared inner edges of the bins of radii, in the units of the data; of profiles in steps.
    covariance: the form that is estimated.
    weight: what a record adds to a histogram, or the norm that its offset may have.
    """

    kind: PassKind
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    by_client: bool
    tree: Tree
    level: int = field(metadata=between(ESTIMATION, MOST_LEVELS))
    nodes: np.ndarray
    centre: np.ndarray
    radius: np.ndarray = field(metadata=POSITIVE)
    basis: np.ndarray = field(metadata=BASIS)
    edges: np.ndarray
    covariance: Covariance = "full"
    weight: int = ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxesMessage(Message):
    """shifts: (2, qb) int64 of the boxes. halvings: so far. parents: (B, 2 + qb) int64 slot, shift and code of the
    boxes whose halves are counted."""

    shifts: np.ndarray = field(metadata=between(0, LARGEST_SHIFT))
    halvings: int
    parents: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsMessage(Message):
    """shifts: (2, qb) int64 of the boxes. box: (M, 2 + qb) int64 shift, halvings and code of the chosen boxes, with
    slot (M,), middle (M, q) and reach (M,), both in steps: an offset is cut to its box's reach."""

    shifts: np.ndarray = field(metadata=between(0, LARGEST_SHIFT))
    slot: np.ndarray
    box: np.ndarray
    middle: np.ndarray
    reach: np.ndarray = field(metadata=POSITIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesMessage(Message):
    """candidates: (M, q) whole numbers of steps, candidate centres; slot: (M,) of their nodes."""

    slot: np.ndarray
    candidates: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ValleysMessage(Message):
    """pairs: (e, 2) int64 of slots. maps: for each slot from its rows in steps to places on its own lines; start:
    (s, e) where its mean is there, -PLACE_STEPS at the first slot of a pair and PLACE_STEPS at the second."""

    pairs: np.ndarray
    maps: tuple[WholeMap, ...]
    start: np.ndarray


def of_cell(pairs: np.ndarray, slot: int) -> np.ndarray:
    """Numbers of the lines that end in this cell, increasing."""
    return np.flatnonzero((pairs == slot).any(axis=1))


# --- state ------------------------------------------------------------------------------------------------------------


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
    needed:  t, the noisy number of units that a ball or a cell must hold; 0 before the first count
    outcome: "searching", "found", or why nothing was: `NOTHING` or `LOST`
    reason:  of the outcome, in one sentence; made of published values
    units_needed, epsilon_factor: forecast of what would be enough: units at this budget, and times this run's epsilon
        at this size; 0 unless the search failed
    tree_*:  columns of the tree (`fedcore.methods.private_gmm.tree.Tree`)
    box_*:   heavy boxes of the level (`fedcore.methods.private_gmm.boxes.Boxes`): box_place (B, 3) int64, box_code
        (B, qb) int64, box_count (B,)
    place_*: candidate centres of the level: place_node (M,) int64 their nodes; place (M, q) whole numbers in steps of
        the node's ball; place_width (M,) steps, the width of the box; place_count (M,) noisy, of units
    leaf:    (m,) nodes of the cells; weights: (m,); means: (m, d); covariances: (m,), (m, d) or (m, d, d); reach: (m,)
        radius that a cell's rows are cut to, in the units of the data
    unreliable: (m,) bool, where the noise of a full covariance is not small relative to its eigenvalues, which are then
        those of its diagonal or of a sphere
    pairs: (e, 2) int64 cells between which a density dip was looked for; valley_mass: (e,) units that were counted
        there; valley_depth: (e,) dip / lower peak; valley_p: (e,) of that under one peak; empty without a search
    searches: whether the run searches for components, or estimates those of its series again
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
