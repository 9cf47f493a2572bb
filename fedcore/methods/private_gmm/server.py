"""The server's side: the state before the first round, what is said in a round, and what follows from a release.

Everything here is a function of published values, of the config and of public streams; nothing depends on a raw sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.methods.private_gmm import bounding, candidates, feasibility, leaves, sensitivities, split
from fedcore.methods.private_gmm.candidates import Heavy
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.schedule import (
    LEAF_RATIO,
    RADII_RATIO,
    SHIFTS,
    Pass,
    Sizes,
    edges,
    plan,
    schedule,
    sizes_of,
)
from fedcore.methods.private_gmm.state import FOUND, NOTHING, SEARCHING, PrivateGMMState, tree_columns
from fedcore.methods.private_gmm.statistics import Message
from fedcore.methods.private_gmm.tree import LEAF, OPEN, Tree, root
from fedcore.methods.private_gmm.whole import ONE
from fedcore.rounds.method import PublicFacts, RoundInfo


def init(config: PrivateGMMConfig, public: PublicFacts) -> PrivateGMMState:
    """Raises ConfigError for what `schedule.plan` refuses."""
    sizes = sizes_of(config, public.features)
    d, q, none = sizes.features, sizes.q, np.zeros(0, np.int64)
    noise = np.array([release.scale for release in plan(config, public)])
    return PrivateGMMState(
        phase="search",
        round=0,
        seed=public.seed,
        unit=public.unit,
        relation=public.relation,
        noise=noise,
        needed=0.0,
        outcome=SEARCHING,
        reason="",
        units_needed=0.0,
        epsilon_factor=0.0,
        **tree_columns(root(d, q, config.radius)),
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
    )


def passes_of(config: PrivateGMMConfig, state: PrivateGMMState) -> list[Pass]:
    return schedule(config, state.tree_centre.shape[1], state.relation)


def _sizes(config: PrivateGMMConfig, state: PrivateGMMState) -> Sizes:
    return sizes_of(config, state.tree_centre.shape[1])


def _noise(config: PrivateGMMConfig, state: PrivateGMMState, name: str) -> float:
    """Standard deviation of a release in grid steps."""
    names = [item.name for each in passes_of(config, state) for item in each.releases]
    return float(state.noise[names.index(name)])


# --- messages -------------------------------------------------------------------------------------------------------


def message(config: PrivateGMMConfig, state: PrivateGMMState) -> Message | None:
    if state.phase == "done":
        return None
    now = passes_of(config, state)[state.round]
    tree = state.tree
    names, shapes = tuple(item.name for item in now.releases), tuple(item.shape for item in now.releases)
    of_leaves = now.level < 0
    nodes = state.leaf if of_leaves else tree.at(now.level)
    grid = edges(config, LEAF_RATIO if of_leaves else RADII_RATIO)
    said = Message(
        now.kind,
        names,
        shapes,
        state.unit == "client",
        tree,
        now.level,
        nodes,
        state.means if of_leaves else tree.centre[nodes],
        state.reach if of_leaves else tree.radius[nodes],
        tree.basis[nodes],
        np.array(grid[:-1]) ** 2,
        covariance=config.covariance,
    )
    if now.kind in ("boxes", "offsets"):
        said = replace(said, shifts=candidates.shifts_of(state.seed, now.level, state.box_code.shape[1]))
    if now.kind == "boxes":
        parents = _parents(state, nodes, now.step)
        return replace(said, halvings=now.step, parents=np.hstack([parents.place[:, :2], parents.code]))
    if now.kind == "offsets":
        boxes, middle, width = _chosen_boxes(config, state, now)
        used = candidates.groups_used(boxes)
        return replace(
            said,
            place_slot=boxes.place[:, 0],
            place=middle,
            place_reach=candidates.reaches(width, tree.q),
            place_box=np.hstack([boxes.place[:, 1:], boxes.code]),
            weight=sensitivities.weight(SHIFTS * config.widths, used),
        )
    if now.kind == "profiles":
        return replace(
            said,
            place_slot=_slots(state.place_node, nodes),
            place=state.place,
            edges=np.floor(split.profile_edges() ** 2),
            weight=_profile_weight(config, state),
        )
    return said


def _slots(of: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    return np.searchsorted(nodes, of).astype(np.int64)


def _parents(state: PrivateGMMState, nodes: np.ndarray, halvings: int) -> Heavy:
    heavy = (
        candidates.whole_cubes(len(nodes), state.box_code.shape[1])
        if halvings == 0
        else (candidates.parents_of(Heavy(state.box_place, state.box_code, state.box_count), halvings))
    )
    return heavy


def _chosen_boxes(config, state, now: Pass):
    sizes = _sizes(config, state)
    boxes = candidates.chosen(Heavy(state.box_place, state.box_code, state.box_count), sizes, config.widths)
    shifts = candidates.shifts_of(state.seed, now.level, sizes.qb)
    return boxes, *candidates.middles(boxes, shifts, sizes.q)


def _profile_weight(config, state) -> int:
    most = np.bincount(state.place_node).max() if len(state.place_node) else 1
    return sensitivities.weight(_sizes(config, state).places, int(most))


# --- what follows from a release ------------------------------------------------------------------------------------


def server_update(config: PrivateGMMConfig, state: PrivateGMMState, result: Mapping[str, np.ndarray]):
    """result: the round's noised int64 arrays by planned name. Returns the next state and its RoundInfo."""
    now = passes_of(config, state)[state.round]
    published = [result[item.name] for item in now.releases]
    after = STEPS[now.kind](config, state, now, published)
    after = replace(after, round=state.round + 1)
    if after.phase == "search" and passes_of(config, state)[after.round].level < 0:
        after = _to_leaves(after)
    return after, _info(config, after, now)


