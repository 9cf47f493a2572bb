"""The server's side of the recursive partition (Algorithms 3 and 4 of Kamath, Sheffet, Singhal, Ullman 2019).

A run goes down a tree of nodes, level by level; all nodes of a level share each pass over the clients. The table lists
the purpose of every pass, the step of the paper, and the function in `passes.py` that uses its releases:

    search, for each of D levels                                               paper              passes.py
      mean, radii (3 times)    bound the rows of a node by a ball              Alg. 3, step 2     recentre, tighten
      moments                  project on the leading noisy directions         step 5             project
      boxes (`widths` times)   find boxes that hold many rows,                 steps 3 and 6,     halve_boxes
      offsets                  candidate centres in them, and                  PTerrificBall      place_candidates
      profiles                 terrific balls about these; split the node by   steps 4 and 7      split_nodes
                               all that are disjoint, and recurse
    estimation, all cells at once
      leaf radii, leaf mean    cut each cell to a ball about its own mean      Alg. 4, step 3,    estimate_radii,
        (twice)                                                                PGE                estimate_means
      leaf `valleys`           count rows between neighbouring cells           none               look_for_valleys
      leaf covariance          second moments about that mean                                     estimate_covariances

t (`needed` in the state) is what a ball or a cell must hold: w_min n / 2, with the noisy count n of the root. A node
without a terrific ball is one component (Algorithm 3, step 8). docs/notes/privacy-private-gmm.md states what differs
from the paper; `reference.py` is the paper's partition on one page.

A run whose series already knows the requested number of components does not search. Its tree is one node, split at the
means of the series, and only the cells are estimated. Estimates are pooled with those of the series (`series.py`).

Everything here is a function of published values, of the config and of public streams; nothing depends on a raw sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.methods.private_gmm import neighbours, terrific
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.passes import (
    STEPS,
    PassContext,
    begin_estimation,
    boxes_to_halve,
    chosen_boxes,
    context_of,
    profile_weight,
)
from fedcore.methods.private_gmm.plan import ESTIMATION, plan, searches, sizes_of
from fedcore.methods.private_gmm.series import pool_in
from fedcore.methods.private_gmm.state import (
    SEARCHING,
    BoxesMessage,
    Message,
    OffsetsMessage,
    PrivateGMMState,
    ProfilesMessage,
    ValleysMessage,
    pool_columns,
    tree_columns,
)
from fedcore.methods.private_gmm.tree import cells_about, root
from fedcore.rounds.method import PublicFacts, RoundInfo


def init(config: PrivateGMMConfig, public: PublicFacts) -> PrivateGMMState:
    """Raises ConfigError for what `fedcore.methods.private_gmm.plan.plan` refuses."""
    sizes = sizes_of(config, public.features)
    d, q, none = sizes.d, sizes.q, np.zeros(0, np.int64)
    state = PrivateGMMState(
        phase="search",
        round=0,
        seed=public.seed,
        unit=public.unit,
        relation=public.relation,
        noise=np.array([release.scale for release in plan(config, public)]),
        needed=0.0,
        outcome=SEARCHING,
        reason="",
        units_needed=0.0,
        epsilon_factor=0.0,
        **tree_columns(root(d, q, config.public_radius)),
        box_place=np.zeros((0, 3), np.int64),
        box_code=np.zeros((0, sizes.qb), np.int64),
        box_count=np.zeros(0),
        place_node=none,
        place=np.zeros((0, q)),
        place_width=np.zeros(0),
        place_count=np.zeros(0),
        leaf=none,
        weights=np.zeros(0),
        means=np.zeros((0, d)),
        reach=np.zeros(0),
        unreliable=np.zeros(0, bool),
        covariances=np.zeros({"spherical": (0,), "diag": (0, d), "full": (0, d, d)}[config.covariance]),
        searches=searches(config, public),
        **pool_columns(pool_in(public.warm_start, d, config.covariance)),
    )
    if state.searches:
        return state
    known = state.pool.found
    tree = cells_about(known.means, known.scales(config.covariance, config.sigma_floor), q)
    return begin_estimation(state.with_tree(tree))


# --- what clients are sent -------------------------------------------------------------------------------------------


def message(config: PrivateGMMConfig, state: PrivateGMMState) -> Message | None:
    """None if the run is finished."""
    if state.phase == "done":
        return None
    context = context_of(config, state)
    now, nodes, tree = context.now, context.nodes, state.tree
    every: dict[str, Any] = {
        "kind": now.kind,
        "names": tuple(item.name for item in now.releases),
        "shapes": tuple(item.shape for item in now.releases),
        "by_client": state.unit == "client",
        "tree": tree,
        "level": now.level,
        "nodes": nodes,
        "centre": state.means if context.estimates else tree.centre[nodes],
        "radius": state.reach if context.estimates else tree.radius[nodes],
        "basis": tree.basis[nodes],
        "edges": context.radii[:-1] ** 2,
        "covariance": config.covariance,
    }
    if now.kind == "boxes":
        parents = boxes_to_halve(context)
        halved = np.hstack([parents.place[:, :2], parents.code])
        return BoxesMessage(**every, shifts=context.shifts, halvings=now.step, parents=halved)
    if now.kind == "offsets":
        chosen = chosen_boxes(context)
        boxes = chosen.boxes
        return OffsetsMessage(
            **every | {"weight": chosen.weight},
            shifts=context.shifts,
            slot=boxes.slot,
            box=np.hstack([boxes.place[:, 1:], boxes.code]),
            middle=chosen.middle,
            reach=chosen.reach,
        )
    if now.kind == "profiles":
        slot = np.searchsorted(nodes, state.place_node).astype(np.int64)
        changes = {"weight": profile_weight(context), "edges": np.floor(terrific.profile_radii() ** 2)}
        return ProfilesMessage(**every | changes, slot=slot, candidates=state.place)
    if now.kind == "leaf valleys":
        maps, start = neighbours.lines(state.means, state.reach, state.pairs)
        weight = neighbours.weight_of(state.pairs)
        return ValleysMessage(**every | {"weight": weight}, pairs=state.pairs, maps=maps, start=start)
    return Message(**every)


# --- what follows from a release ------------------------------------------------------------------------------------


def server_update(
    config: PrivateGMMConfig, state: PrivateGMMState, result: Mapping[str, np.ndarray]
) -> tuple[PrivateGMMState, RoundInfo]:
    """result: the round's noisy int64 arrays by planned name."""
    context = context_of(config, state)
    after = STEPS[context.now.kind](context, [result[item.name] for item in context.now.releases])
    after = replace(after, round=state.round + 1)
    if after.phase == "search" and context.passes[after.round].level == ESTIMATION:
        after = begin_estimation(after)
    return after, _info(context, after)


def _info(context: PassContext, after: PrivateGMMState) -> RoundInfo:
    tree, now = after.tree, context.now
    nodes = after.leaf if context.estimates else tree.at(now.level)
    radii = after.reach if context.estimates else tree.radius[nodes]
    return RoundInfo(
        {
            "level": float(context.config.levels + 1 if context.estimates else now.level + 1),
            "leaves": float(len(tree.cells())),
            "candidates": float(len(after.place)),
            "radius": float(radii.max(initial=0.0)),
            "released_count": float(tree.count[nodes].sum()),
            "noise_of_a_count": context.noise() / ONE,
        },
        after.reason,
    )
