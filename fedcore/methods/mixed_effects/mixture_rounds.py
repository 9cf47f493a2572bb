"""Mixtures of mixed-effects regressions: the model, and its rounds between messages, memories and states.

    start    one pass: every client's own mixture; those of some clients are compared and put in one order
    trial    20 rounds of two fits, with robust weights and without, on four fifths of each client's rows; then one pass
             in which clients judge them by the other fifth (`robust = "auto"`)
    rounds   sums of all clients, and the next means, covariances and noise

A client's memory is its `Parts`: w (C, F, R), coefficients (C, F, R, p), covariances (C, F, R, p, p), of F fits side
by side: two in the trial, then one. Until round 1 it has its own start too: theta (C, R, p), shares (C, R). Units are
those of the data.

Mixtures of regressions whose coefficients scatter: a row of client k is of component r with probability w_kr, its
coefficients are beta_kr ~ N(m_r, D_r), its noise has variance s2.

Components of rows and coefficients of a client depend on each other given its rows. As in variational EM they are taken
as independent: with b, C the mean and covariance of a client's coefficients,

    g_ir = softmax over r of  log w_kr - [(y_i - x_i.b_kr)^2 + x_i' C_kr x_i] / (2 s2)
    w_kr = mean of g_ir;    b_kr, C_kr from the rows weighted by g_ir, as those of one component are from all rows

(`regression`, G_kr = sum g x x' and so on), and m_r, D_r, s2 from the same sums. A round never lowers the bound of
the log-likelihood (`bound`) if t = 1 and D is not pooled. A client needs what it found in the round before.

Full covariances of R components are many numbers for few clients. Each D_r is pooled with the mean of all, which counts
as much as `POOLED` clients (P). Then it is pooled again, with the same weight, with the multiple of the inputs' inverse
mean squares that has its trace:

    D_r <- [T_r D_r + P Dbar] / (T_r + P),    D_r <- [(T_r + P) D_r + P D0_r] / (T_r + 2 P),    T_r = sum t

Source: Laird, Ware 1982 and Jordan et al. 1999 for its parts. Pooling and robust weights are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.mixed_effects import regression, robust_trial
from fedcore.methods.mixed_effects.config import MixedEffectsConfig
from fedcore.methods.mixed_effects.regression import LOG_TWO_PI, Common, Posteriors, Systems
from fedcore.methods.mixed_effects.state import (
    Message,
    MixedEffectsState,
    MixtureMessage,
    StartMessage,
    after_round,
    commons_of,
    in_model_units,
    robust,
    with_commons,
)
from fedcore.methods.mixture_models import alignment
from fedcore.methods.mixture_models.local_fits import compared, local_fits
from fedcore.methods.mixture_models.local_steps import LOG_WEIGHT_FLOOR, Rows, regression_rows
from fedcore.methods.mixture_models.row_draws import held_out
from fedcore.methods.mixture_models.tiles import stacks
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import stream
from fedcore.rounds.method import Memory, RoundInfo
from fedcore.rounds.statistics import ArgMax, FloatSum, Stack, Statistics

POOLED = 10.0  # weight in clients
START_NOISE = 1.2  # a start's error is larger than 1 / (n w), because it is not known whose component a row is
SECOND_STEPS = 10


class Parts(NamedTuple):
    """What clients know of themselves. w: (C, R); coefficients: (C, R, p) b; covariances: (C, R, p, p) C."""

    w: np.ndarray
    coefficients: np.ndarray
    covariances: np.ndarray

    @classmethod
    def of_common(cls, commons: Sequence[Common], clients: int) -> Parts:
        """Of clients that know nothing of themselves."""
        means, betweens = (np.stack([getattr(c, name) for c in commons]) for name in ("mean", "between"))
        w = np.full((clients, len(commons)), 1.0 / len(commons))
        return cls(w, np.tile(means, (clients, 1, 1)), np.tile(betweens, (clients, 1, 1, 1)))


class Step(NamedTuple):
    """parts: after it; own, found: of each component; fits: (C,) expected log-density of the rows before it."""

    parts: Parts
    own: list[Systems]
    found: list[Posteriors]
    fits: np.ndarray


# --- clients ----------------------------------------------------------------------------------------------------------


def em_step(rows: Rows, parts: Parts, commons: Sequence[Common], robust: bool) -> Step:
    """One round of all clients."""
    g, fits = _components_of_rows(rows, parts, commons[0].noise)
    n = np.maximum(rows.sizes, 1.0)
    mass = np.zeros(parts.w.shape)
    np.add.at(mass, rows.owners, g)
    own, found = [], []
    for r, common in enumerate(commons):
        root = np.sqrt(g[:, r])
        weighted = Rows(rows.x * root[:, None], rows.responses * root, rows.ptr)
        own.append(regression.systems(weighted)._replace(n=mass[:, r]))
        found.append(regression.posteriors(own[-1], common, robust))
    w = np.where(rows.sizes[:, None] > 0, mass / n[:, None], parts.w)
    coefficients = np.stack([one.coefficients for one in found], axis=1)
    return Step(Parts(w, coefficients, np.stack([one.covariances for one in found], axis=1)), own, found, fits)


def _components_of_rows(rows: Rows, parts: Parts, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """g (N, R), and (C,) the summed logarithms of what normalises it."""
    logs = np.log(np.maximum(parts.w, LOG_WEIGHT_FLOOR))[rows.owners] - 0.5 * (LOG_TWO_PI + np.log(noise))
    left, spread = _residuals(rows, parts)
    return _shares(rows, logs - 0.5 * (left**2 + spread) / noise)


def _residuals(rows: Rows, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """y - x.b and x' C x of each row and component, (N, R)."""
    left, spread = np.empty((len(rows.x), parts.w.shape[1])), np.empty((len(rows.x), parts.w.shape[1]))
    responses, numbers = rows.responses, np.arange(len(rows.x))
    for stack in stacks(rows.ptr, 2 * rows.x.shape[1]):
        x, y, c = stack.take(rows.x), stack.take(responses), stack.clients
        seen = np.ones(stack.shape, bool) if stack.seen is None else stack.seen
        at = stack.take(numbers)[seen]
        for r in range(parts.w.shape[1]):
            left[at, r] = (y - np.matmul(x, parts.coefficients[c, r, :, None])[:, :, 0])[seen]
            spread[at, r] = (np.matmul(x, parts.covariances[c, r]) * x).sum(axis=2)[seen]
    return left, spread