def _info(config, state: PrivateGMMState, now: Pass) -> RoundInfo:
    tree = state.tree
    open_nodes = tree.at(now.level) if now.level >= 0 else state.leaf
    radii = tree.radius[open_nodes] if now.level >= 0 else state.reach
    return RoundInfo(
        {
            "level": float(now.level + 1 if now.level >= 0 else config.levels + 1),
            "leaves": float(len(tree.leaves())),
            "candidates": float(len(state.place)),
            "radius": float(radii.max(initial=0.0)),
            "released_count": float(tree.count[open_nodes].sum()),
            "noise_of_a_count": _noise(config, state, now.releases[0].name) / ONE,
        },
        state.reason,
    )


def failed(config: PrivateGMMConfig, state: PrivateGMMState, reason: str) -> PrivateGMMState:
    """The end of a run that has found nothing, with what would be enough. reason: what lacked."""
    forecast = feasibility.forecast(config, state)
    said = f"{NOTHING}: {reason}; {forecast.in_words(state.unit)}"
    return replace(
        state,
        phase="done",
        outcome=NOTHING,
        reason=said,
        units_needed=forecast.units,
        epsilon_factor=forecast.epsilon_factor,
    )


def _with(state: PrivateGMMState, tree: Tree) -> PrivateGMMState:
    return replace(state, **tree_columns(tree))


def _mean(config, state, now: Pass, published):
    nodes, tree = state.tree.at(now.level), state.tree
    if now.step == 0:
        counts = published[0][: len(nodes)] / ONE
        tree = tree.changed(nodes, count=counts)
        if now.level == 0:
            state = replace(state, needed=max(0.5 * config.share * float(counts[0]), 1e-9))
            noise = _noise(config, state, now.releases[0].name) / ONE
            if counts[0] < 6.0 * noise:
                return failed(
                    config,
                    _with(state, tree),
                    f"the noised count of all units is {counts[0]:.0f}, and its "
                    f"noise has a standard deviation of {noise:.0f}",
                )
    return _with(state, bounding.moved(tree, nodes, published[-1][: len(nodes)]))


def _radii(config, state, now: Pass, published):
    nodes = state.tree.at(now.level)
    noise = _noise(config, state, now.releases[0].name) / ONE
    grid = np.array(edges(config, RADII_RATIO))
    tree = bounding.tightened(state.tree, nodes, published[0][: len(nodes)] / ONE, grid, noise, state.needed)
    return _based(tree, nodes, state, now)


def _based(tree, nodes, state, now: Pass):
    """Where there is nothing to project, the basis is the whole space."""
    d = tree.centre.shape[1]
    if tree.q == d:
        tree = tree.changed(nodes, basis=bounding.whole_space(d))
    return _with(state, tree)


def _moments(config, state, now: Pass, published):
    tree = state.tree
    d = tree.centre.shape[1]
    nodes = tree.at(now.level)
    found = [bounding.basis_of(row, d, tree.q) for row in published[0][: len(nodes)]]
    return _with(state, tree.changed(nodes, basis=np.stack(found)))


def _boxes(config, state, now: Pass, published):
    sizes, nodes = _sizes(config, state), state.tree.at(now.level)
    before = (
        Heavy(state.box_place[:0], state.box_code[:0], state.box_count[:0])
        if now.step == 0
        else (Heavy(state.box_place, state.box_code, state.box_count))
    )
    parents = _parents(state, nodes, now.step)
    if not len(parents.place):
        return state
    most = now.releases[0].shape[0]
    noise = _noise(config, state, now.releases[0].name) / ONE
    found = candidates.halved(parents, published[0] / ONE, noise, state.needed, min(most, sizes.parents))
    both = candidates.joined(before, found)
    return replace(state, box_place=both.place, box_code=both.code, box_count=both.count)


def _offsets(config, state, now: Pass, published):
    nodes = state.tree.at(now.level)
    boxes, middle, width = _chosen_boxes(config, state, now)
    weight = sensitivities.weight(SHIFTS * config.widths, candidates.groups_used(boxes))
    reach = candidates.reaches(width, middle.shape[1])
    means = published[0][: len(middle)] * (reach / weight / np.maximum(boxes.count, 1.0))[:, None]
    norms = np.maximum(np.linalg.norm(means, axis=1), 1e-300)
    at = np.rint(middle + means * np.minimum(1.0, reach / norms)[:, None])
    kept = candidates.merged(boxes.place[:, 0], at, width, boxes.count)
    kept = kept[
        candidates.affordable(
            boxes.place[kept, 0], width[kept], boxes.count[kept], state.needed, _affordable(config, state, now)
        )
    ]
    return replace(
        state,
        place_node=nodes[boxes.place[kept, 0]],
        place=at[kept],
        place_width=width[kept],
        place_count=boxes.count[kept],
    )


