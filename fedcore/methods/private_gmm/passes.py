"""What the server makes of each pass: the state before it and what is published give the state after it.

The order of the passes, with the paper's steps, is in `fedcore.methods.private_gmm.server`. Everything here
is a function of published values, of the config and of public streams; nothing depends on a raw sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcore.methods.private_gmm import estimation, neighbours, sensitivities, series, terrific
from fedcore.methods.private_gmm.boxes import (
    Boxes,
    fullest,
    heavy_halves,
    middles,
    most_boxes_of_a_row,
    no_boxes,
    reaches,
    shifts_of,
    whole_cubes,
)
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_gmm.feasibility import forecast
from fedcore.methods.private_gmm.integer_rows import BASIS_BITS, ONE
from fedcore.methods.private_gmm.plan import (
    CELL_RATIO,
    ESTIMATION,
    NODE_RATIO,
    SHIFTS,
    Pass,
    PassKind,
    Sizes,
    passes_of,
    radius_grid,
    sizes_of,
)
from fedcore.methods.private_gmm.series import Pool
from fedcore.methods.private_gmm.state import FOUND, LOST, NOTHING, PrivateGMMState
from fedcore.methods.private_gmm.terrific import Candidates
from fedcore.methods.private_gmm.tree import CLOSED, OPEN, basis_of, whole_space

SMALLEST_NOISE = 1e-200  # that has an inverse
LEAST_COUNT = 6.0  # standard deviations of its noise, by which the number of all units must exceed 0


@dataclass(frozen=True, slots=True)
class PassContext:
    """A pass, with the state before it. passes: of the whole run."""

    config: PrivateGMMConfig
    state: PrivateGMMState
    passes: Sequence[Pass]
    sizes: Sizes

    @property
    def now(self) -> Pass:
        return self.passes[self.state.round]

    @property
    def estimates(self) -> bool:
        """Whether the pass is over the cells, rather than over the nodes of a level."""
        return self.now.level == ESTIMATION

    @property
    def nodes(self) -> np.ndarray:
        """(s,) nodes that the pass is about: row s of a release is of nodes[s]."""
        return self.state.leaf if self.estimates else self.state.tree.at(self.now.level)

    @property
    def radii(self) -> np.ndarray:
        """Upper edges of the histograms of radii, in the units of the data."""
        return np.array(radius_grid(self.config, CELL_RATIO if self.estimates else NODE_RATIO))

    @property
    def shifts(self) -> np.ndarray:
        return shifts_of(self.state.seed, self.now.level, self.sizes.qb)

    def noise(self, release: int = 0) -> float:
        """Standard deviation of a release of this pass, in grid steps."""
        return self.noise_of(self.now.releases[release].name)

    def noise_of(self, name: str) -> float:
        names = [item.name for each in self.passes for item in each.releases]
        return float(self.state.noise[names.index(name)])


def context_of(config: PrivateGMMConfig, state: PrivateGMMState) -> PassContext:
    passes = passes_of(config, state.features, state.relation, state.searches)
    return PassContext(config, state, passes, sizes_of(config, state.features))


def _found_nothing(context: PassContext, after: PrivateGMMState, reason: str) -> PrivateGMMState:
    """The end of a run, with what would have been enough. reason: what lacked."""
    enough = forecast(context.config, after)
    return replace(
        after,
        phase="done",
        outcome=NOTHING,
        reason=f"{NOTHING}: {reason}; {enough.in_words(after.unit)}",
        units_needed=enough.units,
        epsilon_factor=enough.epsilon_factor,
    )


def _lost(after: PrivateGMMState, reason: str) -> PrivateGMMState:
    """The end of a run that did not search, and should have."""
    reason = f"{LOST}: {reason}; the next run of the series searches for components"
    return replace(after, phase="done", outcome=LOST, reason=reason, pooled_lost=np.ones(1))


# --- search: bound --------------------------------------------------------------------------------------------------


def recentre(context: PassContext, published: Sequence[np.ndarray]) -> PrivateGMMState:
    """Centres of the balls move to the means of their rows; the first time the nodes are counted as well, and the count
    of the root gives t."""
    state, nodes, tree = context.state, context.nodes, context.state.tree
    if context.now.step == 0:
        counts = published[0][: len(nodes)] / ONE
        tree = tree.changed(nodes, count=counts)
        if context.now.level == 0:
            state = replace(state, needed=max(0.5 * context.config.w_min * float(counts[0]), 1e-9))
            noise = context.noise() / ONE
            if counts[0] < LEAST_COUNT * noise:
                reason = (
                    f"the noised count of all units is {counts[0]:.0f}, and its "
                    f"noise has a standard deviation of {noise:.0f}"
                )
                return _found_nothing(context, state.with_tree(tree), reason)
    return state.with_tree(estimation.recentred(tree, nodes, published[-1][: len(nodes)]))


def tighten(context: PassContext, published: Sequence[np.ndarray]) -> PrivateGMMState:
    """Radii shrink to what holds nearly all rows. Where there is nothing to project, the basis is the whole space."""
    state, nodes = context.state, context.nodes
    counts, noise = published[0][: len(nodes)] / ONE, context.noise() / ONE
    tree = estimation.tightened(state.tree, nodes, counts, context.radii, noise, state.needed)
    if tree.q == tree.d:
        tree = tree.changed(nodes, basis=whole_space(tree.d))
    return state.with_tree(tree)


# --- search: project ------------------------------------------------------------------------------------------------


def project(context: PassContext, published: Sequence[np.ndarray]) -> PrivateGMMState:
    tree, nodes = context.state.tree, context.nodes
    bases = [basis_of(row, tree.d, tree.q) for row in published[0][: len(nodes)]]
    return context.state.with_tree(tree.changed(nodes, basis=np.stack(bases)))


# --- search: candidate centres of terrific balls --------------------------------------------------------------------


def boxes_to_halve(context: PassContext) -> Boxes:
    """The boxes whose halves are counted: those of the last pass, or at first the whole cubes."""
    if context.now.step == 0:
        return whole_cubes(len(context.nodes), context.sizes.qb)
    boxes = context.state.boxes
    return boxes.of(boxes.halvings == context.now.step)


def halve_boxes(context: PassContext, published: Sequence[np.ndarray]) -> PrivateGMMState:
    """Heavy halves join the heavy boxes of the level."""
    state, parents = context.state, boxes_to_halve(context)
    if not len(parents):
        return state
    before = no_boxes(context.sizes.qb) if context.now.step == 0 else state.boxes
    most = min(context.now.releases[0].shape[0], context.sizes.boxes)
    found = heavy_halves(parents, published[0] / ONE, context.noise() / ONE, state.needed, most)
    return state.with_boxes(before.and_also(found))


@dataclass(frozen=True, slots=True)
class ChosenBoxes:
    """Those whose rows' offsets are summed. middle: (M, q), width and reach: (M,), all in steps; weight: of an offset
    as long as the reach."""

    boxes: Boxes
    middle: np.ndarray
    width: np.ndarray
    reach: np.ndarray
    weight: int


def chosen_boxes(context: PassContext) -> ChosenBoxes:
    boxes, q = fullest(context.state.boxes, context.sizes.candidates), context.sizes.q
    middle, width = middles(boxes, context.shifts, q)
    weight = sensitivities.weight(SHIFTS * context.config.widths, most_boxes_of_a_row(boxes))
    return ChosenBoxes(boxes, middle, width, reaches(width, q), weight)


def place_candidates(context: PassContext, published: Sequence[np.ndarray]) -> PrivateGMMState:
    """Candidate centres are the means of the rows in heavy boxes; near ones are merged, and no more are kept than the
    noise of their profiles allows."""
    chosen, nodes = chosen_boxes(context), context.nodes
    boxes = chosen.boxes
    at = terrific.moved(chosen.middle, published[0][: len(boxes)], chosen.reach, chosen.weight, boxes.count)
    found = terrific.merged(Candidates(boxes.slot, at, chosen.width, boxes.count))
    found = terrific.affordable(found, context.state.needed, _affordable(context))
    return replace(
        context.state, place_node=nodes[found.slot], place=found.at, place_width=found.width, place_count=found.count
    )


def _affordable(context: PassContext) -> int:
    """Candidates of a node with which the noise of a shell stays below t / 2; not fewer than two per component."""
    planned, needed = context.sizes.candidates, context.state.needed
    noise, most = context.noise_of(f"level{context.now.level}_profiles"), planned
    while most > 2 * context.sizes.k and not terrific.shells_are_clear(
        noise / sensitivities.weight(planned, most), needed
    ):
        most -= 1
    return most


# --- search: terrific balls, split, recurse -------------------------------------------------------------------------


def profile_weight(context: PassContext) -> int:
    most = np.bincount(context.state.place_node).max() if len(context.state.place_node) else 1
    return sensitivities.weight(context.sizes.candidates, int(most))


def split_nodes(context: PassContext, published: Sequence[np.ndarray]) -> PrivateGMMState:
    """Every node is split by all its disjoint terrific balls, fullest nodes first while there may be more cells; a node
    without one is a cell for good."""
    config, state, tree = context.config, context.state, context.state.tree
    weight, nodes = profile_weight(context), context.nodes
    noise = context.noise() / weight
    room = config.components - len(tree.cells())
    state = replace(state, reason="")
    for node in nodes[np.argsort(-tree.count[nodes], kind="stable")]:
        of_node = np.flatnonzero(state.place_node == node)
        at, count, balls = state.place[of_node], float(tree.count[node]), []
        if room > 0 and tree.status[node] == OPEN and count >= 2 * state.needed:
            terrific_balls = terrific.terrific_balls(published[0][of_node] / weight, count, noise, state.needed)
            balls = terrific.disjoint(terrific_balls, at, room + 1)
        if not balls:
            tree = tree.changed([node], status=CLOSED)
            continue
        parts = terrific.children_of(balls, at, count, state.needed, room + 1)
        step = tree.radius[node] / ONE
        centres = tree.centre[node] + (parts.balls @ tree.basis[node].T) * 2.0**-BASIS_BITS * step
        tree = tree.with_children(int(node), parts.kinds, parts.balls, parts.radii, parts.counts, centres)
        room -= len(parts.kinds) - 1
    after = state.with_boxes(no_boxes(context.sizes.qb)).with_tree(tree)
    cells = len(tree.cells())
    last = context.now.level == config.levels - 1
    if cells == 1 or (last and cells < config.components and not config.up_to):
        slack = terrific.MARGIN * noise * terrific.LAG**0.5
        reason = (
            f"{cells} of {config.components} components found: {len(state.place)} candidate centres, balls must hold "
            f"{state.needed:.0f} units, and the noise of a shell is {slack:.0f}"
        )
        return _found_nothing(context, after, reason)
    return after


# --- estimation -----------------------------------------------------------------------------------------------------


def begin_estimation(state: PrivateGMMState) -> PrivateGMMState:
    tree, cells = state.tree, state.tree.cells()
    return replace(
        state,
        phase="leaves",
        leaf=cells,
        means=tree.centre[cells],
        reach=tree.radius[cells],
        place_node=state.place_node[:0],
        place=state.place[:0],
        place_width=state.place_width[:0],
        place_count=state.place_count[:0],
    )


def estimate_radii(context: PassContext, published: Sequence[np.ndarray]) -> PrivateGMMState:
    """Cells are cut to smaller balls; the first time they are counted as well, which gives the weights."""
    state, tree, m = context.state, context.state.tree, len(context.nodes)
    if context.now.step == 0:
        counts = published[0][:m] / ONE
        tree = tree.changed(state.leaf, count=counts)
        state = state.with_tree(tree)
        if not state.searches:
            state = replace(state, needed=max(0.5 * context.config.w_min * float(counts.sum()), 1e-9))
            least = max(state.needed, LEAST_COUNT * context.noise() / ONE)
            if counts.min() < least:
                return _lost(state, f"one holds {counts.min():.0f} units by its noised count, fewer than {least:.0f}")
        elif counts.min() < state.needed:
            reason = (
                f"a component holds {counts.min():.0f} units by its noised count, fewer than {state.needed:.0f}: "
                "balls of noise"
            )
            return _found_nothing(context, state, reason)
        state = replace(state, weights=estimation.weights_of(counts))
    radii, noise = published[-1][:m] / ONE, context.noise(-1) / ONE
    reach = estimation.reach_of(radii, tree.count[state.leaf], context.radii, noise, state.reach / ONE, state.features)
    return replace(state, reach=np.minimum(reach, state.reach))


def estimate_means(context: PassContext, published: Sequence[np.ndarray]) -> PrivateGMMState:
    """In a run that did not search, components that moved further than a standard deviation end the run."""
    state = context.state
    counts = np.maximum(state.tree.count[state.leaf], 1.0)
    sums = published[0][: len(state.leaf)]
    state = replace(state, means=state.means + sums * (state.reach / ONE / counts)[:, None])
    if not state.searches and context.now.step == 1:
        strange = int((_in_series(context, state) < 0).sum())
        if strange:
            return _lost(state, f"{strange} of {len(counts)} moved further than a standard deviation of their rows")
    if state.searches and context.now.step == 1:
        state = replace(state, pairs=neighbours.pairs_of(state.means, state.reach, state.weights))
    return state


def look_for_valleys(context: PassContext, published: Sequence[np.ndarray]) -> PrivateGMMState:
    """End the run if two neighbours have no density dip between them: they may be pieces of one group."""
    state = context.state
    weight = neighbours.weight_of(state.pairs)
    found = neighbours.tested(published[0][: len(state.pairs)], context.noise(), weight, state.seed)
    state = replace(state, valley_mass=found.mass, valley_depth=found.depth, valley_p=found.p)
    missing = int((~found.parted()).sum())
    if not missing:
        return state
    reason = (
        f"{len(state.leaf)} cells stand apart, but on {missing} of {len(found.p)} lines between neighbours no valley "
        "shows, so that they may be pieces of one group"
    )
    return _found_nothing(context, state, reason)


def _noise_of_cells(context: PassContext, state: PrivateGMMState) -> np.ndarray:
    """(m, 3) standard deviations of the noise in shares, means and second moments, in the units of the data."""
    counts = state.tree.count[state.leaf]
    kept, width = np.maximum(counts, 1.0), state.reach / ONE
    noise = [
        np.full(len(counts), context.noise_of("leaf_counts") / ONE / max(float(counts.sum()), 1.0)),
        context.noise_of("leaf_mean_1") * width / kept,
        context.noise_of("leaf_covariance") * width**2 / kept,
    ]
    return np.maximum(np.stack(noise, axis=1), SMALLEST_NOISE)


def _in_series(context: PassContext, state: PrivateGMMState) -> np.ndarray:
    """(m,) which component of the series each cell is; -1: none."""
    noise = _noise_of_cells(context, state)[:, series.MEANS]
    return series.matched(state.pool, state.means, noise, context.config.covariance, context.config.sigma_floor)


def estimate_covariances(context: PassContext, published: Sequence[np.ndarray]) -> PrivateGMMState:
    """The end of a run that has found components: they are pooled with those of the series."""
    config, state = context.config, context.state
    (m, d), form = state.means.shape, config.covariance
    unit = estimation.square_units(state.tree.count[state.leaf], state.reach)
    noise = np.full(m, context.noise())
    covariances, unreliable = estimation.covariances_of(published[0][:m], unit, d, form, noise, config.sigma_floor)
    found = "found" if state.searches else "of the series estimated anew, without a search"
    state = replace(
        state,
        phase="done",
        outcome=FOUND,
        covariances=covariances,
        unreliable=unreliable,
        reason=f"{m} components {found}",
    )
    own = series.of_run(state.weights, state.means, published[0][:m] * unit[:, None], _noise_of_cells(context, state))
    pairs = _in_series(context, state)
    pool = series.joined(state.pool.forgotten(), own, pairs, form, config.components)
    state = state.with_pool(pool)
    return state if (pairs < 0).all() else _pooled(config, state, own)


def _pooled(config: PrivateGMMConfig, state: PrivateGMMState, own: Pool) -> PrivateGMMState:
    """The mixture as the series knows it. own: what this run released."""
    weights, known, covariances, unreliable = mixture_of_pool(config, state.pool)
    left = float(np.median(known.noise[:, series.MEANS] / own.noise[:, series.MEANS]))
    gained = f"pooled with earlier runs of the series: {left:.0%} of the noise that the means of this run alone have"
    return replace(
        state,
        weights=weights,
        means=known.means,
        covariances=covariances,
        unreliable=unreliable,
        reason=f"{state.reason}; {gained}",
    )


def mixture_of_pool(config: PrivateGMMConfig, pool: Pool) -> tuple[np.ndarray, Pool, np.ndarray, np.ndarray]:
    """(weights, pool, covariances, unreliable) of the components that the last run found."""
    known = pool.found
    covariances, unreliable = estimation.covariances_of(
        known.moments,
        np.ones(len(known)),
        known.means.shape[1],
        config.covariance,
        known.noise[:, series.MOMENTS],
        config.sigma_floor,
    )
    return estimation.weights_of(known.shares), known, covariances, unreliable


STEPS: dict[PassKind, Callable[[PassContext, Sequence[np.ndarray]], PrivateGMMState]] = {
    "mean": recentre,
    "radii": tighten,
    "moments": project,
    "boxes": halve_boxes,
    "offsets": place_candidates,
    "profiles": split_nodes,
    "leaf radii": estimate_radii,
    "leaf mean": estimate_means,
    "leaf valleys": look_for_valleys,
    "leaf covariance": estimate_covariances,
}