def _shares(rows: Rows, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    top = logs.max(axis=1)
    g = np.exp(logs - top[:, None])
    total = g.sum(axis=1)
    fits = np.zeros(len(rows.sizes))
    np.add.at(fits, rows.owners, top + np.log(total))
    return g / total[:, None], fits


def log_density(rows: Rows, parts: Parts, noise: float) -> np.ndarray:
    """(C,) of rows that the parts were not found from, nats: each row by itself, coefficients integrated out."""
    left, spread = _residuals(rows, parts)
    variance = noise + spread
    logs = np.log(np.maximum(parts.w, LOG_WEIGHT_FLOOR))[rows.owners]
    return _shares(rows, logs - 0.5 * (LOG_TWO_PI + np.log(variance) + left**2 / variance))[1]


def bound(rows: Rows, parts: Parts, commons: Sequence[Common]) -> np.ndarray:
    """(C,) the lower bound of each client's log-likelihood, for parts that came of a step with these commons, nats."""
    _, found = _components_of_rows(rows, parts, commons[0].noise)
    for r, common in enumerate(commons):
        half = regression.root_of(common.between)
        scales = np.linalg.norm(half, axis=0)
        kept = scales > 1e-9 * scales.max(initial=0.0)
        inverse = np.where(kept, half / np.where(kept, scales, 1.0) ** 2, 0.0)  # half has orthogonal columns
        q = (parts.coefficients[:, r] - common.mean) @ inverse
        covariances = inverse.T @ parts.covariances[:, r] @ inverse + np.diag(~kept).astype(np.float64)
        _, logdets = np.linalg.slogdet(covariances)
        found = found - 0.5 * ((q**2).sum(axis=1) + np.trace(covariances, axis1=1, axis2=2) - len(kept) - logdets)
    return found


def second_start(rows: Rows, parts: Parts, commons: Sequence[Common], robust: bool) -> tuple[Parts, int]:
    """The better end of some steps from the parts, and of as many from the common coefficients, of each client; and how
    many took the second. Own fits end in poor optima; the common coefficients are those of most clients."""
    ends = [parts, Parts.of_common(commons, len(parts.w))]
    for _ in range(SECOND_STEPS):
        ends = [em_step(rows, end, commons, robust).parts for end in ends]
    first, second = (bound(rows, end, commons) for end in ends)
    better = second > first + 1e-6 * np.abs(first)
    chosen = [np.where(better.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(*ends, strict=True)]
    return Parts(*chosen), int(np.count_nonzero(better))


def round_sums(found: Step) -> np.ndarray:
    """(R, p p + p + 5) `regression.round_sums` of each component; the log-likelihood is that of `Step.fits`, in the
    first component."""
    sums = np.stack([regression.round_sums(own, one) for own, one in zip(found.own, found.found, strict=True)])
    sums[:, -2] = 0.0
    sums[0, -2] = found.fits.sum()
    return sums


def shares_of(found: Step) -> np.ndarray:
    """(C,) what a client counts, over its components."""
    t = np.stack([one.shares for one in found.found], axis=1)
    return (found.parts.w * t).sum(axis=1)


def personal(rows: Rows, parts: Parts, commons: Sequence[Common], robust: bool) -> tuple[Parts, Step]:
    """The end: one more step, in which a client that is far out takes a wider D; and the step without that."""
    last = em_step(rows, parts, commons, robust)
    if not robust:
        return last.parts, last
    wide = [
        regression.posteriors(own, common, robust, regression.widening(own, one))
        for own, one, common in zip(last.own, last.found, commons, strict=True)
    ]
    coefficients = np.stack([one.coefficients for one in wide], axis=1)
    covariances = np.stack([one.covariances for one in wide], axis=1)
    return Parts(last.parts.w, coefficients, covariances), last


# --- server -----------------------------------------------------------------------------------------------------------


def first_commons(theta: np.ndarray, variances: np.ndarray, squares: np.ndarray, mass: float) -> list[Common]:
    """The start, from aligned own fits: medians, and a D that is a multiple of the inputs' inverse mean squares.

    theta: (K, R, p); variances: (K,) of rows within components; squares: (p,) mean squares of the inputs; mass: rows of
    a client in a component, on average
    """
    p = theta.shape[2]
    noise = float(np.median(variances))
    smallest = max(regression.SMALLEST_NOISE * noise, float(np.finfo(float).tiny) ** 0.5)
    noise = max(noise, smallest)
    found = []
    for r in range(theta.shape[1]):
        mean = np.median(theta[:, r], axis=0)
        distance = float(np.median((theta[:, r] - mean) ** 2 @ squares)) / p
        wide = max(distance - START_NOISE * noise / mass, 0.1 * noise / mass)
        found.append(Common(mean, np.diag(wide / np.where(squares > 0, squares, 1.0)), noise, smallest))
    return found


def next_commons(commons: Sequence[Common], sums: np.ndarray, squares: np.ndarray) -> list[Common]:
    """m_r, D_r and s2 after a round. sums: of `round_sums`, over all clients; squares: as for `first_commons`."""
    p = len(squares)
    after = [regression.next_common(common, own) for common, own in zip(commons, sums, strict=True)]
    counted = sums[:, p * p + p + 2]
    noises, rows = sums[:, p * p + p].sum(), sums[:, p * p + p + 1].sum()
    noise = commons[0].noise
    if rows > 0:
        noise = max(float(noise * noises / rows), commons[0].smallest)
    if counted.sum() > 0:
        mean = np.einsum("r,rij->ij", counted, np.stack([c.between for c in after])) / counted.sum()
        after = [
            common._replace(between=pooled(common.between, mean, t, squares))
            for common, t in zip(after, counted, strict=True)
        ]
    return [common._replace(noise=noise) for common in after]


def pooled(between: np.ndarray, mean: np.ndarray, counted: float, squares: np.ndarray) -> np.ndarray:
    """(p, p) D_r pooled with the mean of all, and with a multiple of the inputs' inverse mean squares."""
    between = (counted * between + POOLED * mean) / (counted + POOLED)
    units = np.where(squares > 0, squares, 1.0)
    plain = np.diag(np.mean(np.diag(between) * units) / units)
    return ((counted + POOLED) * between + POOLED * plain) / (counted + 2.0 * POOLED)


TRIED = (True, False)  # whether weights are robust, of the fits of a trial
ADAPTED_STEPS = 30


# --- rounds: clients --------------------------------------------------------------------------------------------------


def client_update(
    config: MixedEffectsConfig, message: Message, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    if isinstance(message, StartMessage):
        return own_fits(config, message, block)
    return client_round(config, cast(MixtureMessage, message), block, memory)


def own_fits(config: MixedEffectsConfig, message: StartMessage, block: RowsBlock) -> tuple[Statistics, Memory]:
    """Fit a mixture for each client. Only the fits of the clients to be compared leave them.

    sizes:   (3,) clients with rows, rows, clients with a fit
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
    scores: of `regression.scores`, of the last fit; restarts: second starts that were taken."""
    rows, p = regression_rows(block, None, config.intercept), message.centres.shape[1]
    if message.number == 1:
        memory = _beginning(message, block, memory)
    every = rows
    if message.held:
        held = held_out(message.seed, robust_trial.HELD, block.first + np.arange(block.clients), np.diff(rows.ptr))
        rows, every = rows.where(~held), rows.where(held)
    judged: list[tuple[Rows, Parts, list[Common]]] = []
    found: list[Parts] = []
    sums, scores, restarts = [], [], 0
    for number, (fit, weights) in enumerate(zip(message.fits, message.robust, strict=True)):
        commons = [Common.of_row(row, p, message.smallest) for row in fit]
        parts = Parts(*(memory[name][:, number] for name in Parts._fields))
        if message.judged:
            judged.append((rows, parts, commons))
            continue
        if message.again:
            parts, again = second_start(rows, parts, commons, weights)
            restarts += again
        step = em_step(rows, parts, commons, weights)
        found.append(step.parts)
        sums.append(round_sums(step))
        scores.append(regression.scores(step.own, step.found))
    if message.judged:
        return {"gain": FloatSum.at(block.leaf, _gain_sums(judged, every))}, {n: memory[n] for n in ("theta", "shares")}
    parts_of = {name: np.stack([getattr(one, name) for one in found], axis=1) for name in Parts._fields}
    memory = memory | parts_of if message.held else parts_of  # own starts are done with after the trial
    sent = {"sums": np.stack(sums), "scores": scores[-1], "restarts": np.array([restarts])}
    return {name: FloatSum.at(block.leaf, part) for name, part in sent.items()}, memory


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
        own, _ = personal(rows, parts, commons, weights)
        densities.append(log_density(held, own, commons[0].noise))
    rows, parts, commons = found[0]
    shares = shares_of(em_step(rows, parts, commons, True))
    return np.array([shares @ (densities[0] - densities[1]), shares @ held.sizes])


def of_memory(config: MixedEffectsConfig, state: MixedEffectsState, rows: Rows, memory: Memory) -> tuple[Parts, Step]:
    """What clients of the run find in the end; see `personal`. Rows and result: model's units."""
    w, coefficients, covariances = (memory[name][:, 0] for name in Parts._fields)
    parts = Parts(w, coefficients / np.sqrt(state.noise), covariances / state.noise)
    return personal(rows, parts, in_model_units(state), robust(config, state))


def adapted(config: MixedEffectsConfig, state: MixedEffectsState, rows: Rows) -> Parts:
    """What clients find that have these rows and know the common coefficients. Rows and result: model's units."""
    commons, weights = in_model_units(state), robust(config, state)
    parts = Parts.of_common(commons, len(rows.sizes))
    for _ in range(ADAPTED_STEPS):
        parts = em_step(rows, parts, commons, weights).parts
    return personal(rows, parts, commons, weights)[0]


# --- rounds: server ---------------------------------------------------------------------------------------------------


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
    commons = first_commons(alignment.reordered(theta, orders), sent[:, 1], squares, mass)
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
        fits.append(np.stack([c.row() for c in next_commons(commons, sums, state.squares)]))
    state = replace(state, chains=np.stack(fits), trial_round=state.trial_round + 1, orders=state.orders[:0])
    return state, RoundInfo({})


def after_sums(
    config: MixedEffectsConfig, state: MixedEffectsState, result: Mapping[str, Any]
) -> tuple[MixedEffectsState, RoundInfo]:
    sums = np.asarray(result["sums"])[0]
    after = next_commons(commons_of(state), sums, state.squares)
    state = replace(state, orders=state.orders[:0])
    state, info = after_round(config, state, after, sums, np.asarray(result["scores"]))
    return state, RoundInfo({**info.scalars, "second_starts": float(result["restarts"][0])})
