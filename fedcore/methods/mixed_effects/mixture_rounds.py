"""Mixtures of mixed-effects regressions as rounds of the method: what `fedcore.methods.mixed_effects.mixture`
computes, between messages, memories and states.

    start    one pass: every client's own mixture; those of some clients are compared and put in one order
    trial    20 rounds of two fits, with robust weights and without, on four fifths of each client's rows; then one pass
             in which clients judge them by the other fifth (`robust = "auto"`)
    rounds   sums of all clients, and the next means, covariances and noise

A client's memory is its `Parts`: w (C, F, R), coefficients (C, F, R, p), covariances (C, F, R, p, p), of F fits side
by side: two in the trial, then one. Until round 1 it has its own start too: theta (C, R, p), shares (C, R). Units are
those of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.mixed_effects import mixture, robust_trial
from fedcore.methods.mixed_effects.config import MixedEffectsConfig
from fedcore.methods.mixed_effects.messages import Message, MixtureMessage, StartMessage
from fedcore.methods.mixed_effects.mixture import Parts
from fedcore.methods.mixed_effects.regression import Common
from fedcore.methods.mixed_effects.state import (
    MixedEffectsState,
    after_round,
    commons_of,
    in_model_units,
    robust,
    with_commons,
)
from fedcore.methods.mixture_models import alignment
from fedcore.methods.mixture_models.local_fits import compared, local_fits
from fedcore.methods.mixture_models.local_steps import Rows, regression_rows
from fedcore.methods.mixture_models.row_draws import held_out
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import stream
from fedcore.rounds.method import Memory, RoundInfo
from fedcore.rounds.statistics import ArgMax, FloatSum, Stack, Statistics

TRIED = (True, False)  # whether weights are robust, of the fits of a trial
ADAPTED_STEPS = 30


# --- clients ----------------------------------------------------------------------------------------------------------


def client_update(
    config: MixedEffectsConfig, message: Message, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    if isinstance(message, StartMessage):
        return own_fits(config, message, block)
    return client_round(config, cast(MixtureMessage, message), block, memory)


def own_fits(config: MixedEffectsConfig, message: StartMessage, block: RowsBlock) -> tuple[Statistics, Memory]:
    """The clients' own mixtures, of which those of the clients that are compared leave them.

    sizes:   (3,) clients with rows, rows, clients with a fit of their own
    largest: the client with the most rows
    fits:    (c, 2 + R p) number, variance within components and coefficients of the fitted clients that were chosen
    squares: (p,) sums of squares of the inputs
    """
    rows = regression_rows(block, None, config.intercept)
    n, p = rows.sizes, rows.x.shape[1]
    fits = local_fits(
        rows, config.components, message.seed, block.first, starts=config.starts, ward=False, steps=config.start_steps
    )
    chosen = fits.fitted & compared(message.seed, message.compared, block.first, block.clients)
    free = n - config.components * p
    variances = (fits.w * fits.covariance).sum(axis=1) * np.where(free > 0, n / np.maximum(free, 1.0), 1.0)
    numbers = block.first + np.flatnonzero(chosen)
    sent = np.column_stack(
        [numbers, variances[chosen], fits.theta[chosen].reshape(len(numbers), config.components * p)]
    )
    most = int(np.argmax(n)) if len(n) else 0
    return {
        "sizes": FloatSum.at(block.leaf, [np.count_nonzero(n), n.sum(), np.count_nonzero(fits.fitted)]),
        "largest": ArgMax(float(n[most]), block.first + most, {}),
        "fits": Stack({block.first: sent}),
        "squares": FloatSum.at(block.leaf, np.einsum("ij,ij->j", rows.x, rows.x)),
    }, {"theta": fits.theta, "w": fits.w, "started": fits.fitted.astype(np.int8)}


def client_round(
    config: MixedEffectsConfig, message: MixtureMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """sums: (F, R, p p + p + 5) of `mixture.round_sums`, of F fits; or gain: (2,) as of `robust_trial.gain_sums`.
    restarts: second starts that were taken."""
    rows, p = regression_rows(block, None, config.intercept), message.centres.shape[1]
    if message.number == 1:
        memory = _beginning(message, block, memory)
    every = rows
    if message.held:
        held = held_out(message.seed, robust_trial.HELD, block.first + np.arange(block.clients), np.diff(rows.ptr))
        rows, every = rows.where(~held), rows.where(held)
    judged: list[tuple[Rows, Parts, list[Common]]] = []
    found: list[Parts] = []
    sums, restarts = [], 0
    for number, (fit, weights) in enumerate(zip(message.fits, message.robust, strict=True)):
        commons = [Common.of_row(row, p, message.smallest) for row in fit]
        parts = Parts(*(memory[name][:, number] for name in Parts._fields))
        if message.judged:
            judged.append((rows, parts, commons))
            continue
        if message.again:
            parts, again = mixture.second_start(rows, parts, commons, weights)
            restarts += again
        step = mixture.step(rows, parts, commons, weights)
        found.append(step.parts)
        sums.append(mixture.round_sums(step))
    if message.judged:
        return {"gain": FloatSum.at(block.leaf, _gain_sums(judged, every))}, {n: memory[n] for n in ("theta", "shares")}
    parts_of = {name: np.stack([getattr(one, name) for one in found], axis=1) for name in Parts._fields}
    memory = memory | parts_of if message.held else parts_of  # own starts are done with after the trial
    return {"sums": FloatSum.at(block.leaf, np.stack(sums)), "restarts": FloatSum.at(block.leaf, [restarts])}, memory


def _beginning(message: MixtureMessage, block: RowsBlock, memory: Memory) -> Memory:
    """The memory of a first round: components in the common order, and every fit at the client's own start."""
    if "started" in memory:
        memory = alignment.in_common_order(memory, message.orders, message.centres, block)
        memory["shares"] = memory.pop("w")
    theta, fits = memory["theta"], len(message.fits)
    covariances = np.zeros((*theta.shape, theta.shape[2]))
    start = Parts(memory["shares"], theta, covariances)
    return memory | {name: np.stack([getattr(start, name)] * fits, axis=1) for name in Parts._fields}


