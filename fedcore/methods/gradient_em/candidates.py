"""Mixtures of all rows as starts of components with covariances of their own (`covariance = "components"`).

Own fits of few rows cannot tell covariances of components apart, so their centres are those of a shared covariance.
From the aligned centres, and from those of some single clients, EM of one mixture with full covariances is run on four
fifths of every client's rows, side by side, from exact sums. The one with the largest likelihood of the other fifth is
where all clients start; their own centres are found in the rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import coordinates_of, rows_of
from fedcore.methods.gradient_em.messages import CandidatesMessage
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.methods.mixture_models import GaussianMixture
from fedcore.methods.mixture_models.row_draws import held_out
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import stream
from fedcore.rounds.method import Memory, RoundInfo
from fedcore.rounds.statistics import FloatSum, Statistics

CANDIDATES, CANDIDATE_ROUNDS = 6, 40
HELD = "gradient_em/candidates/held_out"
REGULARISATION = 0.01  # rows that are worth as much as the mean variance within components of own fits


def first_candidates(config: GradientEMConfig, state: GradientEMState, starts: np.ndarray) -> GradientEMState:
    """starts: (K', R, d) aligned own centres, standardised units; the state has their medians and covariance."""
    generator = stream(state.seed, "gradient_em/candidates")
    chosen = generator.permutation(len(starts))[: CANDIDATES - 1]
    r, d = state.centres.shape
    weights, covariances = np.full(r, 1.0 / r), np.tile(state.covariance, (r, 1, 1))
    rows = [np.concatenate([weights, means.ravel(), covariances.ravel()]) for means in (state.centres, *starts[chosen])]
    scale = float(np.trace(state.covariance)) / d
    return replace(
        state, phase="candidates", candidates=np.stack(rows), regularisation=REGULARISATION * scale / state.rows
    )


def message(state: GradientEMState) -> CandidatesMessage:
    coordinates = replace(coordinates_of(state), covariance=np.zeros((0, 0)))
    judged = state.candidate_rounds == CANDIDATE_ROUNDS
    return CandidatesMessage(state.candidates, state.regularisation, state.seed, judged, coordinates)


def client_round(
    config: GradientEMConfig, message: CandidatesMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """totals: (F, q) of each mixture, rows: (1,); or fits: (F,) log-likelihoods of the held-out rows, rows: (1,), after
    which clients have no start of their own."""
    rows = rows_of(config, message.coordinates, block)
    held = held_out(message.seed, HELD, block.first + np.arange(block.clients), np.diff(block.ptr))
    x = rows.x[held] if message.judged else rows.x[~held]
    d = x.shape[1]
    model = model_of(config, d, message.regularisation)
    each = [parameters(row, config.components, d) for row in message.candidates]
    count = FloatSum.at(block.leaf, [len(x)])
    if message.judged:
        fits = [float(model.log_likelihood(theta, x).sum()) if len(x) else 0.0 for theta in each]
        even = np.full_like(memory["w"], 1.0 / config.components)
        memory = {**memory, "started": np.zeros_like(memory["started"]), "w": even}
        return {"fits": FloatSum.at(block.leaf, fits), "rows": count}, memory
    totals = [model.e_total(theta, x) if len(x) else np.zeros(model.q) for theta in each]
    return {"totals": FloatSum.at(block.leaf, np.stack(totals)), "rows": count}, memory


def server_update(
    config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any]
) -> tuple[GradientEMState, RoundInfo]:
    """The next candidates; or, when they were judged, the state at the beginning of round 1."""
    d, rows = state.centres.shape[1], max(float(result["rows"][0]), 1.0)
    if "fits" in result:
        fits = np.asarray(result["fits"]) / rows
        best = parameters(state.candidates[int(np.argmax(fits))], config.components, d)
        state = replace(
            state,
            phase="rounds",
            centres=best["means"],
            covariance=best["covariances"],
            orders=state.orders[:0],
            candidates=np.zeros((0, 0)),
            gain=float(fits.max() - fits[0]),
        )
        return state, RoundInfo({"held_out": float(fits.max()), "gain": state.gain})
    model, found = model_of(config, d, state.regularisation), []
    for total in np.asarray(result["totals"]):
        theta = model.maximise(total / rows)
        found.append(np.concatenate([theta["weights"], theta["means"].ravel(), theta["covariances"].ravel()]))
    return replace(state, candidates=np.stack(found), candidate_rounds=state.candidate_rounds + 1), RoundInfo({})


def model_of(config: GradientEMConfig, d: int, regularisation: float) -> GaussianMixture:
    return GaussianMixture(config.components, d, "full", lam=regularisation)


def parameters(row: np.ndarray, r: int, d: int) -> dict[str, np.ndarray]:
    """Of a candidate, (R + R d + R d d,)."""
    return {
        "weights": row[:r],
        "means": row[r : r + r * d].reshape(r, d),
        "covariances": row[r + r * d :].reshape(r, d, d),
    }
