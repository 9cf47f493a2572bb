"""How well mixed-effects regressions predict held-out rows: the predictive density, and the squared error of the mean.

A client that has found b and C from its own rows predicts y at x by sum of w_r N(x.b_r, s2 + x' C_r x); one that has no
rows yet by sum of N(x.m_r, s2 + x' D_r x) / R.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.gradient_em import mixed_effects, mixed_mixture, mixed_rounds, mixture_rounds
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.local_steps import Rows
from fedcore.methods.gradient_em.mixed_mixture import Parts
from fedcore.methods.gradient_em.mixed_state import in_model_units
from fedcore.methods.gradient_em.state import GradientEMState
from fedcore.rounds.method import Memory


def adapted(config: GradientEMConfig, state: GradientEMState, rows: Rows) -> Parts:
    """Of clients that know the common coefficients and these rows of theirs, model's units."""
    if config.components > 1:
        return mixture_rounds.adapted(config, state, rows)
    found = mixed_rounds.of_clients(config, state, rows)
    return Parts(np.ones((len(rows.sizes), 1)), found.coefficients[:, None], found.covariances[:, None])


def trained(config: GradientEMConfig, state: GradientEMState, rows: Rows, memory: Memory) -> Parts:
    """Of clients of the run that remember what they found, and have these rows."""
    if config.components > 1:
        return mixture_rounds.of_memory(config, state, rows, memory)[0]
    return adapted(config, state, rows)


def of_new_clients(state: GradientEMState, clients: int) -> Parts:
    return Parts.of_common(in_model_units(state), clients)


def own_least_squares(rows: Rows) -> Parts:
    """Each client's least squares, with a ridge that is negligible unless its rows leave a direction open."""
    coefficients = mixed_effects.own_fits(mixed_effects.systems(rows)).coefficients[:, None]
    p = coefficients.shape[2]
    return Parts(np.ones((len(coefficients), 1)), coefficients, np.zeros((len(coefficients), 1, p, p)))


def losses(parts: Parts, held: Rows) -> tuple[np.ndarray, np.ndarray]:
    """(C,) summed negative log-densities of the held-out rows, and (C,) summed squared errors; model's units."""
    means = np.einsum("cr,crp->cp", parts.w, parts.coefficients)
    left = held.responses - np.einsum("ij,ij->i", held.x, means[held.owners])
    squares = np.bincount(held.owners, left**2, len(held.sizes))
    return -mixed_mixture.log_density(held, parts, 1.0), squares