def _gain_sums(found: list[tuple[Rows, Parts, list[Common]]], held: Rows) -> np.ndarray:
    """The two sums of the gain of robust weights; see `robust_trial`."""
    densities = []
    for (rows, parts, commons), weights in zip(found, TRIED, strict=True):
        own, _ = mixture.personal(rows, parts, commons, weights)
        densities.append(mixture.log_density(held, own, commons[0].noise))
    rows, parts, commons = found[0]
    shares = mixture.shares(mixture.step(rows, parts, commons, True))
    return np.array([shares @ (densities[0] - densities[1]), shares @ held.sizes])


def of_memory(
    config: MixedEffectsConfig, state: MixedEffectsState, rows: Rows, memory: Memory
) -> tuple[Parts, np.ndarray]:
    """What clients of the run find in the end, and (C, R) how far out they are. Rows and result: model's units."""
    w, coefficients, covariances = (memory[name][:, 0] for name in Parts._fields)
    parts = Parts(w, coefficients / np.sqrt(state.noise), covariances / state.noise)
    return mixture.personal(rows, parts, in_model_units(state), robust(config, state))


def adapted(config: MixedEffectsConfig, state: MixedEffectsState, rows: Rows) -> Parts:
    """What clients find that have these rows and know the common coefficients. Rows and result: model's units."""
    commons, weights = in_model_units(state), robust(config, state)
    parts = Parts.of_common(commons, len(rows.sizes))
    for _ in range(ADAPTED_STEPS):
        parts = mixture.step(rows, parts, commons, weights).parts
    return mixture.personal(rows, parts, commons, weights)[0]


# --- server -----------------------------------------------------------------------------------------------------------


