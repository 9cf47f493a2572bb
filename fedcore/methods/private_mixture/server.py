"""The server's side: what it says in each round, and what it makes of what is published.

Rounds and what they are for are listed in `fedcore.methods.private_mixture.plan`. Everything here is a function of
published values, of the config and of public streams; nothing depends on a raw sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedcore.methods.mixture_models import chi_squared as chi2
from fedcore.methods.mixture_models.noised_cells import kept, quantile
from fedcore.methods.mixture_models.whole_rows import ONE, STEP, cut_coordinates, whole_map
from fedcore.methods.private_mixture import answers, columns, em, gaps, groups, starts, whitening
from fedcore.methods.private_mixture.clients import OWN_BITS, norm_edges
from fedcore.methods.private_mixture.config import PrivateMixtureConfig
from fedcore.methods.private_mixture.layout import layout_now, layout_of, sizes_of
from fedcore.methods.private_mixture.messages import CellsMessage, ComponentsMessage, MappedMessage, Message
from fedcore.methods.private_mixture.plan import (
    COLUMN_CELLS,
    LLOYD,
    PASSES,
    Design,
    Kind,
    Phase,
    design_of,
    plan,
    planned_design,
    reach_of,
)
from fedcore.methods.private_mixture.profiled import ranges_in
from fedcore.methods.private_mixture.promotion import promoted
from fedcore.methods.private_mixture.round_metrics import info_of
from fedcore.methods.private_mixture.series import FORGETTING, KNOWN, MixedPool, pool_in
from fedcore.methods.private_mixture.state import MIXTURE, NORMAL, RUNNING, MixedState, PrivateMixtureState
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts, RoundInfo

INSIDE = 0.95  # of the units, whose norms are not cut
TYPICAL = 0.5
BROAD = 9.0  # covariance of the background, in that of all rows
BOUND_FACTOR = 5.0  # of the guard's bound, in sqrt(d)
LATE = 2  # rounds of EM, in which components must stand out of noise
LEAST_GAIN = 2.0  # standard deviations of its noise, that a mixture must gain over one normal distribution


@dataclass(frozen=True, slots=True)
class Context:
    """A round, with the state before it."""

    config: PrivateMixtureConfig
    state: PrivateMixtureState
    design: Design

    @property
    def now(self) -> Phase:
        return self.design.phases[self.state.round]

    def noise(self, prefix: str) -> float:
        """Standard deviation of the release of this round whose name begins so, in grid steps."""
        name = f"{prefix}_{self.now.step}"
        names = [item.name for phase in self.design.phases for item in phase.releases]
        return float(self.state.noise[names.index(name if name in names else prefix)])

    def stream(self, purpose: str) -> np.random.Generator:
        return stream(self.state.seed, f"private_mixture {purpose}", self.state.round)


def context_of(config: PrivateMixtureConfig, state: PrivateMixtureState) -> Context:
    found = design_of(config, state.features, state.declared, state.rho, state.relation, state.warm, state.profiled)
    return Context(config, state, found)


def init(config: PrivateMixtureConfig, public: PublicFacts) -> PrivateMixtureState:
    """Raises ConfigError for what `fedcore.methods.private_mixture.plan.plan` refuses."""
    design, releases = planned_design(config, public), plan(config, public)
    assert public.rho is not None
    d, q, none = design.d, design.q, np.zeros(0)
    same = whitening.identity(d)
    sizes = sizes_of(config.categories)
    of_answers: dict[str, Any] = {
        "probabilities": np.zeros((0, sum(sizes))),
        "answers_known": np.zeros((0, len(sizes))),
    }
    state = (MixedState if sizes else PrivateMixtureState)(
        round=0,
        done=False,
        outcome=RUNNING,
        warm=design.warm,
        seed=public.seed,
        unit=public.unit,
        relation=public.relation,
        declared=design.n,
        rho=public.rho,
        noise=np.array([release.scale for release in releases]),
        count=0.0,
        missing=np.zeros(d),
        centre=np.zeros(d),
        scale=np.ones(d),
        told=np.zeros(d, bool),
        atoms=np.zeros(d),
        steps=np.zeros(d),
        share=np.zeros(d),
        clip=1.0,
        map_centre=same.centre,
        map_matrix=same.matrix,
        map_exponent=same.exponent,
        lead_centre=np.zeros(d),
        lead_matrix=np.zeros((d, q)),
        lead_exponent=np.zeros(q, np.int64),
        spread=np.ones(q),
        cells=np.zeros((0, q)),
        found_cells=np.zeros((0, q)),
        found_counts=none,
        found_noise=none,
        weights=none,
        means=np.zeros((0, d)),
        covariances=np.zeros((0, d, d)),
        known=np.zeros((0, KNOWN)),
        edge=0.0,
        gain=0.0,
        gain_noise=0.0,
        node=np.zeros(0, np.int64),
        edges=np.zeros((0, 2), np.int64),
        mass=none,
        depth=none,
        p=none,
        group=np.zeros(0, np.int64),
        **(of_answers if sizes else {}),
    )
    layout = layout_of(config, public.features)
    if (ranges := ranges_in(public, layout)) is not None:
        return replace(state, centre=ranges.centre, scale=ranges.reach, told=np.ones(d, bool), profiled=True)
    pool = pool_in(public, config.components, layout)
    if pool is None:
        return state
    if isinstance(state, MixedState) and isinstance(pool, MixedPool):
        state = replace(state, probabilities=pool.probabilities, answers_known=pool.answers_known / FORGETTING)
    return replace(
        state,
        count=float(design.n),
        missing=pool.missing,
        centre=pool.centre,
        scale=pool.scale,
        told=pool.told,
        atoms=pool.atoms,
        steps=pool.steps,
        share=pool.share,
        map_centre=pool.map_centre,
        map_matrix=pool.map_matrix,
        map_exponent=pool.map_exponent,
        weights=pool.weights,
        means=pool.means,
        covariances=pool.covariances,
        known=pool.known / FORGETTING,
    )


# --- what clients are sent --------------------------------------------------------------------------------------------


def message(config: PrivateMixtureConfig, state: PrivateMixtureState) -> Message | None:
    """None if the run is finished."""
    if state.done:
        return None
    context = context_of(config, state)
    now = context.now
    every: dict[str, Any] = {
        "kind": now.kind,
        "step": now.step,
        "names": tuple(item.name for item in now.releases),
        "shapes": tuple(item.shape for item in now.releases),
        "by_client": state.unit == "client",
        "layout": layout_now(config, state),
        "centre": state.centre,
        "scale": state.scale,
    }
    if now.kind in ("columns", "centres", "spans"):
        return Message(**every)
    every["guess"] = gaps.guess_of(state, BROAD)
    if now.kind == "cells":
        return CellsMessage(**every, map=state.lead, clip=state.clip / STEP, cells=cut_coordinates(state.cells / STEP))
    if now.kind == "norms" and now.step == 2:
        return MappedMessage(**every, map=state.lead, clip=1.0)
    if now.kind == "moments" or (now.kind == "norms" and now.step < 2):
        return MappedMessage(**every, map=state.map, clip=state.clip / STEP)
    return _components_message(context, every)


def logs_of(probabilities: np.ndarray, k: int) -> np.ndarray:
    """(k + 1, values + 1): logs, and 0 for no answer; 0 for all before the first round of EM."""
    known = np.log(probabilities) if len(probabilities) else np.zeros((k + 1, probabilities.shape[1]))
    return np.append(known, np.zeros((k + 1, 1)), axis=1)


def _components_message(context: Context, every: dict[str, Any]) -> ComponentsMessage:
    state, d = context.state, context.design.d
    inverse, _ = em.roots_of(state.covariances)
    steps = 2.0**OWN_BITS * STEP
    maps = [whole_map(mean / STEP, matrix * steps) for mean, matrix in zip(state.means, inverse, strict=True)]
    maps.append(whole_map(np.zeros(d), np.eye(d) * (steps / math.sqrt(BROAD))))
    logdet = np.append(np.linalg.slogdet(inverse)[1], -0.5 * d * math.log(BROAD))
    node = state.node if len(state.node) else np.arange(len(state.means))
    nodes = groups.nodes_of(node, state.weights[:-1], state.means, state.covariances)
    on_edges, middle = groups.along(state.edges, nodes)
    return ComponentsMessage(
        **every,
        map=state.map,
        clip=reach_of(d) * 2.0**OWN_BITS,
        maps=tuple(maps),
        constants=np.log(np.maximum(state.weights, 1e-12)) + logdet,
        answers=logs_of(state.probabilities, len(state.means)) if isinstance(state, MixedState) else None,
        bound=guard_bound(context),
        own=context.design.own,
        node=node,
        edges=state.edges,
        along=on_edges,
        middle=middle,
    )


# --- what follows from a release --------------------------------------------------------------------------------------

Published = Mapping[str, np.ndarray]


def server_update(
    config: PrivateMixtureConfig, state: PrivateMixtureState, result: Mapping[str, np.ndarray]
) -> tuple[PrivateMixtureState, RoundInfo]:
    """result: the round's noisy int64 arrays by planned name."""
    context = context_of(config, state)
    step = context.now.step
    values = {name.removesuffix(f"_{step}"): np.asarray(array, np.float64) for name, array in result.items()}
    after = replace(STEPS[context.now.kind](context, values), round=state.round + 1)
    if after.round == len(context.design.phases):
        after = replace(after, done=True)
    return after, info_of(config, context.now, after)


