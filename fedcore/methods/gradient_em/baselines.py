"""The methods that FedGrEM is compared with, on the same starts and through the same rounds.

    local-fit     every client's start itself, with its own covariance; one round that puts components in order
    local-em      EM of every client alone, in the model's covariance
    local-grem    theta <- theta + eta dQ/dtheta with a small constant eta
    fedem         full M-steps of the clients, averaged (Marfoq et al. 2021)
    fedem-w       one M-step on the rows of all clients, weights of their own
    tgmm          a client's M-step draws on the starts of all others (Wang et al. 2021, as Tian et al. 2024 use it)
    fedgmm        joint mixture of inputs and regressions (Wu et al. 2023); `fedcore.methods.gradient_em.fedgmm`
    pooled-em     EM on all rows as if of one client: one full covariance, or a variance for each regression
    pooled-grem   gradient EM on all rows

Source: Tian, Weng, Feng 2024, Section 4 and Appendix B. The authors start pooled methods from a fit of all rows, or
from the first client's centres; here pooled-em starts from the spatial medians of the aligned starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedcore.methods.gradient_em import fedgmm
from fedcore.methods.gradient_em.central import moved_centre, weighted_sums
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.frame import inward, outward, rows_of
from fedcore.methods.gradient_em.local_steps import RIDGE, Rows, e_step, full_m_step
from fedcore.methods.gradient_em.state import Frame, GradientEMState, RoundMessage
from fedcore.methods.mixture_models import GaussianMixture, RegressionMixture
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory, RoundInfo
from fedcore.rounds.statistics import ArgMax, FloatSum, Statistics

REGULARISATION = 1e-3  # of a pooled covariance, in standardised units


# --- clients --------------------------------------------------------------------------------------------------------


def client_round(
    config: GradientEMConfig, message: RoundMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """memory: aligned already. counts: (3,) active clients, rows, log-likelihood; movement as for FedGrEM."""
    rows = rows_of(config, message.frame, block)
    if config.algorithm in ("pooled-em", "pooled-grem"):
        return _pooled(config, message, block, rows), {"w": memory["w"]}
    if config.algorithm == "fedgmm":
        return fedgmm.client_round(config, message, block, rows, memory)
    n, w = rows.sizes, memory["w"]
    v = inward(config, message.frame, message.centres)
    own = config.local or message.number == 1
    theta = inward(config, message.frame, memory["theta"]) if own else np.broadcast_to(v, (len(n), *v.shape))
    second = rows.y is not None and config.algorithm in ("local-em", "fedem", "fedem-w")
    sums = e_step(rows, theta, w, second=second)
    filled = n > 0
    statistics = {"counts": FloatSum.at(block.leaf, [np.count_nonzero(filled), n.sum(), sums.log_likelihood.sum()])}
    if config.algorithm == "local-fit":
        return {**statistics, "movement": ArgMax(0.0, block.first, {})}, memory
    w = np.where(filled[:, None], sums.mass / np.maximum(n, 1.0)[:, None], w)
    if config.algorithm in ("local-em", "fedem"):
        new = full_m_step(theta, sums)
    elif config.algorithm == "local-grem":
        new = theta + config.gradient_step * sums.gradient / np.maximum(n, 1.0)[:, None, None]
    elif config.algorithm == "tgmm":
        new = _with_sources(config, message, theta, sums, inward(config, message.frame, memory["source"]))
    if config.algorithm == "fedem":
        counts = n if config.average == "rows" else filled.astype(np.float64)
        a = np.broadcast_to(counts[:, None], w.shape)
        return {**statistics, "centre": FloatSum.at(block.leaf, weighted_sums(new, a))}, {"w": w}
    if config.algorithm == "fedem-w":
        return {**statistics, **_pooled_sums(block, theta, sums)}, {"w": w}
    new = outward(config, message.frame, new)
    step = np.abs(new - memory["theta"]).max(axis=(1, 2), initial=0.0)
    at = int(np.argmax(step)) if len(step) else 0
    statistics["movement"] = ArgMax(float(step[at]), block.first + at, {})
    return statistics, {**memory, "theta": new, "w": w}


def _with_sources(config, message, theta, sums, source) -> np.ndarray:
    """[M_r + lam s_r sum_f theta_r^(f)[0]] / [s_r (1 + lam F)] over the F other clients that have a start."""
    has = (np.abs(source) > 0).any(axis=(1, 2)).astype(np.float64)
    others = (message.sources - has)[:, None, None]
    total = inward(config, message.frame, message.totals) - source
    mass = np.where(sums.mass > 0, sums.mass, 1.0)[:, :, None]
    own = theta + sums.gradient / mass
    return (own + config.tgmm_penalty * total) / (1.0 + config.tgmm_penalty * others)


def _pooled_sums(block, theta, sums) -> Statistics:
    """What one M-step on all rows needs: sum of g and of g x; or of g x x' and g x y."""
    if sums.second is None:
        first = sums.gradient + sums.mass[:, :, None] * theta
        return {"centre": FloatSum.at(block.leaf, np.dstack([first, sums.mass[:, :, None]]).sum(axis=0))}
    b = sums.gradient + np.matmul(sums.second, theta[..., None])[..., 0]
    return {"second": FloatSum.at(block.leaf, sums.second.sum(axis=0)), "first": FloatSum.at(block.leaf, b.sum(axis=0))}


