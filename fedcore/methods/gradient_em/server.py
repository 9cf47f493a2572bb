"""The server's side: phases, alignment of the starts, the central update, the penalty's schedule, the end.

    moments   one pass, if rows are standardised by the columns' moments
    start     one pass: every client's own fit; the centres of some are aligned, and their spatial medians are v_0
    totals    one pass, tgmm only: the sum of all starts
    rounds    Algorithm 1, or a baseline's rounds (`fedcore.methods.gradient_em.baselines`)

Source: Tian, Weng, Feng 2024, Algorithm 1 and Appendices B, C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.gradient_em import alignment, baselines, central, shrinkage
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.frame import inward, outward
from fedcore.methods.gradient_em.leaf import COMPARED
from fedcore.methods.gradient_em.state import (
    Frame,
    GradientEMState,
    MomentsMessage,
    RoundMessage,
    StartMessage,
    TotalsMessage,
)
from fedcore.randomness import client_uniforms, stream
from fedcore.rounds.method import PublicFacts, RoundInfo

SHUFFLED_CLIENTS = 200  # up to which alignment = "auto" compares all pairs of clients
CURVATURE_EVERY = 20
FEWEST_ROUNDS = 5
GIVEN_SPREAD = 1.0  # before clients were heard, where common centres are given
NO_VARIANCE = 1e-12
SMALLEST_VARIANCE = 1e-6  # of a shared covariance, relative to its mean variance


# --- before the first round -----------------------------------------------------------------------------------------


def init(config: GradientEMConfig, public: PublicFacts) -> GradientEMState:
    """Raises ConfigError if the settings do not fit the columns, or a start is missing or of other shapes."""
    p = config.inputs(public.features)
    if p < 1:
        raise ConfigError("a regression needs an input or an intercept beside the response.")
    covariance = np.zeros((0, 0))
    try:
        if config.covariance == "known":
            covariance = config.known_covariance(public.features)
    except ValueError as error:
        raise ConfigError(f"{error}.", "Correct the setting 'known'.") from None
    if config.shared_covariance:
        covariance = np.eye(public.features if config.model == "gaussian" else 1)
    centres = np.zeros((0, p))
    if config.start == "given":
        if public.warm_start is None or "centres" not in public.warm_start:
            raise ConfigError(
                'start = "given" needs common centres to start from.',
                "Name a start: an earlier run, or a file with an array 'centres'.",
            )
        centres = np.asarray(public.warm_start["centres"], np.float64)
        if centres.shape != (config.components, p):
            raise ConfigError(
                f"'centres' of the start has shape {centres.shape}, and the run needs {(config.components, p)}."
            )
    phase = "moments" if config.standardise == "columns" else "start"
    return GradientEMState(
        phase,
        0,
        public.seed,
        public.clients or 0,
        covariance=covariance,
        centres=centres,
        orders=np.zeros((0, config.components), np.int32),
    )


def total_rounds(config: GradientEMConfig) -> int:
    before = 1 + (config.standardise == "columns") + (config.algorithm == "tgmm")
    return before + (1 if config.algorithm == "local-fit" else config.rounds)


def frame(state: GradientEMState) -> Frame:
    return Frame(state.mean, state.scale, state.covariance)


# --- messages -------------------------------------------------------------------------------------------------------


def message(config: GradientEMConfig, state: GradientEMState):
    if state.phase == "done":
        return None
    if state.phase == "moments":
        return MomentsMessage()
    if state.phase == "start":
        return StartMessage(frame(state), _compared(config, state), state.seed)
    if state.phase == "totals":
        return TotalsMessage(state.orders, state.centres, frame(state))
    number = state.round + 1
    pull, before = penalty(config, state, number), penalty_sent(config, state, number - 1)
    weights = weights_penalty(config, state)
    shrink = shrinkage_of_steps(config, number)
    return RoundMessage(
        number=number,
        seed=state.seed,
        centres=state.centres,
        weights=state.weights,
        variances=state.variances,
        pooled_covariance=state.pooled_covariance,
        prox=0.0 if number == 1 else before,
        penalty=pull * factor(config, number),
        weight_prox=0.0 if number == 1 else weights,
        weight_penalty=weights,
        orders=state.orders,
        frame=frame(state),
        threshold=config.participation,
        shrink=shrink,
        spread=state.spread,
        shrink_before=shrinkage_of_steps(config, max(number - 1, 1)),
        curvature=number % CURVATURE_EVERY == 1,
        totals=state.totals,
        sources=state.sources,
        covariate_means=state.covariate_means,
        covariate_covariance=state.covariate_covariance,
    )


def _compared(config, state) -> float:
    """A client's centres are compared if its uniform is at most this: all, or the smallest few."""
    if state.population <= config.aligned_clients:
        return 1.0
    uniforms = client_uniforms(state.seed, COMPARED, 0, 0, state.population)[:, 0]
    return float(np.partition(uniforms, config.aligned_clients - 1)[config.aligned_clients - 1])