def _first(context: Context, values: Published) -> PrivateMixtureState:
    count, noise = max(float(values["count"][0]) / ONE, 1.0), context.noise("columns")
    by_setting = layout_now(context.config, context.state).steps > 0
    state = replace(context.state, count=count, missing=values["columns"][:, COLUMN_CELLS] / ONE)
    numbers = values["columns"][:, :COLUMN_CELLS]
    forms = columns.atoms_of(numbers, noise, columns.there(context.config, state)).without(by_setting)
    state = replace(state, atoms=forms.atoms, steps=forms.steps, share=forms.share)
    if state.profiled:
        centre, reach = columns.profiled_guess(state.centre, state.scale, forms)
        return replace(state, centre=centre, scale=reach / 2)
    centre, reach, told = columns.first_guess(numbers, noise, forms)
    return replace(state, centre=centre, scale=reach, told=told)


def _centred(context: Context, values: Published) -> PrivateMixtureState:
    state = context.state
    centre = columns.moved(state.centre, state.scale, values["centres"], columns.there(context.config, state))
    return replace(state, centre=np.where(state.told, centre, state.centre))


def _spanned(context: Context, values: Published) -> PrivateMixtureState:
    state = context.state
    found, told = columns.reach_of(values["spans"], context.noise("spans"))
    reach = np.where(told, found, state.scale)  # a histogram that noise has drowned changes nothing
    last = context.now.step == PASSES - 1
    return replace(state, scale=reach / 2 if last else reach, told=state.told | told)


