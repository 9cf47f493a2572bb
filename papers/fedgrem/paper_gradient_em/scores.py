"""How well the parameters that clients have from a run predict their held-out rows, for algorithms in which a client
that comes later could not find its own from common centres: local fits, and mixtures of all rows.

Only clients of the training can be scored by what they have alone; pooled-em scores any.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from fedcore.papers.fedgrem.paper_gradient_em import pooled
from fedcore.papers.fedgrem.paper_gradient_em.config import PaperGradientEMConfig
from fedcore.papers.fedgrem.paper_gradient_em.personal import parameters
from fedcore.papers.fedgrem.paper_gradient_em.state import PaperGradientEMState
from scipy.special import logsumexp

from fedcore.errors import ConfigError, RunError
from fedcore.methods.gradient_em import scores
from fedcore.methods.gradient_em.coordinates import coordinates_of, log_scale, rows_of
from fedcore.methods.gradient_em.personal import ClientParameters
from fedcore.methods.gradient_em.scores import squared_errors
from fedcore.methods.mixture_models.local_steps import LOG_WEIGHT_FLOOR, Rows, e_step
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory
from fedcore.rounds.scores import RUN, KnownMemories, held_out, sums_with_errors
from fedcore.rounds.statistics import Statistics


def only_as_trained(config: PaperGradientEMConfig) -> bool:
    """Whether clients are scored by what they have from the run and in no other way."""
    return config.local or config.algorithm in ("pooled-em", "fedgmm")


def score_block(
    config: PaperGradientEMConfig, state: PaperGradientEMState, block: RowsBlock, memories: KnownMemories | None
) -> Statistics:
    """As of `gradient_em`, but for baselines that are scored as they were trained alone.

    Raises also ConfigError for these on another population than that of the training.
    """
    if not only_as_trained(config):
        return scores.score_block(config, state, block, memories, of_clients=parameters, move=not config.common)
    held_part = cast(RowsBlock, held_out(block))
    if state.round < 1:
        raise RunError("the run stopped before its first round.", "Resume it first.")
    scored, nll, squares = losses(config, state, block, held_part, memories)
    return sums_with_errors(block.leaf, scored, {RUN: nll}, {} if squares is None else {RUN: squares})


def losses(
    config: PaperGradientEMConfig,
    state: PaperGradientEMState,
    block: RowsBlock,
    held: RowsBlock,
    known: KnownMemories | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """(C,) held-out rows that are scored, 0 of clients who remember nothing; (C,) their negative log-likelihood, nats,
    units of the data, summed; and of regressions (C,) their squared errors, summed.

    Raises ConfigError where this is not the population of the training.
    """
    if known is None and block.first < state.population:
        raise ConfigError(
            f"clients have what a run of algorithm {config.algorithm!r} gives them from the training alone.",
            "Evaluate it on the population that it was trained on, ingested with a held-out part.",
        )
    if known is None:  # clients who came after the training
        nothing = np.zeros(block.clients)
        return nothing, nothing, nothing if config.model == "regression" else None
    coordinates = coordinates_of(state)
    rows = rows_of(config, coordinates, held, block)
    memory = _filled(known)
    own = parameters(config, state, block, memory)
    units = log_scale(config, coordinates, block)
    found = rows.sizes * units - _log_likelihood(config, state, memory, own, rows)
    counted = np.where(known.known, rows.sizes, 0.0)
    if config.model != "regression":
        return counted, found, None
    return counted, found, np.exp(2 * units) * squared_errors(rows, own.theta, own.w)


def _filled(known: KnownMemories) -> Memory:
    """The memories, with covariances that are some where nobody remembers one."""
    memory = dict(known.memory)
    for name, one in (("covariance", lambda p: np.eye(p)), ("variances", lambda p: np.ones(p))):
        if name in memory:
            values = memory[name]
            there = known.known.reshape(-1, *[1] * (values.ndim - 1))
            memory[name] = np.where(there, values, one(values.shape[-1]))
    return memory


def _log_likelihood(
    config: PaperGradientEMConfig, state: PaperGradientEMState, memory: Memory, own: ClientParameters, held: Rows
) -> np.ndarray:
    """(C,) summed over the rows, nats, model's units."""
    clients = len(held.sizes)
    if config.algorithm == "pooled-em":
        y = held.x if held.y is None else np.column_stack([held.x, held.y])
        model = pooled.model_of(config, state.centres.shape[1])
        density = model.log_likelihood(pooled.parameters_of(config, state), y) if len(y) else np.zeros(0)
        return np.bincount(held.owners, density, clients)
    if config.algorithm != "local-fit":
        return e_step(held, own.theta, own.w).log_likelihood
    if held.y is not None:  # a noise variance of each of a client's regressions
        owners, variances = held.owners, memory["variances"]
        left = held.responses[:, None] - np.einsum("np,nrp->nr", held.x, own.theta[owners])
        logs = np.log(np.maximum(own.w, LOG_WEIGHT_FLOOR)) - 0.5 * np.log(2 * np.pi * variances)
        density = logsumexp(logs[owners] - 0.5 * left**2 / variances[owners], axis=1)
        return np.bincount(owners, density, clients)
    white = np.linalg.inv(np.linalg.cholesky(memory["covariance"])).transpose(0, 2, 1)
    x = np.einsum("np,npq->nq", held.x, white[held.owners])
    fit = e_step(Rows(x, None, held.ptr), np.matmul(own.theta, white), own.w).log_likelihood
    return cast(np.ndarray, fit - held.sizes * 0.5 * np.linalg.slogdet(memory["covariance"])[1])
