"""FedGMM (Wu et al. 2023) for mixtures of regressions: a joint mixture of A Gaussians of the inputs and R regressions.

    g_iar ~ W_ar N(x_i; mu_a, Sigma) N(y_i; x_i.theta_r, 1)        over all A R pairs
    client   W_ar = mean of g; local means, covariance and least-squares coefficients
    server   mu_a averaged by the clients' mass of a; Sigma and theta by their rows (or plainly)

One covariance Sigma of the inputs is shared by all a, as in the program of Tian, Weng, Feng 2024. Without a response
the method is FedEM with free covariances. Local covariate mixtures are not fitted beforehand: the A means start at
points spread along the inputs' first axes, the same for all clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from fedcore.papers.fedgrem.paper_gradient_em.config import PaperGradientEMConfig
from fedcore.papers.fedgrem.paper_gradient_em.messages import BaselineMessage
from fedcore.papers.fedgrem.paper_gradient_em.state import PaperGradientEMState

from fedcore.methods.gradient_em.coordinates import coordinates_of, to_model, to_standardised
from fedcore.methods.mixture_models.local_steps import LOG_TWO_PI, LOG_WEIGHT_FLOOR, RIDGE, Rows, pair_products
from fedcore.methods.mixture_models.tiles import stacks
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import FloatSum, Statistics

SPREAD = 0.5  # of the first means of the inputs


def first_state(config: PaperGradientEMConfig, state: PaperGradientEMState) -> PaperGradientEMState:
    """Means of the inputs +-SPREAD along one axis after the other, unit covariance."""
    p = state.centres.shape[1]
    means = np.zeros((config.covariates, p))
    for a in range(config.covariates):
        means[a, (a // 2) % p] = SPREAD if a % 2 == 0 else -SPREAD
    return replace(state, covariate_means=means, covariate_covariance=np.eye(p))


def client_round(
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


def server_update(
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
