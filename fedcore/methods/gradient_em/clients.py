"""The clients' side of FedGrEM: one round of Algorithm 1 for a leaf of clients.

`gradient_round` is the algorithm in the paper's order. Steps that are not in the paper are separate functions, which do
nothing in the paper's variant. The code is vectorised over the clients. A client's part depends only on the client's
rows, memory and named streams, and on the message.

Source: Tian, Weng, Feng 2024, Algorithm 1; Appendix D for sampled clients. The two sums per component,
caps of steps, guards and second starts are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedcore.methods.gradient_em import memory as memories
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.coordinates import rows_of, to_model, to_standardised
from fedcore.methods.gradient_em.messages import RoundMessage
from fedcore.methods.gradient_em.shrinkage import EstimatedPenalty
from fedcore.methods.mixture_models.local_steps import Rows, Sums, e_step, full_m_step, largest_curvature
from fedcore.methods.mixture_models.tiles import of_clients
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import client_uniforms
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import ArgMax, FloatSum, Statistic, Statistics

PARTICIPATION = "gradient_em/participation"
SAFE_CURVATURE = 1.8  # times 1 / the largest eigenvalue; 2 is the limit, and the eigenvalue is estimated from below
FARTHEST = 1e6  # a centre farther out than this, in the model's units, has diverged
MOST_HALVINGS = 5
SECOND_STEPS = 10  # EM steps from either start


class Active(NamedTuple):
    """The clients of a leaf that take part in a round, C of them, and the common centres. Model's units.

    block:  the leaf; among: (clients of the leaf,) bool, who takes part
    memory: theirs; rows: all their rows; n: (C,) how many
    v:      (R, p)
    """

    block: RowsBlock
    among: np.ndarray
    memory: Memory
    rows: Rows
    n: np.ndarray
    v: np.ndarray


class Parameters(NamedTuple):
    """theta^(k) and w^(k) of the active clients, model's units: (C, R, p), (C, R).

    shares: (C, R) what a client counts in the shared covariance; None: nothing
    fitted: centres that were fitted to these rows, by the number of coordinates of a row
    """

    theta: np.ndarray
    w: np.ndarray
    shares: np.ndarray | None = None
    fitted: float = 0.0


class LocalUpdate(NamedTuple):
    """What a local update makes of theta^(k)[t-1].

    estimate: (C, R, p) before the central update; w: (C, R) w^(k)[t]
    sums:     of the E-step
    memory:   of the clients, with what was found on the way
    """

    estimate: np.ndarray
    w: np.ndarray
    sums: Sums
    memory: Memory


Send = Callable[
    [GradientEMConfig, RoundMessage, Active, Parameters, LocalUpdate, np.ndarray],
    tuple[dict[str, Statistic], np.ndarray],
]


def gradient_round(
    config: GradientEMConfig, message: RoundMessage, block: RowsBlock, memory: Memory, send: Send | None = None
) -> tuple[Statistics, Memory]:
    """Round t of Algorithm 1, as far as it is the clients'. The statistics, in the model's units:

    centre:   (R, p + 1) the two sums of the central update, and
    spread:   (R, 3) the sums of the variance between clients, and
    scores:   of `apart.counts_of_largest`; or what `send` makes of the estimates, None: `sent`
    scatter:  sums of the shared covariance, the last entry its divisor, if it is estimated
    counts:   (8,) active clients, rows they used, their log-likelihood, pairs (client, component) that count, of these
              farther out than the penalty reaches, pairs that do not count, pairs that diverged, clients that took the
              second start
    movement: the largest change of an estimate, standardised units
    """
    if message.number == 1:
        memory = memories.at_first_round(config, message, block, memory)
    active = active_clients(config, message, block, memory)

    # theta^(k)[t-1]: the client's part of the last central update
    now = after_central_update(config, message, active)
    now, restarts = second_start(config, message, active, now)

    # Local update. E-step: w^(k)[t] = mean of P(z = r | x; w^(k)[t-1], theta^(k)[t-1]).
    # Gradient step: estimate = theta^(k)[t-1] + eta dQ/dtheta.
    new = local_update(config, message, active, now)
    new, diverged = restored(new, active.v)

    # Send the estimate for the central update; the weights stay with the client.
    kept, movement = remembered(config, message, active, new)
    counts = memories.effective_rows(active.n, kept["out"])
    statistics, beyond = (send or sent)(config, message, active, now, new, counts)
    statistics |= common_sums(config, active, now, new)
    statistics |= {"counts": counted(active, new, counts, beyond, diverged, restarts), "movement": movement}
    return statistics, {name: _with(value, active.among, kept[name]) for name, value in memory.items()}


# --- the paper's round ------------------------------------------------------------------------------------------------


def after_central_update(config: GradientEMConfig, message: RoundMessage, active: Active) -> Parameters:
    """The parameters after the last central update: the proximal step from the estimates towards the centres v that
    were made of them. In round 1, those of the start."""
    v = active.v
    t = to_model(config, message.coordinates, active.memory["theta"])
    w = active.memory["w"]
    if message.number == 1:
        return Parameters(t, w)  # there is no covariance to add to: no centre yet that a client could be far from
    penalty = memories.last_penalty(
        config, active.memory, active.n, v.shape[1], strength=message.last_penalty, between=message.between
    )
    theta = penalty.proximal_step(t, v)
    shares, fitted = penalty.covariance_shares(t, theta, v) if config.shared_covariance else (None, 0.0)
    return Parameters(theta, w, shares, fitted)


def local_update(config: GradientEMConfig, message: RoundMessage, active: Active, now: Parameters) -> LocalUpdate:
    """E-step and gradient step."""
    theta, memory, n = now.theta, active.memory, active.n
    capped = config.model == "regression" and message.curvature
    sums = e_step(active.rows, theta, now.w, second=capped, shares=now.shares)
    if sums.second is not None:
        memory = {**memory, "cap": SAFE_CURVATURE / np.maximum(largest_curvature(sums.second, n), 1e-12)}
    w = sums.mass / n[:, None]
    eta = memories.step_sizes(config, w, n, memory)
    theta = theta + eta[:, :, None] * (sums.gradient / n[:, None, None])
    return LocalUpdate(theta, w, sums, memory)


def remembered(
    config: GradientEMConfig, message: RoundMessage, active: Active, new: LocalUpdate
) -> tuple[Memory, ArgMax]:
    """The memory of the active clients after the round, and the largest change of an estimate."""
    theta = to_standardised(config, message.coordinates, new.estimate)
    step = np.abs(theta - active.memory["theta"]).max(axis=(1, 2), initial=0.0)
    out = memories.left_out(config, active.n, new.w, active.memory["out"])
    kept = {**new.memory, "theta": theta, "w": new.w, "out": out}
    if not len(step):
        return kept, ArgMax(0.0, active.block.first, {})
    at = int(np.argmax(step))
    return kept, ArgMax(float(step[at]), active.block.first + int(np.flatnonzero(active.among)[at]), {})


def sent(
    config: GradientEMConfig,
    message: RoundMessage,
    active: Active,
    now: Parameters,
    new: LocalUpdate,
    counts: np.ndarray,
) -> tuple[dict[str, Statistic], np.ndarray]:
    """What the clients send for the central update, and (C, R) bool, who is farther out than the penalty reaches.

    The sums of the centres and of the variance between clients, of full M-steps: gradient steps go a fraction of the
    way, and are extended. counts: (C, R) of `effective_rows`.
    """
    fraction = memories.m_step_fraction(config, new.w, active.n, new.memory)
    full = now.theta + (new.estimate - now.theta) / np.where(fraction > 0, fraction, 1.0)[:, :, None]
    penalty = EstimatedPenalty.of(counts, new.w, message.between, fraction, active.v.shape[1])
    sums, leaf = penalty.sums(full, active.v), active.block.leaf
    parts = {"centre": sums.centre, "spread": sums.variance, "scores": sums.largest}
    return {name: FloatSum.at(leaf, part) for name, part in parts.items()}, sums.beyond


def counted(
    active: Active, new: LocalUpdate, counts: np.ndarray, beyond: np.ndarray, diverged: int, restarts: int
) -> FloatSum:
    """The numbers of the round's metrics, in the order of `gradient_round`."""
    numbers = [
        len(active.n),
        active.n.sum(),
        new.sums.log_likelihood.sum(),
        np.count_nonzero(counts),
        np.count_nonzero(beyond),
        np.count_nonzero(counts == 0),
        diverged,
        restarts,
    ]
    return FloatSum.at(active.block.leaf, numbers)


