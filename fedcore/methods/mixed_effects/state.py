"""What the server sends to the clients, and its state, with a `Common` for each component. Frozen values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.mixed_effects.config import MixedEffectsConfig
from fedcore.methods.mixed_effects.regression import Common
from fedcore.rounds.method import RoundInfo


@dataclass(frozen=True, slots=True)
class StartMessage:
    """Asks every client for its own fit, of which some clients send theirs.

    compared: a client sends its fit if its uniform number is at most this
    """

    compared: float
    seed: int


@dataclass(frozen=True, slots=True)
class TrialMessage:
    """One round of the trial of robust weights (`fedcore.methods.mixed_effects.robust_trial`).

    chains: (10, p + p p + 1); judged: whether clients judge the fits, instead of continuing them
    """

    chains: np.ndarray
    smallest: float
    judged: bool


@dataclass(frozen=True, slots=True)
class RegressionMessage:
    """One round of one component: `fedcore.methods.mixed_effects.regression.Common`, units of the data.

    mean: (p,); between: (p, p); noise, smallest: of the noise variance; robust: whether weights are
    """

    mean: np.ndarray
    between: np.ndarray
    noise: float
    smallest: float
    robust: bool


@dataclass(frozen=True, slots=True)
class MixtureMessage:
    """One round of several components (`fedcore.methods.mixed_effects.mixture_rounds`), of F fits.

    number:  from 1, in the trial and again after it
    fits:    (F, R, p + p p + 1); robust: of each fit
    held:    whether rows that clients hold out are left out; judged: whether the fits are judged by them
    again:   whether clients also start from the common coefficients
    orders:  (K, R) int32 order of every client's components, in round 1 if all starts were compared; else (0, R)
    centres: (R, p) the common coefficients
    """

    number: int
    seed: int
    fits: np.ndarray
    smallest: float
    robust: tuple[bool, ...]
    held: bool
    judged: bool
    again: bool
    orders: np.ndarray
    centres: np.ndarray


Message = StartMessage | TrialMessage | RegressionMessage | MixtureMessage


# --- state ------------------------------------------------------------------------------------------------------------


FEWEST_ROUNDS = 5


def _zeros(*shape: int) -> Any:  # a field, which type checkers take for its value
    return field(default_factory=lambda: np.zeros(shape))


@dataclass(frozen=True, slots=True)
class MixedEffectsState:
    """State after a round, units of the data. R: components; p: coefficients; K: clients of the population.

    phase:      "start", "trial", "rounds", "done"
    round:      rounds that are finished, without start and trial
    seed:       of the streams of simulation randomness
    population: K
    clients, rows, largest: clients that have rows, their rows, rows of the largest client
    centres:    (R, p) the common coefficients; (0, p) before there are any
    between:    (R, p, p) covariances of the clients' coefficients
    noise, smallest_noise: noise variance, and the least that it can be
    squares:    (p,) mean squares of the inputs, of several components; else (0,)
    orders:     (K, R) order of the components of every client's start, until round 1 has used it; (0, R) if clients
                align themselves to the common coefficients
    left_apart: clients that did not count in the last round
    scores:     (2, 320) of `apart.counts_of_largest` in the last round, of coefficients and of noise; (2, 0) before
    moved:      by how much the last round moved the common coefficients, in their standard errors if clients knew their
                own: the most of a component, root mean square over its coefficients
    fit, change: log-likelihood before the last round, nats a row; less that of the round before, None in round 1
    chains:     fits of the trial of robust weights; (0, 0) when there is none
    trial_round: rounds of the trial that are finished
    robust:     1 or 0, whether the trial chose robust weights; -1 without one
    gain:       of robust weights in the trial, nats a held-out row
    points, safe, last_step, last_fit, longest: `extrapolation.Trail`
    """

    phase: str
    round: int
    seed: int
    population: int
    clients: float = 0.0
    rows: float = 0.0
    largest: int = 0
    centres: np.ndarray = _zeros(0, 0)
    between: np.ndarray = _zeros(0, 0, 0)
    noise: float = 0.0
    smallest_noise: float = 0.0
    squares: np.ndarray = _zeros(0)
    orders: np.ndarray = _zeros(0, 0)
    left_apart: float = 0.0
    scores: np.ndarray = _zeros(2, 0)
    moved: float = 0.0
    fit: float = 0.0
    change: float | None = None
    chains: np.ndarray = _zeros(0, 0)
    trial_round: int = 0
    robust: int = -1
    gain: float = 0.0
    points: np.ndarray = _zeros(0, 0)
    safe: np.ndarray = _zeros(0, 0)
    last_step: float = 0.0
    last_fit: float = 0.0
    longest: float = 4.0


def robust(config: MixedEffectsConfig, state: MixedEffectsState) -> bool:
    """Whether clients that are far out count less."""
    return state.robust == 1 if config.robust == "auto" else config.robust


def commons_of(state: MixedEffectsState) -> list[Common]:
    """Units of the data."""
    return [Common(m, d, state.noise, state.smallest_noise) for m, d in zip(state.centres, state.between, strict=True)]


def in_model_units(state: MixedEffectsState) -> list[Common]:
    """The noise variance is 1 there."""
    return [
        Common(m / np.sqrt(state.noise), d / state.noise, 1.0, 0.0)
        for m, d in zip(state.centres, state.between, strict=True)
    ]


def with_commons(state: MixedEffectsState, commons: Sequence[Common]) -> MixedEffectsState:
    """Raises PopulationError if numbers have grown out of the range of float64."""
    means, betweens = np.stack([c.mean for c in commons]), np.stack([c.between for c in commons])
    noise = commons[0].noise
    if not all(np.isfinite(part).all() for part in (means, betweens, noise)):
        raise PopulationError(
            "squares of the rows are too large for float64, or too small.", "Divide the columns by their scale."
        )
    smallest = commons[0].smallest
    return replace(state, centres=means, between=betweens, noise=noise, smallest_noise=smallest)


def after_round(
    config: MixedEffectsConfig, state: MixedEffectsState, after: Sequence[Common], sums: np.ndarray, scores: np.ndarray
) -> tuple[MixedEffectsState, RoundInfo]:
    """The state with what a round found, at its end, and what is shown of the round. sums: (R, p p + p + 5) of
    `regression.round_sums`; scores: as in the state."""
    before, p = commons_of(state), state.centres.shape[1]
    apart, counted = float(sums[:, -1].max()), float(sums[:, -4].sum())
    fit = float(sums[:, -2].sum()) / max(counted, 1.0)  # of the rows that count
    steps = np.sqrt((sums[:, p * p : p * p + p] ** 2).mean(axis=1) / np.maximum(sums[:, -3], 1.0))
    state = replace(
        with_commons(state, after),
        round=state.round + 1,
        left_apart=apart,
        scores=scores,
        moved=float(steps.max()),
        fit=fit,
        change=fit - state.fit if state.round else None,
    )
    centre_step = max(float(np.abs(b.mean - a.mean).max(initial=0.0)) for a, b in zip(before, after, strict=True))
    scatter, scattered = (
        np.sqrt(np.maximum([np.diag(c.between) for c in commons], 0.0)) for commons in (after, before)
    )
    movement = max(centre_step, float(np.abs(scatter - scattered).max(initial=0.0)))
    first = config.second_start + 1 if config.components > 1 else 0
    still = state.round >= max(FEWEST_ROUNDS, first) and movement < config.tolerance
    if state.round == config.rounds or still:
        state = replace(state, phase="done")
    info = {
        "movement": movement,
        "centre_step": centre_step,
        "log_likelihood": fit,
        "active_clients": state.clients,
        "apart": apart / max(state.clients, 1.0),
        "between_clients": float(np.sqrt(np.mean(scatter**2) / after[0].noise)),
        "noise": float(np.sqrt(after[0].noise)),
    }
    return state, RoundInfo(info)