def _norms(context: Context, values: Published) -> PrivateMixtureState:
    state, step = context.state, context.now.step
    edges = norm_edges()
    counts = kept(values["norms"] / ONE, context.noise("norms") / ONE)
    ends = np.concatenate([[edges[0] / 2], edges, [edges[-1] * 2]])
    if step == 3:
        typical = float(quantile(counts, ends, TYPICAL))
        factor = np.clip(typical**2 / chi2.median(context.design.d), 0.02, 2.0)
        return replace(state, covariances=state.covariances * factor, clip=reach_of(context.design.d))
    clip = float(quantile(counts, ends, INSIDE))
    if step < 2:
        edge = whitening.noise_edge(context.noise("moments"), context.design.d, clip, state.count) if step else 0.0
        return replace(state, clip=clip, edge=edge)
    typical, k, q = float(quantile(counts, ends, TYPICAL)), context.design.k, context.design.q
    m = starts.number_of_cells(k, q, state.count, context.design.mu, typical, clip)
    return replace(state, clip=clip, cells=starts.first_cells(m, state.spread, context.stream("cells")))


def _moments(context: Context, values: Published) -> PrivateMixtureState:
    state, step = context.state, context.now.step
    count = float(values["moments_count"][0]) / ONE
    floor = whitening.FLOORS[step]
    noise = context.noise("moments")
    found = whitening.moments_of(count, values["moments_sum"], values["moments"], noise, state.clip, floor)
    made = whitening.whitened(state.map, found)
    after = replace(state, map_centre=made.centre, map_matrix=made.matrix, map_exponent=made.exponent)
    if step == 0:
        return after
    lead, spread, _ = whitening.leading(made, context.design.q)
    return replace(after, lead_centre=lead.centre, lead_matrix=lead.matrix, lead_exponent=lead.exponent, spread=spread)