def _affordable(config, state, now: Pass) -> int:
    """Candidates of a node with which the noise of a shell stays below t / 2; not fewer than two per component."""
    noise = _noise(config, state, f"level{now.level}_profiles")
    most = _sizes(config, state).places
    while most > 2 * config.components and not split.shells_are_clear(
        noise / sensitivities.weight(_sizes(config, state).places, most), state.needed
    ):
        most -= 1
    return most


def _profiles(config, state, now: Pass, published):
    tree, nodes, room = state.tree, state.tree.at(now.level), config.components - len(state.tree.leaves())
    weight = _profile_weight(config, state)
    noise = _noise(config, state, now.releases[0].name) / weight
    state = replace(state, reason="")
    for node in nodes[np.argsort(-tree.count[nodes], kind="stable")]:
        mine = np.flatnonzero(state.place_node == node)
        found = []
        if room > 0 and tree.status[node] == OPEN and tree.count[node] >= 2 * state.needed:
            balls = split.terrific(published[0][mine] / weight, float(tree.count[node]), noise, state.needed)
            found = split.disjoint(balls, state.place[mine], room + 1)
        if not found:
            tree = tree.changed([node], status=LEAF)
            continue
        cells = split.children(found, state.place[mine], float(tree.count[node]), state.needed, room + 1)
        step = tree.radius[node] / ONE
        centres = tree.centre[node] + (cells.balls @ tree.basis[node].T) * 2.0**-14 * step
        tree = tree.with_children(int(node), cells.kinds, cells.balls, cells.radii, cells.counts, centres)
        room -= len(cells.kinds) - 1
    after = _with(
        replace(state, box_place=state.box_place[:0], box_code=state.box_code[:0], box_count=state.box_count[:0]), tree
    )
    leaves_now = len(tree.leaves())
    if leaves_now == 1 or (now.level == config.levels - 1 and leaves_now < config.components and not config.up_to):
        slack = split.MARGIN * noise * split.LAG**0.5
        return failed(
            config,
            after,
            f"{leaves_now} of {config.components} components found: {len(state.place)} "
            f"candidate centres, balls must hold {state.needed:.0f} units, and the noise of a shell is "
            f"{slack:.0f}",
        )
    return after


def _to_leaves(state: PrivateGMMState) -> PrivateGMMState:
    tree = state.tree
    leaf = tree.leaves()
    return replace(
        state,
        phase="leaves",
        leaf=leaf,
        means=tree.centre[leaf],
        reach=tree.radius[leaf],
        place_node=state.place_node[:0],
        place=state.place[:0],
        place_width=state.place_width[:0],
        place_count=state.place_count[:0],
    )


def _leaf_radii(config, state, now: Pass, published):
    m, tree = len(state.leaf), state.tree
    if now.step == 0:
        counts = published[0][:m] / ONE
        tree = tree.changed(state.leaf, count=counts)
        state = _with(state, tree)
        if counts.min() < state.needed:
            return failed(
                config,
                state,
                f"a component holds {counts.min():.0f} units by its noised count, fewer than "
                f"{state.needed:.0f}: balls of noise",
            )
        state = replace(state, weights=leaves.weights_of(counts))
    noise = _noise(config, state, now.releases[-1].name) / ONE
    grid, d = np.array(edges(config, LEAF_RATIO)), state.means.shape[1]
    reach = leaves.reach_of(published[-1][:m] / ONE, tree.count[state.leaf], grid, noise, state.reach / ONE, d)
    return replace(state, reach=np.minimum(reach, state.reach))


def _leaf_mean(config, state, now: Pass, published):
    counts = np.maximum(state.tree.count[state.leaf], 1.0)
    sums = published[0][: len(state.leaf)]
    return replace(state, means=state.means + sums * (state.reach / ONE / counts)[:, None])


def _leaf_covariance(config, state, now: Pass, published):
    m, d = state.means.shape
    noise = _noise(config, state, now.releases[0].name)
    covariances, unreliable = leaves.covariances_of(
        published[0][:m], state.tree.count[state.leaf], state.reach, d, config.covariance, noise, config.finest
    )
    return replace(
        state,
        phase="done",
        outcome=FOUND,
        covariances=covariances,
        unreliable=unreliable,
        reason=f"{m} components found",
    )


STEPS = {
    "mean": _mean,
    "radii": _radii,
    "moments": _moments,
    "boxes": _boxes,
    "offsets": _offsets,
    "profiles": _profiles,
    "leaf radii": _leaf_radii,
    "leaf mean": _leaf_mean,
    "leaf covariance": _leaf_covariance,
}