# --- what is not in the paper's round ---------------------------------------------------------------------------------


def active_clients(config: GradientEMConfig, message: RoundMessage, block: RowsBlock, memory: Memory) -> Active:
    """All clients that have rows; or a sample of them (Appendix D)."""
    rows = rows_of(config, message.coordinates, block)
    among = rows.sizes > 0
    if message.participation < 1:
        uniforms = client_uniforms(message.seed, PARTICIPATION, message.number, block.first, block.clients)[:, 0]
        among &= uniforms <= message.participation
    x, ptr = of_clients(rows.x, rows.ptr, among)
    y = None if rows.y is None else of_clients(rows.y, rows.ptr, among)[0]
    own = {name: value[among] for name, value in memory.items()}
    v = to_model(config, message.coordinates, message.centres)
    return Active(block, among, own, Rows(x, y, ptr, rows.white), rows.sizes[among], v)


def second_start(
    config: GradientEMConfig, message: RoundMessage, active: Active, now: Parameters
) -> tuple[Parameters, int]:
    """In the rounds of second starts, the better end of EM steps from the client's parameters and from the centres v.

    The better end has the larger log-likelihood less penalty. Local fits end in poor optima; the centres are those of
    most clients. Also returns how many clients took the end from the centres.
    """
    if not config.starts_again(message.number):
        return now, 0
    theta, w = now.theta, now.w
    first = _penalised_em(config, message, active, theta, w)
    even = np.full(w.shape, 1.0 / w.shape[1])
    second = _penalised_em(config, message, active, np.broadcast_to(active.v, theta.shape), even)
    better = second[2] > first[2] + 1e-6 * np.abs(first[2])
    theta = np.where(better[:, None, None], second[0], first[0])
    w = np.where(better[:, None], second[1], first[1])
    return Parameters(theta, w), int(np.count_nonzero(better))