def message(config: MixedEffectsConfig, state: MixedEffectsState) -> MixtureMessage:
    trial = state.phase == "trial"
    number = (state.trial_round if trial else state.round) + 1
    fits = state.chains if trial else np.stack([common.row() for common in commons_of(state)])[None]
    return MixtureMessage(
        number=number,
        seed=state.seed,
        fits=fits,
        smallest=state.smallest_noise,
        robust=TRIED if trial else (robust(config, state),),
        held=trial,
        judged=trial and state.trial_round == robust_trial.TRIAL_ROUNDS,
        again=config.starts_again(number),
        orders=state.orders,
        centres=state.centres,
    )


def server_update(
    config: MixedEffectsConfig, state: MixedEffectsState, result: Mapping[str, Any]
) -> tuple[MixedEffectsState, RoundInfo]:
    if state.phase == "start":
        return after_start(config, state, result)
    if state.phase == "trial":
        return after_trial(state, result)
    return after_sums(config, state, result)


def after_start(
    config: MixedEffectsConfig, state: MixedEffectsState, result: Mapping[str, Any]
) -> tuple[MixedEffectsState, RoundInfo]:
    """The state at the beginning of the trial, or of round 1."""
    clients, rows, fitted = (float(value) for value in result["sizes"])
    sent = np.asarray(result["fits"])
    if rows == 0:
        raise PopulationError("no client of the population has any rows.", "Check what was ingested.")
    if not len(sent):
        raise PopulationError(
            f"no client has the rows to fit {config.components} components by itself.", "Ask for fewer components."
        )
    theta = sent[:, 2:].reshape(len(sent), config.components, -1)
    orders = alignment.by_rule("auto", config.shuffles, theta, stream(state.seed, "gradient_em/alignment"))
    squares = np.asarray(result["squares"]) / rows
    mass = rows / (clients * config.components)
    commons = mixture.first_commons(alignment.reordered(theta, orders), sent[:, 1], squares, mass)
    every = np.tile(np.arange(config.components, dtype=np.int32), (state.population, 1))
    every[sent[:, 0].astype(np.int64)] = orders
    state = replace(
        with_commons(state, commons),
        phase="rounds",
        clients=clients,
        rows=rows,
        largest=int(result["largest"].score),
        squares=squares,
        orders=every if len(sent) == fitted else state.orders,  # else all clients align themselves
    )
    if config.robust == "auto":
        fits = np.stack([np.stack([common.row() for common in commons])] * len(TRIED))
        state = replace(state, phase="trial", chains=fits)
    return state, RoundInfo({"clients": clients, "rows": rows, "fitted": fitted})


def after_trial(state: MixedEffectsState, result: Mapping[str, Any]) -> tuple[MixedEffectsState, RoundInfo]:
    """The next fits of the trial; or, when they were judged, the state at the beginning of round 1."""
    if "gain" in result:
        weights, gain = robust_trial.chosen(np.asarray(result["gain"]))
        state = replace(state, phase="rounds", robust=int(weights), gain=gain, chains=np.zeros((0, 0)))
        return state, RoundInfo({"robust": float(weights), "gain": gain})
    p, fits = state.centres.shape[1], []
    for fit, sums in zip(state.chains, np.asarray(result["sums"]), strict=True):
        commons = [Common.of_row(row, p, state.smallest_noise) for row in fit]
        fits.append(np.stack([c.row() for c in mixture.next_commons(commons, sums, state.squares)]))
    state = replace(state, chains=np.stack(fits), trial_round=state.trial_round + 1, orders=state.orders[:0])
    return state, RoundInfo({})


def after_sums(
    config: MixedEffectsConfig, state: MixedEffectsState, result: Mapping[str, Any]
) -> tuple[MixedEffectsState, RoundInfo]:
    sums = np.asarray(result["sums"])[0]
    after = mixture.next_commons(commons_of(state), sums, state.squares)
    state, info = after_round(config, replace(state, orders=state.orders[:0]), after, sums)
    return state, RoundInfo({**info.scalars, "second_starts": float(result["restarts"][0])})