def penalty(config, state, number: int) -> float:
    """lambda of round `number`, given that of the round before in the state."""
    p = state.centres.shape[1]
    return central.next_penalty(state.penalty, config.penalty_decay, config.penalty, p, state.clients)


def penalty_sent(config, state, number: int) -> float:
    """lambda of the last central update as the clients used it."""
    return state.penalty * (factor(config, number) if number > 0 else 1.0)


def weights_penalty(config, state) -> float:
    return config.weights_penalty * float(np.sqrt(config.components + np.log(max(state.clients, 1.0))))


def shrinkage_of_steps(config, number: int) -> float:
    """Steps with batches decrease."""
    return 1.0 if config.batch is None else 1.0 / (1.0 + (number - 1) / config.batch_decay)


def factor(config, number: int) -> float:
    """Of the penalty, so that the fixed point is that of one step of size C: (1 - (1 - C s)^E) / C for E steps of
    size C s."""
    size = config.step_size * shrinkage_of_steps(config, number)
    return (1.0 - (1.0 - size) ** config.local_steps) / config.step_size


# --- steps ----------------------------------------------------------------------------------------------------------


def server_update(config: GradientEMConfig, state: GradientEMState, result: Mapping):
    if state.phase == "moments":
        return _moments(state, result)
    if state.phase == "start":
        return _start(config, state, result)
    if state.phase == "totals":
        state = replace(
            state,
            phase="rounds",
            totals=np.asarray(result["totals"]),
            sources=float(result["sources"]),
            orders=state.orders[:0],
        )
        return state, RoundInfo({"sources": state.sources})
    if config.algorithm != "fedgrem":
        return baselines.server_update(config, state, result)
    return _round(config, state, result)


def _moments(state, result):
    count, total, squares = np.asarray(result["moments"])
    if not count[0]:
        raise PopulationError("no client of the population has any rows.", "Check what was ingested.")
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0.0)
    scale = np.where(variance > 1e-12 * (1.0 + mean**2), np.sqrt(variance), 1.0)
    if len(state.centres):  # given ones are in the units of the data
        state = replace(state, centres=(state.centres - mean) / scale)
    return replace(state, phase="start", mean=mean, scale=scale), RoundInfo({"rows": float(count[0])})


def _start(config, state, result):
    clients, rows, fitted = (float(value) for value in result["sizes"])
    if rows == 0:
        raise PopulationError("no client of the population has any rows.", "Check what was ingested.")
    state = replace(state, clients=clients, rows=rows, largest=int(result["largest"].score))
    info = {"clients": clients, "rows": rows, "fitted": fitted}
    if config.start == "local":
        sent = np.asarray(result["centres"])
        if not len(sent):
            raise PopulationError(
                f"no client has the rows to fit {config.components} components by itself.",
                'Ask for fewer components, or give common centres: start = "given".',
            )
        numbers = sent[:, 0].astype(np.int64)
        centres = sent[:, 1:].reshape(len(sent), config.components, -1)
        found = inward(config, frame(state), centres)
        orders = align(config, found, stream(state.seed, "gradient_em/alignment"))
        together = alignment.reordered(found, orders)
        common = central.spatial_median(together)
        info["spread"] = float(np.median(central.distances(together, common)))
        every = np.tile(np.arange(config.components, dtype=np.int32), (state.population, 1))
        every[numbers] = orders
        state = replace(
            state, centres=outward(config, frame(state), common), orders=every if len(sent) == fitted else state.orders
        )
        if config.shared_covariance:
            state = replace(state, covariance=_covariance(np.asarray(result["scatter"]), state.covariance))
        own = inward(config, frame(state), alignment.reordered(centres, orders))
        spread = shrinkage.first_spread(
            own, inward(config, frame(state), state.centres), rows / (clients * config.components)
        )
        state = baselines.begin(config, state, alignment.reordered(centres, orders))
    else:
        spread = np.full(config.components, GIVEN_SPREAD)
        state = baselines.begin(config, state, state.centres[None])
    uniform = np.full(config.components, 1.0 / config.components)
    if config.share_weights:
        state = replace(state, weights=uniform, weight_sums=np.zeros(config.components + 1))
    state = replace(
        state,
        phase="totals" if config.algorithm == "tgmm" else "rounds",
        penalty=config.first_penalty,
        sums=np.zeros((config.components, state.centres.shape[1] + 1)),
        spread=spread,
        spread_sums=np.zeros((config.components, 3)),
    )
    return state, RoundInfo(info)


