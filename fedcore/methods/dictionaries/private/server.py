"""The server of a private run: atoms from released sums, and from nothing else.

    scale     -> tau, the typical mean energy of a client's rows
    moments   -> first atoms: eigenvectors that stand out of the noise, and draws from what was found
    sums      -> a_j + g_j G_j / h_j, scaled to norm 1; g_j falls with the noise and towards the last round

Everything here is post-processing: docs/privacy/dictionaries.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.private.clients import (
    CELL_BOUND,
    ENERGIES,
    ENERGY_BOUND,
    ENERGY_CLIP,
    NORMS,
    STEP_BOUND,
    MomentsMessage,
    PrivateMessage,
    PrivateSumsMessage,
    ScaleMessage,
    unpacked,
)
from fedcore.methods.dictionaries.private.plan import MOMENTS, SCALE, nominal, plan, release_name, shape_of
from fedcore.methods.dictionaries.start import RELEASED, given_atoms, rounds_of, sparsity_of
from fedcore.methods.dictionaries.state import DictionariesState
from fedcore.methods.dictionary_learning.distances import d12
from fedcore.methods.dictionary_learning.operators import normalise
from fedcore.privacy.grid import GRID_NORM
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts, RoundInfo

FIRST_CLIP = 0.1  # of a client's steps, in units of the typical energy
QUANTILE = 0.25  # of clients' norms: the clip of later rounds
FADING = 0.5  # of energies and ladders, from round to round
LEAST_ENERGY = 0.02  # of the mean energy of atoms
LARGEST_STEP = 1.0  # length of an atom's step
STEP, STEP_OF_SERIES = 1.6, 0.4  # shares of a full step, without noise; where the clients have made the atoms before
SLOWER = 4.0  # how much noise shortens a step


def init(config: DictionariesConfig, public: PublicFacts) -> DictionariesState:
    """Raises ConfigError as `plan` does, and for given atoms of another shape."""
    planned = plan(config, public)
    common = given_atoms(config, public)
    return DictionariesState(
        SCALE,
        0,
        public.seed,
        public.features,
        0,
        clients=float(nominal(public)),
        common=common,
        scales=np.array([release.scale for release in planned]),
        step=STEP_OF_SERIES if RELEASED in (public.warm_start or {}) else STEP,
        energies=np.zeros(shape_of(config, public)[0]),
        ladder=np.zeros(NORMS.cells),
    )


def total_rounds(config: DictionariesConfig, state: DictionariesState) -> int:
    """One for each release."""
    return len(state.scales)


def message(config: DictionariesConfig, state: DictionariesState) -> PrivateMessage | None:
    match state.phase:
        case "done":
            return None
        case "scale":
            return ScaleMessage(SCALE)
        case "moments":
            return MomentsMessage(MOMENTS, state.scale)
    return PrivateSumsMessage(
        release_name(state.round + 1), state.common, sparsity_of(config, state.features), state.scale, state.clip
    )


def server_update(
    config: DictionariesConfig, state: DictionariesState, published: Mapping[str, np.ndarray]
) -> tuple[DictionariesState, RoundInfo]:
    """published: the round's noisy array of whole numbers, by planned name."""
    match state.phase:
        case "scale":
            return _after_scale(config, state, published[SCALE])
        case "moments":
            return _after_moments(config, state, published[MOMENTS])
    return _after_sums(config, state, published[release_name(state.round + 1)])


def _after_scale(
    config: DictionariesConfig, state: DictionariesState, counts: np.ndarray
) -> tuple[DictionariesState, RoundInfo]:
    scale = ENERGIES.quantile(counts / GRID_NORM, 0.5)
    phase = "rounds" if len(state.common) else MOMENTS
    return replace(state, phase=phase, scale=scale, clip=FIRST_CLIP * scale), RoundInfo({"scale": scale})


