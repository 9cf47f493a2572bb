"""Pooled methods: all rows as if of one client, with one set of centres and weights.

    pooled-em     EM with one full covariance, or a variance for each regression
    pooled-grem   gradient EM with a constant step

Source: Tian, Weng, Feng 2024, Section 4 and Appendix B. The authors start them from a fit of all rows, or from the
first client's centres; here pooled-em starts from the spatial medians of the aligned starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from fedcore.papers.fedgrem.paper_gradient_em.config import PaperGradientEMConfig
from fedcore.papers.fedgrem.paper_gradient_em.messages import BaselineMessage
from fedcore.papers.fedgrem.paper_gradient_em.state import PaperGradientEMState

from fedcore.methods.gradient_em.coordinates import coordinates_of, to_model, to_standardised
from fedcore.methods.mixture_models import GaussianMixture, RegressionMixture
from fedcore.methods.mixture_models.local_steps import Rows, e_step
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.statistics import FloatSum, Statistics

REGULARISATION = 1e-3  # of a pooled covariance, in standardised units


def client_round(config: PaperGradientEMConfig, message: BaselineMessage, block: RowsBlock, rows: Rows) -> Statistics:
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


def first_state(config: PaperGradientEMConfig, state: PaperGradientEMState, starts: np.ndarray) -> PaperGradientEMState:
    """starts: (K', R, p) aligned centres that were compared."""
    state = replace(state, weights=np.full(config.components, 1.0 / config.components))
    if config.algorithm == "pooled-grem":
        return replace(state, centres=starts[0])
    p = state.centres.shape[1]
    return replace(state, variances=np.ones(config.components), pooled_covariance=np.eye(p))


def server_update(
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
