"""Mixed-effects regressions as rounds of the method: what `fedcore.methods.mixed_effects.regression` computes, between
messages, memories and states.

    start    one pass: every client keeps the square system of its rows; own fits of some clients are compared
    trial    whether weights are robust (`robust_trial`), if that is to be found out
    rounds   sums of all clients, and the next mean, covariance and noise, extrapolated (`extrapolation`)

A client's memory is its system: root (C, p, p), target (C, p), rss (C,), n (C,); until the end of a trial also those
without each fold of its rows. The rows themselves are not looked at after the start. Units are those of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.mixed_effects import regression, robust_trial
from fedcore.methods.mixed_effects.config import MixedEffectsConfig
from fedcore.methods.mixed_effects.regression import Common, Posteriors, Systems, Trail
from fedcore.methods.mixed_effects.state import (
    Message,
    MixedEffectsState,
    RegressionMessage,
    StartMessage,
    TrialMessage,
    after_round,
    commons_of,
    in_model_units,
    robust,
    with_commons,
)
from fedcore.methods.mixture_models.local_fits import compared
from fedcore.methods.mixture_models.local_steps import Rows, regression_rows
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory, RoundInfo
from fedcore.rounds.statistics import ArgMax, FloatSum, Stack, Statistics

# --- clients ----------------------------------------------------------------------------------------------------------


def client_update(
    config: MixedEffectsConfig, message: Message, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    if isinstance(message, StartMessage):
        return own_fits(config, message, block)
    if isinstance(message, TrialMessage):
        return trial_round(message, block, memory)
    return client_round(cast(RegressionMessage, message), block, memory)


def own_fits(config: MixedEffectsConfig, message: StartMessage, block: RowsBlock) -> tuple[Statistics, Memory]:
    """The clients' systems, of which own fits of the clients that are compared leave them.

    sizes:   (2,) clients with rows, rows
    largest: the client with the most rows
    fits:    (c, p + 1) coefficients and residual variance of the chosen clients, NaN where there is none
    moments: (p + 3,) of `regression.OwnFits`
    """
    rows = regression_rows(block, None, config.intercept)
    own = regression.systems(rows)
    tried = robust_trial.systems_without_folds(rows, message.seed, block.first) if config.robust == "auto" else {}
    fits = regression.own_fits(own)
    chosen = (own.n > 0) & compared(message.seed, message.compared, block.first, block.clients)
    sent = np.column_stack([fits.coefficients[chosen], fits.variances[chosen]])
    most = int(np.argmax(own.n)) if len(own.n) else 0
    return {
        "sizes": FloatSum.at(block.leaf, [np.count_nonzero(own.n), own.n.sum()]),
        "largest": ArgMax(float(own.n[most]), block.first + most, {}),
        "fits": Stack({block.first: sent}),
        "moments": FloatSum.at(block.leaf, fits.sums),
    }, own._asdict() | tried


def trial_round(message: TrialMessage, block: RowsBlock, memory: Memory) -> tuple[Statistics, Memory]:
    """sums: of `robust_trial.trial_sums`; or gain: of `robust_trial.gain_sums`, after which clients keep their systems
    alone."""
    if not message.judged:
        sums = robust_trial.trial_sums(memory, message.chains, message.smallest)
        return {"sums": FloatSum.at(block.leaf, sums)}, memory
    gain = robust_trial.gain_sums(memory, message.chains, message.smallest)
    return {"gain": FloatSum.at(block.leaf, gain)}, {name: memory[name] for name in Systems._fields}


def client_round(message: RegressionMessage, block: RowsBlock, memory: Memory) -> tuple[Statistics, Memory]:
    """sums: of `regression.round_sums`; scores: of `regression.scores`."""
    own = Systems(**memory)
    common = Common(message.mean, message.between, message.noise, message.smallest)
    found = regression.posteriors(own, common, message.robust)
    parts = {"sums": regression.round_sums(own, found), "scores": regression.scores([own], [found])}
    return {name: FloatSum.at(block.leaf, part) for name, part in parts.items()}, memory


def of_clients(config: MixedEffectsConfig, state: MixedEffectsState, rows: Rows) -> tuple[Systems, Posteriors]:
    """What clients find in the end, that have these rows. Rows and result are in the model's units."""
    own = regression.systems(rows)
    return own, regression.personal(own, in_model_units(state)[0], robust(config, state))


# --- server -----------------------------------------------------------------------------------------------------------


def message(config: MixedEffectsConfig, state: MixedEffectsState) -> RegressionMessage | TrialMessage:
    if state.phase == "trial":
        judged = state.trial_round == robust_trial.TRIAL_ROUNDS
        return TrialMessage(state.chains, state.smallest_noise, judged)
    (common,) = commons_of(state)
    return RegressionMessage(common.mean, common.between, common.noise, common.smallest, robust(config, state))


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
    """The state at the beginning of round 1."""
    clients, rows = (float(value) for value in result["sizes"])
    fits = np.asarray(result["fits"])
    if rows == 0:
        raise PopulationError("no client of the population has any rows.", "Check what was ingested.")
    if not len(fits):
        raise PopulationError(
            "none of the clients whose own fits are compared has rows.", "Leave out clients without rows."
        )
    common = regression.first_common(fits[:, :-1], fits[:, -1], np.asarray(result["moments"]))
    state = replace(state, phase="rounds", clients=clients, rows=rows, largest=int(result["largest"].score))
    info = {"clients": clients, "rows": rows, "fitted": float(np.isfinite(fits[:, -1]).sum())}
    state = with_commons(state, [common])
    if config.robust == "auto":
        state = replace(state, phase="trial", chains=np.tile(common.row(), (2 * robust_trial.FOLDS, 1)))
    return state, RoundInfo(info)


def after_trial(state: MixedEffectsState, result: Mapping[str, Any]) -> tuple[MixedEffectsState, RoundInfo]:
    """The next fits of the trial; or, when they were judged, the state at the beginning of round 1."""
    if "gain" in result:
        weights, gain = robust_trial.chosen(np.asarray(result["gain"]))
        state = replace(state, phase="rounds", robust=int(weights), gain=gain, chains=state.chains[:0])
        return state, RoundInfo({"robust": float(weights), "gain": gain})
    p = state.centres.shape[1]
    chains = robust_trial.next_chains(state.chains, np.asarray(result["sums"]), p, state.smallest_noise)
    return replace(state, chains=chains, trial_round=state.trial_round + 1), RoundInfo({})


def after_sums(
    config: MixedEffectsConfig, state: MixedEffectsState, result: Mapping[str, Any]
) -> tuple[MixedEffectsState, RoundInfo]:
    sums, (before,) = np.asarray(result["sums"]), commons_of(state)
    after = regression.next_common(before, sums)
    trail = Trail(state.points, state.safe, state.last_step, state.last_fit, state.longest)
    start, trail = regression.next_point(trail, before, after, float(sums[-2]), likelihood=not robust(config, state))
    state, info = after_round(config, state, [after], sums[None], np.asarray(result["scores"]))
    if state.phase != "done":
        points, safe, step, fit, longest = trail
        state = with_commons(state, [start])
        state = replace(state, points=points, safe=safe, last_step=step, last_fit=fit, longest=longest)
    return state, info