def _after_moments(
    config: DictionariesConfig, state: DictionariesState, grid: np.ndarray
) -> tuple[DictionariesState, RoundInfo]:
    unit = state.scale / GRID_NORM / state.clients
    values, vectors = found(unpacked(grid * unit, state.features), float(state.scales[1]) * unit)
    common = first_atoms(values, vectors, len(state.energies), stream(state.seed, "dictionaries/private"))
    return replace(state, phase="rounds", common=common), RoundInfo({"found": float(np.count_nonzero(values))})


def found(moments: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """(d,) eigenvalues, decreasing, 0 for what noise alone could be, and (d, d) eigenvectors in rows, each with its
    largest entry positive. noise: its standard deviation on the diagonal.

    The noise is of the Gaussian orthogonal ensemble, with eigenvalues up to R = noise sqrt(2 d); those beyond become
    sqrt(w^2 - R^2), which is best in Frobenius norm (Donoho, Gavish, Johnstone 2018, for this ensemble).
    """
    values, vectors = np.linalg.eigh(moments)
    values, vectors = values[::-1], vectors[:, ::-1].T
    edge = noise * math.sqrt(2 * len(values))
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1)[:, None], 1)
    vectors = vectors * np.where(largest < 0, -1.0, 1.0)
    return np.where(values > edge, np.sqrt(np.maximum(values**2 - edge**2, 0.0)), 0.0), vectors


def first_atoms(values: np.ndarray, vectors: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """(count, d): the eigenvectors that were found, the first one at least, then draws from the normal distribution
    with that covariance."""
    kept = min(count, max(int(np.count_nonzero(values)), 1))
    spread = np.sqrt(values) if values.any() else np.eye(len(values))[0]
    drawn = (generator.standard_normal((count - kept, len(values))) * spread) @ vectors
    return normalise(np.vstack([vectors[:kept], drawn]))[0]


def _after_sums(
    config: DictionariesConfig, state: DictionariesState, grid: np.ndarray
) -> tuple[DictionariesState, RoundInfo]:
    r, d = state.common.shape
    number, n = state.round + 1, state.clients
    noise = float(state.scales[-rounds_of(config) + state.round]) / n  # of a grid step, in a mean over clients
    mean = grid / n
    step_unit, energy_unit = state.clip / STEP_BOUND, ENERGY_CLIP * state.scale / ENERGY_BOUND
    steps = mean[: r * d].reshape(r, d) * step_unit
    weight = FADING * state.weight + 1.0
    energies = (FADING * state.weight * state.energies + mean[r * d : r * d + r] * energy_unit) / weight
    ladder = (FADING * state.weight * state.ladder + mean[r * d + r :] / CELL_BOUND) / weight
    rest = math.sqrt((1 - FADING ** (2 * number)) / (1 - FADING**2)) / weight  # of the noise in a fading mean
    least = noise * energy_unit * rest
    safe = np.maximum(energies, max(least, LEAST_ENERGY * max(float(energies.mean()), least)))
    nu = noise * step_unit * math.sqrt(d) / safe
    full = steps / safe[:, None]
    lengths = np.maximum(np.linalg.norm(full, axis=1), np.finfo(float).tiny)
    factor = state.step * min(1.0, 2.0 * (1.0 - state.round / rounds_of(config))) / (1.0 + SLOWER * nu)
    common = normalise(state.common + np.minimum(factor, LARGEST_STEP / lengths)[:, None] * full)[0]
    clip = state.scale * NORMS.quantile(ladder, QUANTILE)
    info = RoundInfo(
        {
            "movement": d12(common, state.common),
            "noise_of_step": float(np.median(nu)),
            "step": float(np.median(factor)),
            "clip": state.clip,
        }
    )
    after = replace(
        state,
        phase="done" if number >= rounds_of(config) else "rounds",
        round=number,
        common=common,
        clip=clip,
        energies=energies,
        ladder=ladder,
        weight=weight,
    )
    return after, info
