"""Mixed-effects regressions as rounds of the method: what `fedcore.methods.gradient_em.mixed_effects` computes, between
messages, memories and states.

    start    one pass: every client keeps the square system of its rows; own fits of some clients are compared
    trial    whether weights are robust (`mixed_trial`), if that is to be found out
    rounds   sums of all clients, and the next mean, covariance and noise, extrapolated (`extrapolation`)

A client's memory is its system: root (C, p, p), target (C, p), rss (C,), n (C,); until the end of a trial also those
without each fold of its rows. The rows themselves are not looked at after the start. Units are those of the data; the
noise variance is the state's `covariance`, so that the model's units are what they are for other regressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.gradient_em import extrapolation, mixed_effects, mixed_trial
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import rows_of
from fedcore.methods.gradient_em.extrapolation import Trail
from fedcore.methods.gradient_em.local_steps import Rows
from fedcore.methods.gradient_em.messages import MixedMessage, StartMessage, TrialMessage
from fedcore.methods.gradient_em.mixed_effects import Common, Posteriors, Systems
from fedcore.methods.gradient_em.mixed_state import after_round, commons_of, in_model_units, robust, with_commons
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import client_uniforms
from fedcore.rounds.method import Memory, RoundInfo
from fedcore.rounds.statistics import ArgMax, FloatSum, Stack, Statistics

# --- clients ----------------------------------------------------------------------------------------------------------


def own_fits(
    config: GradientEMConfig, message: StartMessage, block: RowsBlock, compared: str
) -> tuple[Statistics, Memory]:
    """The clients' systems, of which own fits of the clients that are compared leave them.

    compared: name of the stream that chooses them
    sizes:   (2,) clients with rows, rows
    largest: the client with the most rows
    fits:    (c, p + 1) coefficients and residual variance of the chosen clients, NaN where there is none
    moments: (p + 3,) of `mixed_effects.OwnFits`
    """
    rows = rows_of(config, message.coordinates, block)
    own = mixed_effects.systems(rows)
    tried = mixed_trial.systems_without_folds(rows, message.seed, block.first) if config.robust == "auto" else {}
    fits = mixed_effects.own_fits(own)
    uniforms = client_uniforms(message.seed, compared, 0, block.first, block.clients)[:, 0]
    chosen = (own.n > 0) & (uniforms <= message.compared)
    sent = np.column_stack([fits.coefficients[chosen], fits.variances[chosen]])
    most = int(np.argmax(own.n)) if len(own.n) else 0
    return {
        "sizes": FloatSum.at(block.leaf, [np.count_nonzero(own.n), own.n.sum()]),
        "largest": ArgMax(float(own.n[most]), block.first + most, {}),
        "fits": Stack({block.first: sent}),
        "moments": FloatSum.at(block.leaf, fits.sums),
    }, own._asdict() | tried


def trial_round(message: TrialMessage, block: RowsBlock, memory: Memory) -> tuple[Statistics, Memory]:
    """sums: of `mixed_trial.trial_sums`; or gain: of `mixed_trial.gain_sums`, after which clients keep their systems
    alone."""
    if not message.judged:
        sums = mixed_trial.trial_sums(memory, message.chains, message.smallest)
        return {"sums": FloatSum.at(block.leaf, sums)}, memory
    gain = mixed_trial.gain_sums(memory, message.chains, message.smallest)
    return {"gain": FloatSum.at(block.leaf, gain)}, {name: memory[name] for name in Systems._fields}


def client_round(message: MixedMessage, block: RowsBlock, memory: Memory) -> tuple[Statistics, Memory]:
    """sums: of `mixed_effects.round_sums`."""
    own = Systems(**memory)
    common = Common(message.mean, message.between, message.noise, message.smallest)
    found = mixed_effects.posteriors(own, common, message.robust)
    return {"sums": FloatSum.at(block.leaf, mixed_effects.round_sums(own, found))}, memory


def of_clients(config: GradientEMConfig, state: GradientEMState, rows: Rows) -> Posteriors:
    """What clients find in the end, that have these rows. Rows and result are in the model's units."""
    return mixed_effects.personal(mixed_effects.systems(rows), in_model_units(state)[0], robust(config, state))


# --- server -----------------------------------------------------------------------------------------------------------


def message(config: GradientEMConfig, state: GradientEMState) -> MixedMessage | TrialMessage:
    if state.phase == "trial":
        judged = state.trial_round == mixed_trial.TRIAL_ROUNDS
        return TrialMessage(state.chains, state.smallest_noise, judged)
    (common,) = commons_of(state)
    return MixedMessage(common.mean, common.between, common.noise, common.smallest, robust(config, state))


def after_start(
    config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any]
) -> tuple[GradientEMState, RoundInfo]:
    """The state at the beginning of round 1."""
    clients, rows = (float(value) for value in result["sizes"])
    fits = np.asarray(result["fits"])
    if rows == 0:
        raise PopulationError("no client of the population has any rows.", "Check what was ingested.")
    if not len(fits):
        raise PopulationError(
            "none of the clients whose own fits are compared has rows.", "Raise the setting 'aligned_clients'."
        )
    common = mixed_effects.first_common(fits[:, :-1], fits[:, -1], np.asarray(result["moments"]))
    state = replace(state, phase="rounds", clients=clients, rows=rows, largest=int(result["largest"].score))
    info = {"clients": clients, "rows": rows, "fitted": float(np.isfinite(fits[:, -1]).sum())}
    state = with_commons(state, [common])
    if config.robust == "auto":
        state = replace(state, phase="trial", chains=mixed_trial.first_chains(common))
    return state, RoundInfo(info)


def after_trial(state: GradientEMState, result: Mapping[str, Any]) -> tuple[GradientEMState, RoundInfo]:
    """The next fits of the trial; or, when they were judged, the state at the beginning of round 1."""
    if "gain" in result:
        weights, gain = mixed_trial.chosen(np.asarray(result["gain"]))
        state = replace(state, phase="rounds", robust=int(weights), gain=gain, chains=state.chains[:0])
        return state, RoundInfo({"robust": float(weights), "gain": gain})
    p = state.centres.shape[1]
    chains = mixed_trial.next_chains(state.chains, np.asarray(result["sums"]), p, state.smallest_noise)
    return replace(state, chains=chains, trial_round=state.trial_round + 1), RoundInfo({})


def server_update(
    config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any]
) -> tuple[GradientEMState, RoundInfo]:
    sums, (before,) = np.asarray(result["sums"]), commons_of(state)
    after = mixed_effects.next_common(before, sums)
    trail = Trail(state.points, state.safe, state.last_step, state.last_fit, state.longest)
    start, trail = extrapolation.next_point(trail, before, after, float(sums[-2]), likelihood=not robust(config, state))
    state, info = after_round(config, state, [after], sums[None])
    if state.phase != "done":
        points, safe, step, fit, longest = trail
        state = with_commons(state, [start])
        state = replace(state, points=points, safe=safe, last_step=step, last_fit=fit, longest=longest)
    return state, info
