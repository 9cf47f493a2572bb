"""The server's side of FedGrEM: the messages of the phases, the central update of Algorithm 1, its schedule, the end.

    moments, start, candidates   before round 1; see `fedcore.methods.gradient_em.start` and `candidates`
    rounds                       Algorithm 1
    done

Source: Tian, Weng, Feng 2024, Algorithm 1 and Section 4 (schedule).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.methods.gradient_em import shrinkage, start
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import (
    coordinates_of,
    covariance_of,
    covariances_of,
    log_volume,
    to_model,
    to_standardised,
)
from fedcore.methods.gradient_em.messages import Message, MomentsMessage, RoundMessage
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.methods.mixture_models.spatial_median import moved_centre
from fedcore.rounds.method import RoundInfo

CURVATURE_EVERY = 20  # rounds after which the caps of regression steps are computed again


def total_rounds(config: GradientEMConfig) -> int:
    before = 1 + (config.standardise == "columns")
    if config.covariance == "components" and config.start == "local":
        before += start.CANDIDATE_ROUNDS + 1
    return before + config.rounds


def message(config: GradientEMConfig, state: GradientEMState) -> Message | None:
    match state.phase:
        case "done":
            return None
        case "moments":
            return MomentsMessage()
        case "start":
            return start.start_message(config, state)
        case "candidates":
            return start.message(state)
    number = state.round + 1
    return RoundMessage(
        number=number,
        seed=state.seed,
        coordinates=coordinates_of(state),
        centres=state.centres,
        penalty=next_lambda(config, state),
        last_penalty=0.0 if number == 1 else state.penalty,
        between=state.spread,
        orders=state.orders,
        participation=config.participation,
        curvature=number % CURVATURE_EVERY == 1,
    )


def server_update(
    config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any]
) -> tuple[GradientEMState, RoundInfo]:
    match state.phase:
        case "moments":
            return start.after_moments(state, result)
        case "start":
            return start.after_start(config, state, result)
        case "candidates":
            return start.server_update(config, state, result)
    return gradient_round(config, state, result)


Move = Callable[
    [GradientEMConfig, GradientEMState, Mapping[str, Any], np.ndarray],
    tuple[np.ndarray, GradientEMState, dict[str, float]],
]

# --- a round of Algorithm 1 -------------------------------------------------------------------------------------------


def gradient_round(
    config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any], move: Move | None = None
) -> tuple[GradientEMState, RoundInfo]:
    """The server's part of round t: lambda[t], and the robust common centres of what the clients sent.

    move: the next centres, None: `reweighted`. The other half of the central update, theta^(k)[t] from the estimate
    and the centres, is the clients', at the beginning of their next round.
    """
    coordinates, before = coordinates_of(state), state
    state = replace(state, round=state.round + 1, penalty=next_lambda(config, state), orders=state.orders[:0])
    v_before = to_model(config, coordinates, state.centres)
    v, state, moved = (move or reweighted)(config, state, result, v_before)
    steps = np.sqrt(np.mean((v - v_before) ** 2, axis=1) * state.sums[:, -1])  # the variance of v is 1 / the second sum
    state = replace(state, centres=to_standardised(config, coordinates, v), moved=float(steps.max()))
    state = shared_covariance(config, state, result)

    centre_step = float(np.abs(state.centres - before.centres).max(initial=0.0))
    movement = max(float(result["movement"].score), 0.0)
    if state.round == config.rounds or ended(config, state.round, max(movement, centre_step)):
        state = replace(state, phase="done")
    active, rows, fit, counted, beyond, left_out, diverged, _ = (float(value) for value in result["counts"])
    fit /= max(rows, 1.0)
    standardised = fit - log_volume(coordinates)
    state = replace(state, fit=standardised, change=standardised - before.fit if before.round else None)
    info = {
        "movement": movement,
        "centre_step": centre_step,
        "log_likelihood": fit,
        "active_clients": active,
        "apart": beyond / max(counted, 1.0),
        "left_out": left_out,
        "diverged": diverged,
    }
    return state, RoundInfo(info | moved)


def reweighted(
    config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any], v: np.ndarray
) -> tuple[np.ndarray, GradientEMState, dict[str, float]]:
    """(R, p) the next centres, model's units, by one reweighting step from the centres before, v; the state with the
    sums they are made of and the next variance between clients; and metrics: the root of its mean over the components.
    """
    sums = _over_rounds(config, state, np.asarray(result["centre"]), state.sums)
    spread_sums = _over_rounds(config, state, np.asarray(result["spread"]), state.spread_sums)
    smallest = shrinkage.SMALLEST_VARIANCE * state.clients * config.components / state.rows
    variance = shrinkage.next_variance(state.spread, spread_sums, smallest)
    info = {"between_clients": float(np.sqrt(variance.mean())), "second_starts": float(result["counts"][-1])}
    scores = _over_rounds(config, state, np.asarray(result["scores"]), state.scores)
    state = replace(state, sums=sums, spread=variance, spread_sums=spread_sums, scores=scores)
    return moved_centre(v, sums), state, info


def next_lambda(config: GradientEMConfig, state: GradientEMState) -> float:
    """lambda of the next round, from that of the last."""
    p, by = state.centres.shape[1], config.variant
    return next_penalty(state.penalty, by.penalty_decay, by.penalty, p, state.clients)


def next_penalty(penalty: float, decay: float, constant: float, p: int, clients: float) -> float:
    """kappa0 lambda + C sqrt(p + ln K), K >= 1."""
    return decay * penalty + constant * float(np.sqrt(p + np.log(max(clients, 1.0))))


def ended(config: GradientEMConfig, number: int, change: float) -> bool:
    """Whether nothing moves any more. With sampled clients all rounds are made."""
    return config.exact_rounds and number >= config.fewest_rounds and change < config.tolerance


# --- what is not in the paper's round ---------------------------------------------------------------------------------


def shared_covariance(config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any]) -> GradientEMState:
    """The next covariance within components, if it is estimated."""
    if not config.shared_covariance or not np.asarray(result["scatter"])[..., -1].sum() > 0:
        return state
    scatter = np.asarray(result["scatter"])
    if config.covariance == "components":
        return replace(state, covariance=covariances_of(coordinates_of(state), scatter))
    return replace(state, covariance=covariance_of(config, coordinates_of(state), scatter))


def _over_rounds(config: GradientEMConfig, state: GradientEMState, sums: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Sums of the clients; if they are sampled, of about as many answers as all clients would give: the last ones,
    older ones fading. state: after the round."""
    if config.participation < 1 and state.round > 1:
        return (1.0 - config.participation) * before + sums
    return sums
