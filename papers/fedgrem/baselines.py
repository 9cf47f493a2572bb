"""Rounds of the methods that FedGrEM is compared with, on the same starts.

    local-fit     every client's start itself, with its own covariance; one round that puts components in order
    local-em      EM of every client alone, in the model's covariance
    local-grem    theta <- theta + eta dQ/dtheta with a small constant eta
    fedem         full M-steps of the clients, averaged (Marfoq et al. 2021)
    fedem-w       one M-step on the rows of all clients, weights of their own
    pooled-em, pooled-grem   all rows as if of one client
    tgmm          a client's M-step draws on the starts of all others (Wang et al. 2021)
    fedgmm        a joint mixture of A Gaussians of the inputs and R regressions (Wu et al. 2023)

TGMM, over the F others that have a start:

    theta_r <- [ M_r + lam s_r sum_f theta_r^(f)[0] ] / [ s_r (1 + lam F) ]

FedGMM:

    g_iar ~ W_ar N(x_i; mu_a, Sigma) N(y_i; x_i.theta_r, 1)        over all A R pairs
    client   W_ar = mean of g; local means, covariance and least-squares coefficients
    server   mu_a averaged by the clients' mass of a; Sigma and theta by their rows (or plainly)

One covariance Sigma of the inputs is shared by all a, as in the program of Tian, Weng, Feng 2024. Without a response
the method is FedEM with free covariances. Local covariate mixtures are not fitted beforehand: the A means start at
points spread along the inputs' first axes, the same for all clients.

Source: Tian, Weng, Feng 2024, equation (6), Section 4 and Appendix B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from fedcore.papers.fedgrem.state import (
    POOLED,
    BaselineMessage,
    PaperGradientEMConfig,
    PaperGradientEMState,
    TotalsMessage,
)

from fedcore.methods.gradient_em import start
from fedcore.methods.gradient_em.coordinates import coordinates_of, rows_of, to_model, to_standardised
from fedcore.methods.gradient_em.messages import StartMessage
from fedcore.methods.mixture_models import GaussianMixture, RegressionMixture
from fedcore.methods.mixture_models.alignment import in_common_order
from fedcore.methods.mixture_models.local_steps import (
    LOG_TWO_PI,
    LOG_WEIGHT_FLOOR,
    RIDGE,
    Rows,
    Sums,
    e_step,
    full_m_step,
    pair_products,
)
from fedcore.methods.mixture_models.spatial_median import moved_centre, weighted_sums
from fedcore.methods.mixture_models.tiles import stacks
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory, RoundInfo
from fedcore.rounds.statistics import ArgMax, FloatSum, Statistic, Statistics

# --- pooled mixtures --------------------------------------------------------------------------------------------------


REGULARISATION = 1e-3  # of a pooled covariance, in standardised units


def pooled_round(config: PaperGradientEMConfig, message: BaselineMessage, block: RowsBlock, rows: Rows) -> Statistics:
    """counts: as of `rounds.client_round`; gradient: (R, p + 1) gradients and masses; or total: of the mixture."""
    n = float(rows.sizes.sum())
    if config.algorithm == "pooled-grem":
        one = Rows(rows.x, rows.y, np.array([0, len(rows.x)]))
        sums = e_step(one, to_model(config, message.coordinates, message.centres)[None], message.weights[None])
        parts = np.column_stack([sums.gradient[0], sums.mass[0]])
        return {
            "gradient": FloatSum.at(block.leaf, parts),
            "counts": FloatSum.at(block.leaf, [np.count_nonzero(rows.sizes), n, sums.log_likelihood.sum()]),
        }
    model, theta = model_of(config, len(message.centres[0])), parameters_of(config, message)
    y = rows.x if rows.y is None else np.column_stack([rows.x, rows.y])
    total = model.e_total(theta, y) if len(y) else np.zeros(model.q)
    fit = float(model.log_likelihood(theta, y).sum()) if len(y) else 0.0
    return {
        "total": FloatSum.at(block.leaf, total),
        "counts": FloatSum.at(block.leaf, [float(np.count_nonzero(rows.sizes)), float(n), fit]),
    }


def first_pooled(
    config: PaperGradientEMConfig, state: PaperGradientEMState, starts: np.ndarray
) -> PaperGradientEMState:
    """starts: (K', R, p) aligned centres that were compared."""
    state = replace(state, weights=np.full(config.components, 1.0 / config.components))
    if config.algorithm == "pooled-grem":
        return replace(state, centres=starts[0])
    p = state.centres.shape[1]
    return replace(state, variances=np.ones(config.components), pooled_covariance=np.eye(p))


def pooled_update(
    config: PaperGradientEMConfig, state: PaperGradientEMState, result: Mapping[str, Any], rows: float
) -> PaperGradientEMState:
    coordinates = coordinates_of(state)
    if config.algorithm == "pooled-grem":
        parts = np.asarray(result["gradient"]) / rows
        moved = to_model(config, coordinates, state.centres) + config.gradient_step * parts[:, :-1]
        return replace(state, centres=to_standardised(config, coordinates, moved), weights=parts[:, -1])
    theta = model_of(config, state.centres.shape[1]).maximise(np.asarray(result["total"]) / rows)
    if config.model == "gaussian":
        centres = to_standardised(config, coordinates, theta["means"])
        return replace(state, weights=theta["weights"], centres=centres, pooled_covariance=theta["covariances"])
    centres = to_standardised(config, coordinates, theta["coefficients"])
    return replace(state, weights=theta["weights"], centres=centres, variances=theta["variances"])


def model_of(config: PaperGradientEMConfig, p: int) -> GaussianMixture | RegressionMixture:
    if config.model == "gaussian":
        return GaussianMixture(config.components, p, "tied", lam=REGULARISATION)
    return RegressionMixture(config.components, p + 1, ridge=REGULARISATION, lam=REGULARISATION)


def parameters_of(
    config: PaperGradientEMConfig, source: BaselineMessage | PaperGradientEMState
) -> dict[str, np.ndarray]:
    """The parameters of the pooled mixture, in the model's units, which for a pooled mixture do not change."""
    coordinates = source.coordinates if isinstance(source, BaselineMessage) else coordinates_of(source)
    v = to_model(config, coordinates, source.centres)
    if config.model == "gaussian":
        return {"weights": source.weights, "means": v, "covariances": source.pooled_covariance}
    return {"weights": source.weights, "coefficients": v, "variances": source.variances}


# --- TGMM -------------------------------------------------------------------------------------------------------------


def totals(message: TotalsMessage, block: RowsBlock, memory: Memory) -> tuple[Statistics, Memory]:
    """Sum of the aligned starts of the clients that have one, and their number."""
    own = memory["started"].astype(bool)
    memory = in_common_order(memory, message.orders, message.centres, block)
    memory["source"] = np.where(own[:, None, None], memory["theta"], 0.0)
    return {
        "totals": FloatSum.at(block.leaf, memory["source"].sum(axis=0)),
        "sources": FloatSum.at(block.leaf, float(own.sum())),
    }, memory


def after_totals(state: PaperGradientEMState, result: Mapping[str, Any]) -> tuple[PaperGradientEMState, RoundInfo]:
    state = replace(
        state,
        phase="rounds",
        totals=np.asarray(result["totals"]),
        sources=float(result["sources"]),
        orders=state.orders[:0],
    )
    return state, RoundInfo({"sources": state.sources})


def tgmm_step(
    config: PaperGradientEMConfig, message: BaselineMessage, theta: np.ndarray, sums: Sums, source: np.ndarray
) -> np.ndarray:
    """(C, R, p), model's units. source: (C, R, p) the client's own start, zeros if it has none."""
    has = (np.abs(source) > 0).any(axis=(1, 2)).astype(np.float64)
    others = (message.sources - has)[:, None, None]
    total = to_model(config, message.coordinates, message.totals) - source
    mass = np.where(sums.mass > 0, sums.mass, 1.0)[:, :, None]
    own = theta + sums.gradient / mass
    return (own + config.tgmm_penalty * total) / (1.0 + config.tgmm_penalty * others)


# --- FedGMM -----------------------------------------------------------------------------------------------------------


SPREAD = 0.5  # of the first means of the inputs


def first_fedgmm(config: PaperGradientEMConfig, state: PaperGradientEMState) -> PaperGradientEMState:
    """Means of the inputs +-SPREAD along one axis after the other, unit covariance."""
    p = state.centres.shape[1]
    means = np.zeros((config.covariates, p))
    for a in range(config.covariates):
        means[a, (a // 2) % p] = SPREAD if a % 2 == 0 else -SPREAD
    return replace(state, covariate_means=means, covariate_covariance=np.eye(p))


def fedgmm_round(
    config: PaperGradientEMConfig, message: BaselineMessage, block: RowsBlock, rows: Rows, memory: Memory
) -> tuple[Statistics, Memory]:
    """means: (A, p + 1) sums weighted by mass; centre: (R, p + 1), scatter: (p p + 1,) by rows or plainly."""
    n, clients = rows.sizes, block.clients
    components, p = message.centres.shape
    v = to_model(config, message.coordinates, message.centres)
    theta = (
        to_model(config, message.coordinates, memory["theta"])
        if message.number == 1
        else np.broadcast_to(v, (clients, components, p))
    )
    joint = memory.get("joint")
    if joint is None:
        joint = np.repeat(memory["w"][:, None], config.covariates, axis=1) / config.covariates
    white = np.linalg.inv(np.linalg.cholesky(message.covariate_covariance))
    means = message.covariate_means @ white.T
    log_constant = float(np.log(np.diagonal(white)).sum()) - 0.5 * (p + 1) * LOG_TWO_PI
    left, right = np.triu_indices(p)
    place = np.empty((p, p), np.int64)
    place[left, right] = place[right, left] = np.arange(len(left))
    new = joint.copy()
    packed, cross = np.zeros((clients, components, len(left))), np.zeros((clients, components, p))
    sums, scatter = np.zeros((clients, config.covariates, p)), np.zeros((clients, p, p))
    mass, fit, response = np.zeros(joint.shape), 0.0, cast(np.ndarray, rows.y)  # it is for regressions
    for stack in stacks(rows.ptr, 2 * config.covariates * components + p * p):
        c, x, y = stack.clients, stack.take(rows.x), stack.take(response)
        seen = np.ones(stack.shape) if stack.seen is None else stack.seen.astype(np.float64)
        z = x @ white.T
        of_inputs = np.matmul(z, means.T) - 0.5 * (means**2).sum(axis=1) - 0.5 * (z**2).sum(axis=2)[:, :, None]
        residuals = y[:, None] - np.matmul(theta[c], x.transpose(0, 2, 1))
        g = of_inputs.transpose(0, 2, 1)[:, :, None] - 0.5 * residuals[:, None] ** 2
        g = g + np.log(np.maximum(joint[c], LOG_WEIGHT_FLOOR))[..., None]
        top = g.max(axis=(1, 2))
        g = np.exp(g - top[:, None, None])
        total = g.sum(axis=(1, 2))
        fit += float(((top + np.log(total) + log_constant) * seen).sum())
        g *= (seen / total)[:, None, None]
        mass[c] += g.sum(axis=3)
        by_inputs, by_regression = g.sum(axis=2), g.sum(axis=1)
        sums[c] += np.matmul(by_inputs, x)
        packed[c] += np.matmul(by_regression, pair_products(x))
        cross[c] += np.matmul(by_regression * y[:, None], x)
        scatter[c] += np.matmul((x * seen[:, :, None]).transpose(0, 2, 1), x)
    filled = n > 0
    new[filled] = mass[filled] / n[filled, None, None]
    mass_of = mass.sum(axis=2)
    coefficients = np.linalg.solve(packed[..., place] + RIDGE * np.eye(p), cross[..., None])[..., 0]
    own = sums / np.maximum(mass_of, 1e-9)[:, :, None]
    within = (scatter - np.matmul(sums.transpose(0, 2, 1), own)) / np.maximum(n, 1.0)[:, None, None]
    counts = n if config.average == "rows" else filled.astype(np.float64)
    centre = np.concatenate(
        [np.einsum("k,krp->rp", counts, coefficients), np.full((components, 1), counts.sum())], axis=1
    )
    return {
        "counts": FloatSum.at(block.leaf, [np.count_nonzero(filled), n.sum(), fit]),
        "means": FloatSum.at(block.leaf, np.column_stack([sums.sum(axis=0), mass_of.sum(axis=0)])),
        "centre": FloatSum.at(block.leaf, centre),
        "scatter": FloatSum.at(block.leaf, np.append(np.einsum("k,kpq->pq", counts, within), counts.sum())),
    }, {"joint": new, "w": new.sum(axis=1)}


def fedgmm_update(
    config: PaperGradientEMConfig, state: PaperGradientEMState, result: Mapping[str, Any]
) -> PaperGradientEMState:
    p = state.centres.shape[1]
    centre, means, scatter = (np.asarray(result[name]) for name in ("centre", "means", "scatter"))
    moved = to_standardised(config, coordinates_of(state), centre[:, :-1] / centre[:, -1:])
    alive = means[:, -1:] > 0
    located = np.where(alive, means[:, :-1] / np.where(alive, means[:, -1:], 1.0), state.covariate_means)
    covariance = (scatter[:-1] / scatter[-1]).reshape(p, p)
    return replace(
        state,
        centres=moved,
        covariate_means=located,
        covariate_covariance=0.5 * (covariance + covariance.T) + 1e-6 * np.eye(p),
    )


# --- rounds of all ----------------------------------------------------------------------------------------------------


def client_round(
    config: PaperGradientEMConfig, message: BaselineMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """counts: (3,) active clients, rows, log-likelihood; movement as for FedGrEM."""
    if message.number == 1 and "started" in memory:  # tgmm has aligned them already
        memory = in_common_order(memory, message.orders, message.centres, block)
    rows = rows_of(config, message.coordinates, block)
    if config.algorithm in POOLED:
        return pooled_round(config, message, block, rows), {"w": memory["w"]}
    if config.algorithm == "fedgmm":
        return fedgmm_round(config, message, block, rows, memory)
    n, w = rows.sizes, memory["w"]
    v = to_model(config, message.coordinates, message.centres)
    own = config.local or message.number == 1
    theta = to_model(config, message.coordinates, memory["theta"]) if own else np.broadcast_to(v, (len(n), *v.shape))
    second = rows.y is not None and config.algorithm in ("local-em", "fedem", "fedem-w")
    sums = e_step(rows, theta, w, second=second)
    filled = n > 0
    counts = FloatSum.at(block.leaf, [np.count_nonzero(filled), n.sum(), sums.log_likelihood.sum()])
    if config.algorithm == "local-fit":
        return {"counts": counts, "movement": ArgMax(0.0, block.first, {})}, memory
    w = np.where(filled[:, None], sums.mass / np.maximum(n, 1.0)[:, None], w)
    match config.algorithm:
        case "fedem":
            average = n if config.average == "rows" else filled.astype(np.float64)
            a = np.broadcast_to(average[:, None], w.shape)
            centre = FloatSum.at(block.leaf, weighted_sums(full_m_step(theta, sums), a))
            return {"counts": counts, "centre": centre}, {"w": w}
        case "fedem-w":
            return {"counts": counts, **_sums_of_rows(block, theta, sums)}, {"w": w}
        case "local-grem":
            new = theta + config.gradient_step * sums.gradient / np.maximum(n, 1.0)[:, None, None]
        case "tgmm":
            source = to_model(config, message.coordinates, memory["source"])
            new = tgmm_step(config, message, theta, sums, source)
        case _:
            new = full_m_step(theta, sums)
    new = to_standardised(config, message.coordinates, new)
    step = np.abs(new - memory["theta"]).max(axis=(1, 2), initial=0.0)
    at = int(np.argmax(step)) if len(step) else 0
    movement = ArgMax(float(step[at]), block.first + at, {})
    return {"counts": counts, "movement": movement}, {**memory, "theta": new, "w": w}


def _sums_of_rows(block: RowsBlock, theta: np.ndarray, sums: Sums) -> dict[str, Statistic]:
    """What one M-step on all rows needs: sum of g and of g x; or of g x x' and g x y."""
    if sums.second is None:
        first = sums.gradient + sums.mass[:, :, None] * theta
        return {"centre": FloatSum.at(block.leaf, np.dstack([first, sums.mass[:, :, None]]).sum(axis=0))}
    b = sums.gradient + np.matmul(sums.second, theta[..., None])[..., 0]
    return {"second": FloatSum.at(block.leaf, sums.second.sum(axis=0)), "first": FloatSum.at(block.leaf, b.sum(axis=0))}


def message(state: PaperGradientEMState) -> BaselineMessage:
    return BaselineMessage(
        number=state.round + 1,
        coordinates=coordinates_of(state),
        centres=state.centres,
        weights=state.weights,
        orders=state.orders,
        variances=state.variances,
        pooled_covariance=state.pooled_covariance,
        totals=state.totals,
        sources=state.sources,
        covariate_means=state.covariate_means,
        covariate_covariance=state.covariate_covariance,
    )


def own_fits(config: PaperGradientEMConfig, message: StartMessage, block: RowsBlock) -> tuple[Statistics, Memory]:
    """Those of `gradient_em`; clients of local-fit remember their covariances as well."""
    if config.algorithm != "local-fit":
        return start.own_fits(config, message, block)
    fits = start.fits_of(config, message, block)
    statistics, memory = start.own_fits(config, message, block, fits)
    name = "covariance" if config.model == "gaussian" else "variances"
    return statistics, memory | {name: fits.covariance}


def after_start(
    config: PaperGradientEMConfig, state: PaperGradientEMState, result: Mapping[str, Any]
) -> tuple[PaperGradientEMState, RoundInfo]:
    """The state at the beginning of round 1, or of the totals."""
    begun, info, starts = start.begun(config, state, result)
    state = first_state(config, cast(PaperGradientEMState, begun), starts)
    return replace(state, phase="totals" if config.algorithm == "tgmm" else "rounds"), info


def total_rounds(config: PaperGradientEMConfig) -> int:
    before = 1 + (config.standardise == "columns") + (config.algorithm == "tgmm")
    return before + (1 if config.algorithm == "local-fit" else config.rounds)


def first_state(config: PaperGradientEMConfig, state: PaperGradientEMState, starts: np.ndarray) -> PaperGradientEMState:
    """What a baseline's rounds begin with. starts: (K', R, p) aligned ones, standardised units."""
    if config.algorithm in POOLED:
        return first_pooled(config, state, starts)
    return first_fedgmm(config, state) if config.algorithm == "fedgmm" else state


def server_update(
    config: PaperGradientEMConfig, state: PaperGradientEMState, result: Mapping[str, Any]
) -> tuple[PaperGradientEMState, RoundInfo]:
    active, rows, fit = (float(value) for value in result["counts"])
    after = replace(_moved(config, state, result, rows), round=state.round + 1, orders=state.orders[:0])
    centre_step = float(np.abs(after.centres - state.centres).max(initial=0.0))
    movement = max(float(result["movement"].score), 0.0) if "movement" in result else 0.0
    still = config.exact_rounds and after.round >= 5 and max(movement, centre_step) < config.tolerance
    if after.round == config.rounds or still or config.algorithm == "local-fit":
        after = replace(after, phase="done")
    info = {
        "movement": movement,
        "centre_step": centre_step,
        "active_clients": active,
        "log_likelihood": fit / max(rows, 1.0),
    }
    return after, RoundInfo(info)


def _moved(
    config: PaperGradientEMConfig, state: PaperGradientEMState, result: Mapping[str, Any], rows: float
) -> PaperGradientEMState:
    """The state with the next common parameters, where there are any."""
    if config.algorithm in POOLED:
        return pooled_update(config, state, result, rows)
    if config.algorithm == "fedgmm":
        return fedgmm_update(config, state, result)
    if config.local:
        return state
    coordinates = coordinates_of(state)
    v = to_model(config, coordinates, state.centres)
    if "centre" in result:
        found = moved_centre(v, np.asarray(result["centre"]))
    else:  # fedem-w of regressions
        matrices = np.asarray(result["second"]) + RIDGE * np.eye(v.shape[1])
        found = np.linalg.solve(matrices, np.asarray(result["first"])[..., None])[..., 0]
    return replace(state, centres=to_standardised(config, coordinates, found))
