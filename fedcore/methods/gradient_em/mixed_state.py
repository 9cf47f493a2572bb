"""What the server's state holds of mixed-effects regressions: a `Common` for each component, and what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedcore.errors import PopulationError
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.mixed_effects import Common
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.rounds.method import RoundInfo

FEWEST_ROUNDS = 5


def robust(config: GradientEMConfig, state: GradientEMState) -> bool:
    """Whether clients that are far out count less."""
    return state.robust == 1 if config.robust == "auto" else config.robust


def commons_of(state: GradientEMState) -> list[Common]:
    """Units of the data."""
    noise = float(state.covariance[0, 0])
    return [Common(m, d, noise, state.smallest_noise) for m, d in zip(state.centres, state.between, strict=True)]


def in_model_units(state: GradientEMState) -> list[Common]:
    """The noise variance is 1 there."""
    noise = float(state.covariance[0, 0])
    return [Common(m / np.sqrt(noise), d / noise, 1.0, 0.0) for m, d in zip(state.centres, state.between, strict=True)]


def with_commons(state: GradientEMState, commons: Sequence[Common]) -> GradientEMState:
    """Raises PopulationError if numbers have grown out of the range of float64."""
    means, betweens = np.stack([c.mean for c in commons]), np.stack([c.between for c in commons])
    noise = np.array([[commons[0].noise]])
    if not all(np.isfinite(part).all() for part in (means, betweens, noise)):
        raise PopulationError(
            "squares of the rows are too large for float64, or too small.", "Divide the columns by their scale."
        )
    smallest = commons[0].smallest
    return replace(state, centres=means, between=betweens, covariance=noise, smallest_noise=smallest)


def after_round(
    config: GradientEMConfig, state: GradientEMState, after: Sequence[Common], sums: np.ndarray
) -> tuple[GradientEMState, RoundInfo]:
    """The state with what a round found, at its end, and what is shown of the round. sums: (R, p p + p + 5) of
    `mixed_effects.round_sums`."""
    before = commons_of(state)
    apart = float(sums[:, -1].max())
    state = replace(with_commons(state, after), round=state.round + 1, left_apart=apart)
    centre_step = max(float(np.abs(b.mean - a.mean).max(initial=0.0)) for a, b in zip(before, after, strict=True))
    scatter, scattered = (
        np.sqrt(np.maximum([np.diag(c.between) for c in commons], 0.0)) for commons in (after, before)
    )
    movement = max(centre_step, float(np.abs(scatter - scattered).max(initial=0.0)))
    first = config.second_start + 1 if config.components > 1 else 0
    still = state.round >= max(FEWEST_ROUNDS, first) and movement < config.tolerance
    if state.round == config.rounds or still:
        state = replace(state, phase="done")
    counted = float(sums[:, -4].sum())
    info = {
        "movement": movement,
        "centre_step": centre_step,
        "log_likelihood": float(sums[:, -2].sum()) / max(counted, 1.0),  # of the rows that count
        "active_clients": state.clients,
        "apart": apart / max(state.clients, 1.0),
        "between_clients": float(np.sqrt(np.mean(scatter**2) / after[0].noise)),
        "noise": float(np.sqrt(after[0].noise)),
    }
    return state, RoundInfo(info)
