"""Initialisation: what happens before round 1, on both sides.

    moments   one pass, if rows are standardised by the columns' moments
    start     one pass: every client's own fit; the centres of some are aligned, and their spatial medians are v_0

A run with a warm start (`start = "given"`) takes its common centres from there, and clients are only counted.

Source: Tian, Weng, Feng 2024, Appendices B, C.

Mixtures of all rows as starts of components with separate covariances (`covariance = "components"`).

Fits of a client's few rows cannot distinguish covariances of components, so their centres assume a shared covariance.
From the aligned centres, and from those of some single clients, EM of one mixture with full covariances is run on four
fifths of every client's rows, side by side, from exact sums. The one with the largest likelihood of the other fifth is
where all clients start; their own centres are found in the rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, PopulationError
from fedcore.methods.gradient_em import shrinkage
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import coordinates_of, covariance_of, rows_of, to_model, to_standardised
from fedcore.methods.gradient_em.messages import CandidatesMessage, StartMessage
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.methods.mixture_models import GaussianMixture, alignment
from fedcore.methods.mixture_models.local_fits import LocalFits, compared, compared_up_to, local_fits
from fedcore.methods.mixture_models.row_draws import held_out
from fedcore.methods.mixture_models.spatial_median import distances, spatial_median
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import stream
from fedcore.rounds.method import Memory, PublicFacts, RoundInfo
from fedcore.rounds.statistics import ArgMax, FloatSum, Stack, Statistics

# --- mixtures of all rows ---------------------------------------------------------------------------------------------


CANDIDATES, CANDIDATE_ROUNDS = 6, 40
HELD = "gradient_em/candidates/held_out"
REGULARISATION = 0.01  # weight, in rows, of the mean variance within components of local fits


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
    """totals: (F, q) of each mixture, rows: (1,); or fits: (F,) log-likelihoods of the held-out rows, rows: (1,). After
    the latter, clients have no separate start."""
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


SHUFFLES = 50  # random sequences in which clients are aligned, of which the best is taken
WARM_START_VARIANCE = 1.0  # between clients, before any has answered


# --- clients --------------------------------------------------------------------------------------------------------


def moments(block: RowsBlock) -> Statistics:
    """moments: (3, d) number, sum and sum of squares of the columns."""
    x = block.x.astype(np.float64)
    sums = np.stack([np.full(x.shape[1], float(len(x))), x.sum(axis=0), np.einsum("ij,ij->j", x, x)])
    return {"moments": FloatSum.at(block.leaf, sums)}


def fits_of(config: GradientEMConfig, message: StartMessage, block: RowsBlock) -> LocalFits:
    """The clients' own fits, model's units."""
    rows = rows_of(config, message.coordinates, block)
    return local_fits(
        rows,
        config.components,
        message.seed,
        block.first,
        starts=config.variant.starts,
        ward=config.variant.ward and rows.y is None,
        steps=config.variant.start_steps,
    )


def own_fits(
    config: GradientEMConfig, message: StartMessage, block: RowsBlock, fits: LocalFits | None = None
) -> tuple[Statistics, Memory]:
    """What clients send of their local fits: only the centres leave them. fits: of `fits_of`, if they are made.

    sizes:   (3,) clients with rows, rows, clients with a local fit
    largest: the client with the most rows
    centres: (c, 1 + R p) number and centres of the fitted clients that were chosen to be compared
    scatter: (q + 1,) sum over fitted clients of n_k times their covariance, and of n_k
    """
    rows = rows_of(config, message.coordinates, block)
    n = rows.sizes
    shape = (block.clients, config.components, rows.x.shape[1])
    memory = {"theta": np.zeros(shape), "w": np.full(shape[:2], 1.0 / config.components)}
    chosen, parts = np.zeros(block.clients, bool), np.zeros((block.clients, 1))
    covariance = np.zeros((block.clients, 0))
    if config.start == "local":
        fits = fits_of(config, message, block) if fits is None else fits
        memory = {"theta": to_standardised(config, message.coordinates, fits.theta), "w": fits.w}
        chosen = fits.fitted & compared(message.seed, message.compared, block.first, block.clients)
        own = fits.covariance.reshape(block.clients, -1)
        if rows.y is not None:
            own = (fits.w * fits.covariance).sum(axis=1, keepdims=True)
        covariance, parts = own * fits.fitted[:, None], fits.fitted[:, None].astype(np.float64)
    memory["started"] = parts[:, 0].astype(np.int8)
    numbers = (block.first + np.flatnonzero(chosen)).astype(np.float64)
    centres = np.column_stack([numbers, memory["theta"][chosen].reshape(len(numbers), shape[1] * shape[2])])
    most = int(np.argmax(n)) if len(n) else 0
    return {
        "sizes": FloatSum.at(block.leaf, [np.count_nonzero(n), n.sum(), parts.sum()]),
        "largest": ArgMax(float(n[most]), block.first + most, {}),
        "centres": Stack({block.first: centres}),
        "scatter": FloatSum.at(block.leaf, np.concatenate([n @ covariance, n @ parts])),
    }, memory


# --- server ---------------------------------------------------------------------------------------------------------


def first_state(config: GradientEMConfig, public: PublicFacts) -> GradientEMState:
    """Raises ConfigError if the settings do not fit the columns, or a warm start is missing or of other shapes."""
    p = config.inputs(public.features)
    if p < 1:
        raise ConfigError("a regression needs an input or an intercept, besides the response.")
    try:
        known = config.known_covariance(public.features)
    except ValueError as error:
        raise ConfigError(f"{error}.") from None
    covariance = np.zeros((0, 0)) if known is None else known
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


def checked_centres(
    config: GradientEMConfig, arrays: Mapping[str, np.ndarray], what: str, features: int
) -> dict[str, np.ndarray]:
    """The array 'centres' of a warm start as float64 (R, p). Raises ConfigError."""
    centres = arrays.get("centres")
    if centres is None or centres.dtype.kind not in "iuf" or not np.isfinite(centres).all():
        raise ConfigError(f"{what} has no array 'centres' of finite numbers.")
    shape = (config.components, config.inputs(features))
    if centres.shape != shape:
        raise ConfigError(f"'centres' of {what} has shape {centres.shape}, and the run needs {shape}.")
    return {"centres": np.asarray(centres, np.float64)}


def start_message(config: GradientEMConfig, state: GradientEMState) -> StartMessage:
    """Asks all clients for their centres, or those with the smallest uniform numbers."""
    compared = compared_up_to(state.seed, state.population, config.variant.aligned_clients)
    return StartMessage(coordinates_of(state), compared, state.seed)


def after_moments(state: GradientEMState, result: Mapping[str, Any]) -> tuple[GradientEMState, RoundInfo]:
    count, total, squares = np.asarray(result["moments"])
    if not count[0]:
        raise PopulationError("no client of the population has any rows.", "Check what was ingested.")
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0.0)
    scale = np.where(variance > 1e-12 * (1.0 + mean**2), np.sqrt(variance), 1.0)
    if len(state.centres):  # those of a warm start are in the units of the data
        state = replace(state, centres=(state.centres - mean) / scale)
    return replace(state, phase="start", mean=mean, scale=scale), RoundInfo({"rows": float(count[0])})


def after_start(
    config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any]
) -> tuple[GradientEMState, RoundInfo]:
    """The state at the beginning of round 1."""
    state, info, _ = begun(config, state, result)
    return state, info


def begun(
    config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any]
) -> tuple[GradientEMState, RoundInfo, np.ndarray]:
    """The state at the beginning of round 1, what is shown of the start, and the (K', R, p) aligned own centres that
    were compared, standardised units."""
    clients, rows, fitted = (float(value) for value in result["sizes"])
    if rows == 0:
        raise PopulationError("no client of the population has any rows.", "Check what was ingested.")
    state = replace(state, clients=clients, rows=rows, largest=int(result["largest"].score))
    info = {"clients": clients, "rows": rows, "fitted": fitted}
    if config.start == "local":
        state, starts, distance = _aligned_starts(config, state, result, fitted)
        info["spread"] = distance
        own = to_model(config, coordinates_of(state), starts)
        v = to_model(config, coordinates_of(state), state.centres)
        between = shrinkage.first_variance(own, v, rows / (clients * config.components))
    else:
        starts, between = state.centres[None], np.full(config.components, WARM_START_VARIANCE)
    state = replace(
        state,
        phase="rounds",
        penalty=config.variant.first_penalty,
        sums=np.zeros((config.components, state.centres.shape[1] + 1)),
        spread=between,
        spread_sums=np.zeros((config.components, 3)),
    )
    if config.covariance == "components" and config.start == "local":
        state = first_candidates(config, state, starts)
    elif config.covariance == "components":
        state = replace(state, covariance=np.tile(state.covariance, (config.components, 1, 1)))
    return state, RoundInfo(info), starts


def _aligned_starts(
    config: GradientEMConfig, state: GradientEMState, result: Mapping[str, Any], fitted: float
) -> tuple[GradientEMState, np.ndarray, float]:
    """The state with the first centres, orders and covariance; the aligned starts (K', R, p), standardised units; and
    their median distance from the first centres."""
    sent = np.asarray(result["centres"])
    if not len(sent):
        raise PopulationError(
            f"no client has the rows to fit {config.components} components by itself.",
            'Ask for fewer components, or give common centres: start = "given".',
        )
    before = coordinates_of(state)
    numbers = sent[:, 0].astype(np.int64)
    centres = sent[:, 1:].reshape(len(sent), config.components, -1)
    found = to_model(config, before, centres)
    generator = stream(state.seed, "gradient_em/alignment")
    orders = alignment.by_rule("auto", SHUFFLES, found, generator)
    together = alignment.reordered(found, orders)
    common = spatial_median(together)
    distance = float(np.median(distances(together, common)))
    every = np.tile(np.arange(config.components, dtype=np.int32), (state.population, 1))
    every[numbers] = orders
    state = replace(
        state,
        centres=to_standardised(config, before, common),
        orders=every if len(sent) == fitted else state.orders,  # else all clients align themselves
    )
    if config.shared_covariance:
        state = replace(state, covariance=covariance_of(config, before, np.asarray(result["scatter"])))
    return state, alignment.reordered(centres, orders), distance