def _pooled(config, message: RoundMessage, block, rows: Rows) -> Statistics:
    n = float(rows.sizes.sum())
    if config.algorithm == "pooled-grem":
        one = Rows(rows.x, rows.y, np.array([0, len(rows.x)]))
        sums = e_step(one, inward(config, message.frame, message.centres)[None], message.weights[None])
        parts = np.column_stack([sums.gradient[0], sums.mass[0]])
        return {
            "gradient": FloatSum.at(block.leaf, parts),
            "counts": FloatSum.at(block.leaf, [np.count_nonzero(rows.sizes), n, sums.log_likelihood.sum()]),
        }
    model, theta = pooled_model(config, len(message.centres[0])), pooled_theta(config, message)
    y = rows.x if rows.y is None else np.column_stack([rows.x, rows.y])
    total = model.e_total(theta, y) if len(y) else np.zeros(model.q)
    fit = float(model.log_likelihood(theta, y).sum()) if len(y) else 0.0
    return {
        "total": FloatSum.at(block.leaf, total),
        "counts": FloatSum.at(block.leaf, [np.count_nonzero(rows.sizes), n, fit]),
    }


def pooled_model(config: GradientEMConfig, p: int) -> GaussianMixture | RegressionMixture:
    if config.model == "gaussian":
        return GaussianMixture(config.components, p, "tied", lam=REGULARISATION)
    return RegressionMixture(config.components, p + 1, ridge=REGULARISATION, lam=REGULARISATION)


def pooled_theta(config: GradientEMConfig, source: RoundMessage | GradientEMState) -> dict[str, np.ndarray]:
    """The parameters of the pooled mixture, in the model's units, which for a pooled mixture do not change."""
    v = inward(config, source.frame if isinstance(source, RoundMessage) else frame_of(source), source.centres)
    if config.model == "gaussian":
        return {"weights": source.weights, "means": v, "covariances": source.pooled_covariance}
    return {"weights": source.weights, "coefficients": v, "variances": source.variances}


# --- server ---------------------------------------------------------------------------------------------------------


def begin(config: GradientEMConfig, state: GradientEMState, starts: np.ndarray) -> GradientEMState:
    """What a baseline's rounds begin with. starts: (K', R, p) aligned centres that were compared."""
    if config.algorithm in ("pooled-em", "pooled-grem"):
        state = replace(state, weights=np.full(config.components, 1.0 / config.components))
    if config.algorithm == "pooled-grem":
        state = replace(state, centres=starts[0])
    if config.algorithm == "pooled-em":
        p = state.centres.shape[1]
        state = replace(state, variances=np.ones(config.components), pooled_covariance=np.eye(p))
    return fedgmm.begin(config, state) if config.algorithm == "fedgmm" else state


def server_update(config: GradientEMConfig, state: GradientEMState, result: Mapping):
    number = state.round + 1
    active, rows, fit = (float(value) for value in result["counts"])
    frame = frame_of(state)
    v, after = inward(config, frame, state.centres), state
    match config.algorithm:
        case "fedem":
            after = replace(state, centres=outward(config, frame, moved_centre(v, np.asarray(result["centre"]))))
        case "fedem-w" if config.model == "gaussian":
            after = replace(state, centres=outward(config, frame, moved_centre(v, np.asarray(result["centre"]))))
        case "fedem-w":
            matrices = np.asarray(result["second"]) + RIDGE * np.eye(v.shape[1])
            found = np.linalg.solve(matrices, np.asarray(result["first"])[..., None])[..., 0]
            after = replace(state, centres=outward(config, frame, found))
        case "pooled-grem":
            parts = np.asarray(result["gradient"]) / rows
            moved = v + config.gradient_step * parts[:, :-1]
            after = replace(state, centres=outward(config, frame, moved), weights=parts[:, -1])
        case "pooled-em":
            after = _pooled_step(config, state, np.asarray(result["total"]) / rows)
        case "fedgmm":
            after = fedgmm.server_update(config, state, result)
    centre_step = float(np.abs(after.centres - state.centres).max(initial=0.0))
    movement = max(float(result["movement"].score), 0.0) if "movement" in result else 0.0
    after = replace(after, round=number, orders=state.orders[:0])
    still = config.exact_rounds and number >= 5 and max(movement, centre_step) < config.tolerance
    if number == config.rounds or still or config.algorithm == "local-fit":
        after = replace(after, phase="done")
    return after, RoundInfo(
        {
            "movement": movement,
            "centre_step": centre_step,
            "active_clients": active,
            "log_likelihood": fit / max(rows, 1.0),
        }
    )


def frame_of(state: GradientEMState) -> Frame:
    return Frame(state.mean, state.scale, state.covariance)


def _pooled_step(config, state, mean):
    theta = pooled_model(config, state.centres.shape[1]).maximise(mean)
    if config.model == "gaussian":
        centres = outward(config, frame_of(state), theta["means"])
        return replace(state, weights=theta["weights"], centres=centres, pooled_covariance=theta["covariances"])
    centres = outward(config, frame_of(state), theta["coefficients"])
    return replace(state, weights=theta["weights"], centres=centres, variances=theta["variances"])