def align(config: GradientEMConfig, centres: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(K, R) orders of centres (K, R, p) by the configured rule."""
    rule = config.alignment
    if rule == "auto":
        rule = "shuffles" if len(centres) <= SHUFFLED_CLIENTS else "centres"
    match rule:
        case "exhaustive":
            return alignment.exhaustive(centres)
        case "stepwise":
            return alignment.stepwise(centres)
        case "shuffles":
            return alignment.shuffled(centres, config.shuffles, generator)
        case "majority":
            return alignment.shuffled(centres, config.shuffles, generator, "majority")
        case _:
            return alignment.by_centres(centres, generator)


def _round(config, state, result):
    number = state.round + 1
    pull, v = penalty(config, state, number), inward(config, frame(state), state.centres)
    active, rows, fit, counted, apart, left_out, diverged, seconds = (float(value) for value in result["counts"])
    scalars = {} if config.estimated else {"penalty": pull}
    if config.central == "step":
        sums = np.asarray(result["centre"])
        if config.participation < 1 and number > 1:
            # About as many answers as all clients would give: the last ones, older ones fading
            sums = (1.0 - config.participation) * state.sums + sums
        new = central.moved_centre(v, sums)
        state = replace(state, sums=sums)
    else:
        sent = np.asarray(result["sent"])
        t, n = sent[:, :, :-1], sent[:, :, -1]
        if config.central == "exact":
            found = central.solve(t, n, pull * factor(config, number), v)
        else:
            found = central.authors_sweep(t, n, pull * factor(config, number))
        new = found.v
        scalars |= {"central_steps": float(found.steps), "central_gradient": found.gradient}
    if config.estimated:
        sums = np.asarray(result["spread"])
        if config.participation < 1 and number > 1:
            sums = (1.0 - config.participation) * state.spread_sums + sums
        smallest = shrinkage.SMALLEST_SPREAD * state.clients * config.components / state.rows
        spread = shrinkage.next_spread(state.spread, sums, config.pooling, smallest)
        state = replace(state, spread=spread, spread_sums=sums)
        scalars |= {"between_clients": float(np.sqrt(spread.mean())), "second_starts": seconds}
    if config.share_weights:
        sums = np.asarray(result["weights"])
        if config.participation < 1 and number > 1:
            sums = (1.0 - config.participation) * state.weight_sums + sums
        weights = central.moved_centre(state.weights[None], sums[None])[0]
        state = replace(state, weights=weights, weight_sums=sums)
    centres = outward(config, frame(state), new)
    centre_step = float(np.abs(centres - state.centres).max(initial=0.0))
    movement = max(float(result["movement"].score), 0.0)
    if config.shared_covariance and float(result["scatter"][-1]) > 0:
        state = replace(
            state, covariance=_covariance(np.asarray(result["scatter"]), state.covariance, frame(state), config)
        )
    state = replace(state, round=number, centres=centres, penalty=pull, orders=state.orders[:0])
    if number == config.rounds or ended(config, number, max(movement, centre_step)):
        state = replace(state, phase="done")
    return state, RoundInfo(
        {
            "movement": movement,
            "centre_step": centre_step,
            "log_likelihood": fit / max(rows, 1.0),
            "active_clients": active,
            "apart": apart / max(counted, 1.0),
            "left_out": left_out,
            "diverged": diverged,
            **scalars,
        }
    )


def ended(config: GradientEMConfig, number: int, change: float) -> bool:
    """Whether nothing moves any more. With batches or sampled clients all rounds are made."""
    before = max(FEWEST_ROUNDS, config.second_start + 1 if config.estimated else 0)
    return config.exact_rounds and number >= before and change < config.tolerance


def _covariance(
    scatter: np.ndarray, before: np.ndarray, own: Frame | None = None, config: GradientEMConfig | None = None
) -> np.ndarray:
    """The mean scatter, from the model's units if a frame is given; never quite singular."""
    size = len(before)
    mean = (scatter[:-1] / scatter[-1]).reshape(size, size)
    if own is not None:
        mean = outward(config, own, outward(config, own, mean).T)
    mean = 0.5 * (mean + mean.T)
    if not np.trace(mean) > size * NO_VARIANCE:
        return before  # rows that do not vary say nothing of it
    return mean + SMALLEST_VARIANCE * np.trace(mean) / size * np.eye(size)