def _cells(context: Context, values: Published) -> PrivateMixtureState:
    state = context.state
    noise = context.noise("cells"), context.noise("cells_sum")
    cells, counts, uncertain = starts.moved(
        state.cells, values["cells"], values["cells_sum"], noise, state.clip, state.spread, context.stream("cells")
    )
    held = counts > 0
    after = replace(
        state,
        cells=cells,
        found_cells=np.vstack([state.found_cells, cells[held]]),
        found_counts=np.append(state.found_counts, counts[held]),
        found_noise=np.append(state.found_noise, uncertain[held]),
    )
    if context.now.step < LLOYD - 1:
        return after
    _, spread, lift = whitening.leading(state.map, context.design.q)
    generator = context.stream("starts")
    weights, means, covariances = starts.components_of(
        after.found_cells, after.found_counts, after.found_noise, spread, lift, context.design.k, generator
    )
    return replace(after, weights=weights, means=means, covariances=covariances)


def _components(context: Context, values: Published) -> PrivateMixtureState:
    state, design = context.state, context.design
    names = ("p", "pv", "pvv", "pooled", *(("own",) if design.own else ()))
    sums = em.Sums(
        values["em_p"],
        values["em_pv"],
        values["em_pvv"],
        values["em_pooled"],
        values.get("em_own"),
        {name: context.noise(f"em_{name}") for name in names},
    )
    before = em.Components(state.weights, state.means, state.covariances, state.known)
    late = design.warm or context.now.step >= context.config.rounds - LATE
    count = max(float(values["em_p"].sum()) / ONE, 1.0) if design.warm else state.count
    after = em.moved(before, sums, reach_of(design.d), count, late, design.warm)
    if not late and not isinstance(state, MixedState):
        after = promoted(after, sums, reach_of(design.d), count, design.k, BROAD)
    if isinstance(state, MixedState):
        state = _answered(context, state, values, count, late)
    return replace(
        state, count=count, weights=after.weights, means=after.means, covariances=after.covariances, known=after.known
    )


def _answered(context: Context, state: MixedState, values: Published, count: float, late: bool) -> MixedState:
    k = len(state.means)
    before = answers.Answers(state.probabilities, state.answers_known)
    counts, noise = values["em_answers"] / ONE, context.noise("em_answers") / ONE
    stay, _ = em.staying(values["em_p"][:k], context.noise("em_p"), count, late)
    sizes = sizes_of(context.config.categories)
    after = answers.moved(before, counts[[*range(k), -1]], noise, sizes, stay, context.design.warm)
    return replace(state, probabilities=after.probabilities, answers_known=after.known)


def guard_bound(context: Context) -> float:
    """What a row's gain is cut to."""
    sizes = sizes_of(context.config.categories)
    return BOUND_FACTOR * math.sqrt(context.design.d + sum(sizes) - len(sizes))


def _guarded(context: Context, values: Published) -> PrivateMixtureState:
    state, d = context.state, context.design.d
    bound = guard_bound(context)
    total, noise = float(values["guard"][0]) * bound / ONE, context.noise("guard") * bound / ONE
    state = replace(state, gain=total / state.count, gain_noise=noise / state.count)
    if len(state.means) > 1 and total >= LEAST_GAIN * noise:
        parts = state.weights[:-1], state.means, state.covariances
        node = groups.near(*parts)
        return replace(state, outcome=MIXTURE, node=node, edges=groups.edges_of(groups.nodes_of(node, *parts)))
    if total >= LEAST_GAIN * noise:
        return replace(state, outcome=NORMAL, done=True, group=np.zeros(1, np.int64))
    if isinstance(state, MixedState):
        everybody = np.tile(state.probabilities[-1:], (2, 1))
        state = replace(state, probabilities=everybody, answers_known=state.answers_known[:1])
    return replace(
        state,
        outcome=NORMAL,
        done=True,
        weights=np.array([1 - em.LEAST_BACKGROUND, em.LEAST_BACKGROUND]),
        means=np.zeros((1, d)),
        covariances=np.eye(d)[None],
        group=np.zeros(1, np.int64),
        known=state.known[:1],
    )


def _grouped(context: Context, values: Published) -> PrivateMixtureState:
    state, config = context.state, context.config
    noise = context.noise("valleys")
    mass, depth, p = groups.tested(values["valleys"][: len(state.edges)], noise, state.seed)
    group = groups.groups_of(state.node, state.edges, depth, p, config.alpha, config.depth)
    return replace(state, mass=mass, depth=depth, p=p, group=group)


STEPS: dict[Kind, Callable[[Context, Published], PrivateMixtureState]] = {
    "columns": _first,
    "centres": _centred,
    "spans": _spanned,
    "norms": _norms,
    "moments": _moments,
    "cells": _cells,
    "components": _components,
    "guard": _guarded,
    "valleys": _grouped,
}
