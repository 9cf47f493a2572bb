"""Rounds of the methods that FedGrEM is compared with, on the same starts.

    local-fit     every client's start itself, with its own covariance; one round that puts components in order
    local-em      EM of every client alone, in the model's covariance
    local-grem    theta <- theta + eta dQ/dtheta with a small constant eta
    fedem         full M-steps of the clients, averaged (Marfoq et al. 2021)
    fedem-w       one M-step on the rows of all clients, weights of their own
    tgmm, fedgmm, pooled-em, pooled-grem: see `tgmm`, `fedgmm`, `pooled`

Source: Tian, Weng, Feng 2024, Section 4 and Appendix B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from fedcore.papers.fedgrem.paper_gradient_em import fedgmm, pooled, tgmm
from fedcore.papers.fedgrem.paper_gradient_em.config import POOLED, PaperGradientEMConfig
from fedcore.papers.fedgrem.paper_gradient_em.messages import BaselineMessage
from fedcore.papers.fedgrem.paper_gradient_em.state import PaperGradientEMState

from fedcore.methods.gradient_em import start
from fedcore.methods.gradient_em.coordinates import coordinates_of, rows_of, to_model, to_standardised
from fedcore.methods.gradient_em.messages import StartMessage
from fedcore.methods.mixture_models.alignment import in_common_order
from fedcore.methods.mixture_models.local_steps import RIDGE, Sums, e_step, full_m_step
from fedcore.methods.mixture_models.spatial_median import moved_centre, weighted_sums
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory, RoundInfo
from fedcore.rounds.statistics import ArgMax, FloatSum, Statistic, Statistics


def client_round(
    config: PaperGradientEMConfig, message: BaselineMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """counts: (3,) active clients, rows, log-likelihood; movement as for FedGrEM."""
    if message.number == 1 and "started" in memory:  # tgmm has aligned them already
        memory = in_common_order(memory, message.orders, message.centres, block)
    rows = rows_of(config, message.coordinates, block)
    if config.algorithm in POOLED:
        return pooled.client_round(config, message, block, rows), {"w": memory["w"]}
    if config.algorithm == "fedgmm":
        return fedgmm.client_round(config, message, block, rows, memory)
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
            new = tgmm.m_step(config, message, theta, sums, source)
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
        return pooled.first_state(config, state, starts)
    return fedgmm.first_state(config, state) if config.algorithm == "fedgmm" else state


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
        return pooled.server_update(config, state, result, rows)
    if config.algorithm == "fedgmm":
        return fedgmm.server_update(config, state, result)
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