def _penalised_em(
    config: GradientEMConfig, message: RoundMessage, active: Active, theta: np.ndarray, w: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """theta, w and the objective (C,) of each client after `SECOND_STEPS` EM steps with the centres v fixed."""
    rows, v, counts = active.rows, active.v, np.broadcast_to(active.n[:, None], w.shape)
    for _ in range(SECOND_STEPS):
        sums = e_step(rows, theta, w, second=config.model == "regression")
        w = sums.mass / active.n[:, None]
        penalty = EstimatedPenalty.of(counts, w, message.between, np.ones(w.shape), v.shape[1])
        theta = penalty.proximal_step(full_m_step(theta, sums), v)
    return theta, w, e_step(rows, theta, w).log_likelihood - penalty.value(theta, v)


def restored(new: LocalUpdate, v: np.ndarray) -> tuple[LocalUpdate, int]:
    """A diverged estimate goes back to the common centre and its step is halved, five times; then it stays there. Also
    returns how many did."""
    estimate = new.estimate
    bad = ~np.isfinite(estimate).all(axis=2)
    farthest = FARTHEST * (1.0 + np.abs(v).max())
    bad |= np.abs(np.where(bad[:, :, None], 0.0, estimate)).max(axis=2, initial=0.0) > farthest
    if not bad.any():
        return new, 0
    halvings = new.memory["halvings"]
    halvings = np.where(bad, halvings + (halvings < MOST_HALVINGS), halvings).astype(np.int8)
    estimate = np.where(bad[:, :, None], v, estimate)
    return new._replace(estimate=estimate, memory={**new.memory, "halvings": halvings}), int(bad.sum())


def common_sums(config: GradientEMConfig, active: Active, now: Parameters, new: LocalUpdate) -> dict[str, Statistic]:
    """The sums of the shared covariance, if there is one."""
    if not config.shared_covariance:
        return {}
    sums = scatter_sums(config, new.sums, active.v.shape[1], now.fitted)
    return {"scatter": FloatSum.at(active.block.leaf, sums)}


def scatter_sums(config: GradientEMConfig, sums: Sums, p: int, fitted: float) -> np.ndarray:
    """The sums of products of the shared covariance and their divisor: rows less the parameters that were fitted to
    them, at least half the rows."""
    if sums.scatter is None:
        one = np.zeros(2 if config.model == "regression" else p * p + 1)
        return np.tile(one, (config.components, 1)) if config.covariance == "components" else one
    if config.covariance == "components":
        flat, mass = sums.scatter.reshape(len(sums.scatter), -1), np.asarray(sums.scatter_mass)
        free = np.maximum(mass - fitted / len(mass), 0.5 * mass)
        return np.column_stack([flat, free])
    parameters = fitted * (p if config.model == "regression" else 1)
    return np.append(sums.scatter.ravel(), max(sums.scatter_mass - parameters, 0.5 * sums.scatter_mass))


def _with(values: np.ndarray, among: np.ndarray, some: np.ndarray) -> np.ndarray:
    """A copy of values in which those of some clients are replaced."""
    values = values.copy()
    values[among] = some
    return values
