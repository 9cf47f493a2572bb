"""Private EM, in the space of statistics, from sums with noise; the privacy unit is a client.

    rows      standardised by public constants, scaled down to a public L2 norm where they are longer
    client    c_i = clip_C( D^-1 (s_i - S_k) ) on an integer grid, s_i the mean statistic of its rows; 0 without rows
    release   sum c_i + Gaussian noise, by the engine
    server    H = D release / n, n the declared number of clients; S_{k+1} = S_k + gamma H inside the domain

A run that continues a series of private runs takes shorter steps: see `series.py`.

Every client answers in every round, and no amplification by sampling is claimed: T releases of equal privacy cost.
Clients keep no memory. The warm start, the scaling and D are public, and only released values shorten a step.
A client changes the sum by at most C (add or remove) or 2 C (replace one): docs/privacy/federated-em.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.federated_em import models, series, start
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.given import precision_of_start
from fedcore.methods.federated_em.leaf_rows import LeafRows, rows_of
from fedcore.methods.federated_em.messages import ReleaseMessage, plain_scaling
from fedcore.methods.federated_em.series import UNKNOWN, Precision
from fedcore.methods.federated_em.server import damped_step, decreased_step, guarded_step, planned_step
from fedcore.methods.federated_em.start import MARGIN, Step
from fedcore.methods.federated_em.state import FederatedEMState, empty, pack
from fedcore.methods.mixture_models.contract import CurvedEM
from fedcore.methods.mixture_models.initialisation import random_parameters
from fedcore.methods.mixture_models.mixture import Mixture
from fedcore.methods.mixture_models.row_view import RowView
from fedcore.population.blocks import RowsBlock
from fedcore.privacy.grid import GRID_NORM, bound_norms, grid_step
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts, RoundInfo
from fedcore.rounds.statistics import IntegerSum, Statistics

ARGUMENT = "docs/privacy/federated-em.md"
SPREADS = {"add_or_remove_one": 1.0, "replace_one": 2.0}  # sensitivity of a release, in clips
CLIPPED_TOGETHER = 2**16  # numbers that are clipped at a time, so that they stay in the cache
EINSUM_PIECE = 2**13  # numbers of all rows together after which einsum begins a new sum; no shorter row is cut by that


# --- plan and state -------------------------------------------------------------------------------------------------


def plan(config: FederatedEMConfig, public: PublicFacts) -> list[PlannedRelease]:
    """T releases of equal privacy cost; the costs, rounded up, sum to at most public.rho. They are the same from any
    start, so they are known before there is one."""
    if public.rho is None or not public.rho > 0:
        raise ConfigError(
            "a private federated EM run needs a privacy budget.",
            "Set a budget for the population, or choose another algorithm.",
        )
    _nominal(config, public)
    q, rounds = _model(config, public).q, config.all_rounds
    sensitivity = round(SPREADS[public.relation] * GRID_NORM)
    rho = public.rho
    while True:
        # Costs round up, hence a hair is kept back; the loop ends because the hair grows.
        rho *= 1.0 - 1e-12
        multiplier = math.sqrt(0.5 * rounds / rho)
        releases = [
            PlannedRelease(
                release_name(number),
                number,
                (q,),
                sensitivity,
                multiplier,
                ARGUMENT,
                "one clipped vector for each client",
                optional=number > 1,
            )
            for number in range(1, rounds + 1)
        ]
        prices = [release.rho for release in releases]
        if max(sum(prices), math.fsum(prices)) <= public.rho:
            return releases


def _model(config: FederatedEMConfig, public: PublicFacts) -> CurvedEM:
    if public.warm_start is None:
        return models.model_of(config, plain_scaling(public.features))
    return start.public_model(config, public)


def release_name(number: int) -> str:
    """Planned name of the release of round 1 .. T."""
    return f"field_{number:04d}"


def precision_after(config: FederatedEMConfig, public: PublicFacts, past: Precision) -> Precision:
    """What a run with these facts leaves, if no step is cut back. past: as it counts in the run."""
    noise, rounds = _planned_noise(config, public), config.all_rounds
    steps = [decreased_step(config, config.step(0.0, 1.0), number) for number in range(rounds)]
    if not past.known:
        return series.of_first_run(steps[-1], noise, rounds)
    for planned in steps:
        gamma = past.step(planned, noise)
        past = past.after(gamma, gamma, noise)
    return past


def _planned_noise(config: FederatedEMConfig, public: PublicFacts) -> float:
    """The variance of the noise in an entry of D^-1 H; all releases have the same."""
    return (plan(config, public)[0].scale * grid_step(config.private_run.clip) / _nominal(config, public)) ** 2


def _known_before(config: FederatedEMConfig, public: PublicFacts) -> Precision:
    return precision_of_start(config, public, _planned_noise(config, public))


def accumulated_budget(config: FederatedEMConfig, public: PublicFacts) -> float:
    """rho of a run without a series that would end with as little noise as this one; without one that of the run."""
    past = _known_before(config, public)
    alone, pooled = (precision_after(config, public, known).variance for known in (UNKNOWN, past))
    assert public.rho is not None  # it was planned with
    return public.rho * alone / pooled


def budget_sketch(config: FederatedEMConfig, public: PublicFacts, planned: Sequence[PlannedRelease]) -> dict[str, Any]:
    """noise: standard deviation in an entry of the last statistic, in units of D, with all that the series released;
    accumulated_rho: of a single run with as little noise."""
    past = _known_before(config, public)
    return {
        "rounds": config.all_rounds,
        "releases": len(planned),
        "noise": math.sqrt(precision_after(config, public, past).variance),
        "accumulated_rho": accumulated_budget(config, public),
    }


def likely_warm_start(config: FederatedEMConfig, public: PublicFacts) -> dict[str, np.ndarray]:
    """Parameters of the start, or any of the model, and how precise a run with these facts would leave them."""
    arrays: dict[str, np.ndarray] = dict(public.warm_start or {})
    if not arrays:
        d = public.features
        arrays = {**random_parameters(_model(config, public), np.ones(d), np.ones(d), seed=0)}
    if public.rho is None:
        return arrays
    past = _known_before(config, public)
    return arrays | series.arrays_of(precision_after(config, public, past))


def init(config: FederatedEMConfig, public: PublicFacts) -> FederatedEMState:
    """Raises ConfigError without a public start, or with one outside the model's domain."""
    model = start.public_model(config, public)
    s = model.statistic_of(start.public_parameters(public, model))
    if not model.admissible(s, MARGIN):
        raise ConfigError("the public start is outside the domain of the model.", "Start from other parameters.")
    flat, layout = pack(model.maximise(s))
    scaling = start.public_scaling(config, public)
    past = _known_before(config, public)
    return empty(
        phase="rounds",
        seed=public.seed,
        clients=float(_nominal(config, public)),
        centre=scaling.centre,
        scale=scaling.scale,
        variance=scaling.variance,
        mean=scaling.mean,
        statistic=s,
        theta=flat,
        previous=flat,
        layout=layout,
        memory=np.zeros(model.q),
        gamma=config.step(0.0, 1.0),
        part_scales=start.part_scales(public, model.q),
        multipliers=np.array([release.noise_multiplier for release in plan(config, public)]),
        spread=SPREADS[public.relation],
        pooled_weight=past.weight,
        pooled_variance=past.variance,
    )


def _nominal(config: FederatedEMConfig, public: PublicFacts) -> int:
    nominal = config.private_run.nominal_clients or public.nominal_clients
    if nominal is None:
        raise ConfigError(
            "a private federated EM run needs a declared number of clients, because the exact one is not public.",
            "Pass --set nominal_clients=N, or declare it at ingest (`--declared-clients N`).",
        )
    return nominal


def message(config: FederatedEMConfig, state: FederatedEMState) -> ReleaseMessage | None:
    if state.phase == "done":
        return None
    bound = config.private_run.record_bound or 3.0 * math.sqrt(len(state.variance))
    return ReleaseMessage(
        release_name(state.round + 1),
        state.parameters(),
        state.statistic,
        state.scaling(),
        state.part_scales,
        config.private_run.clip,
        bound,
    )


# --- clients --------------------------------------------------------------------------------------------------------


def client_update(config: FederatedEMConfig, model: CurvedEM, message: ReleaseMessage, block: RowsBlock) -> Statistics:
    """The leaf's exact sum on the grid, (q,) int64, and nothing else.

    A client's contribution is a function of the client's rows only, to the last bit. If it moved another client's
    contribution by a grid step, the sensitivity would not hold exactly. Mixtures compute all clients at once and keep
    them apart (`fedcore.methods.mixture_models.client_sums`); other models compute them one by one. No rows make this
    fail or warn: that would be visible without noise.
    """
    total, missing = np.zeros(model.q, np.int64), models.factory_of(config).missing
    # Unusable parameters fail for all clients alike: mixtures prepare them before they look at rows.
    if not isinstance(model, Mixture):
        model.e_mean(message.theta, np.zeros((0, block.features)), np.zeros(2, np.int64))
    with np.errstate(all="ignore"):
        if isinstance(model, Mixture):
            view = RowView(block.x, message.scaling.centre, message.scaling.scale, message.bound)
            for _, part in LeafRows(view, block.ptr, np.diff(block.ptr).astype(np.float64)).portions():
                grid = clipped_on_grid(model, message, part)
                total += (np.ones(len(grid)) @ grid).astype(np.int64)  # exact: whole numbers far below 2**53
            return {message.release: IntegerSum(total)}
        for client in range(block.clients):
            leaf = rows_of(block.slice(client, client + 1, block.leaf), message.scaling)
            grid = clipped_on_grid(model, message, bounded_rows(leaf, message.bound, missing))
            total += grid[0].astype(np.int64)
    return {message.release: IntegerSum(total)}


def bounded_rows(leaf: LeafRows, bound: float, missing: bool) -> LeafRows:
    """The rows scaled down to L2 norm `bound`, without those that hold an infinity or, unless entries may be missing,
    a NaN."""
    y = np.asarray(leaf.y)
    usable = ~(np.isinf(y) if missing else ~np.isfinite(y)).any(axis=1)
    y = y[usable]
    with np.errstate(over="ignore"):
        norms = np.sqrt(np.nansum(y * y, axis=1))
    y = y * np.minimum(1.0, bound / np.maximum(norms, bound))[:, None]
    ptr = np.concatenate([[0], np.cumsum(usable)])[leaf.ptr]
    return LeafRows(y, ptr, np.diff(ptr).astype(np.float64))


def clipped_on_grid(model: CurvedEM, message: ReleaseMessage, leaf: LeafRows) -> np.ndarray:
    """(C, q) float64 whole numbers z with sum z**2 <= 2**32 exactly, for every client: D^-1 (s_i - S_k), scaled down to
    norm C where it is longer, in grid steps and truncated towards zero. 0 for a client without rows, and for one whose
    statistic is not finite or cannot be computed.
    """
    grid, rows = _client_means(model, message, leaf)
    step = max(1, CLIPPED_TOGETHER // model.q)
    for low in range(0, len(grid), step):
        _clip(grid[low : low + step], rows[low : low + step] > 0, message)
    return grid


def _client_means(model: CurvedEM, message: ReleaseMessage, leaf: LeafRows) -> tuple[np.ndarray, np.ndarray]:
    """(C, q) means of the clients' usable rows, and how many rows these are."""
    if isinstance(model, Mixture):
        return model.client_means(message.theta, leaf.y, leaf.ptr)
    try:
        return model.e_mean(message.theta, leaf.y, leaf.ptr), leaf.sizes
    except np.linalg.LinAlgError:  # a covariance of the columns that this client has, singular by rounding
        return np.full((len(leaf.sizes), model.q), np.nan), leaf.sizes


def _clip(means: np.ndarray, filled: np.ndarray, message: ReleaseMessage) -> None:
    """`clipped_on_grid` in place; filled: (C,) bool. Every operation is of one entry or along one row."""
    means -= message.s
    if (message.part_scales != 1.0).any():
        means /= message.part_scales
    if means.shape[1] <= EINSUM_PIECE:
        squares = np.einsum("ij,ij->i", means, means)
    else:
        squares = np.array([np.einsum("j,j->", row, row) for row in means])
    norms = np.sqrt(squares)
    usable = np.isfinite(norms) & filled
    means *= (np.minimum(1.0, message.clip / np.maximum(norms, message.clip)) / grid_step(message.clip))[:, None]
    np.trunc(means, out=means)
    if not usable.all():
        means[~usable] = 0.0
    long = np.flatnonzero(np.einsum("ij,ij->i", means, means) > GRID_NORM**2)  # exact: whole numbers below 2**53
    if len(long):
        q = means.shape[1]
        means[long] = bound_norms(means[long].ravel(), np.arange(len(long) + 1) * q).reshape(-1, q)


# --- server ---------------------------------------------------------------------------------------------------------


def server_update(config: FederatedEMConfig, state: FederatedEMState, published: np.ndarray) -> Step:
    """published: (q,) int64, the noisy grid sum. The next state and its RoundInfo depend on published values only."""
    model, number = models.model_of(config, state.scaling()), state.round + 1
    field = published * grid_step(config.private_run.clip) * state.part_scales / state.clients
    past, noise = Precision(state.pooled_weight, state.pooled_variance), noise_of(config, state)
    wanted = planned_step(config, state)
    if past.known:
        wanted = past.step(wanted, noise)
        s, _, gamma, halvings = guarded_step(
            model, state.parameters(), state.statistic, field, wanted, config.variant.safeguards
        )
    else:
        s, gamma, halvings = damped_step(model, state.statistic, field, wanted)
    theta, _ = pack(model.maximise(s, start=state.parameters()))
    precision, last = past, number == len(state.multipliers)
    if past.known:
        precision = past.after(gamma, wanted, noise)
    elif last:
        precision = series.of_first_run(wanted, noise, number)
    info = RoundInfo(
        {
            "noise_multiplier": float(state.multipliers[state.round]),
            "field_norm": float(field @ field),
            "gamma": gamma,
            "halvings": float(halvings),
            "movement": float(np.linalg.norm(theta - state.theta)),
        }
    )
    after = replace(
        state,
        phase="done" if last else "rounds",
        round=number,
        statistic=s,
        theta=theta,
        previous=state.theta,
        pooled_weight=precision.weight,
        pooled_variance=precision.variance,
    )
    return after, info


def noise_of(config: FederatedEMConfig, state: FederatedEMState) -> float:
    """The variance of the noise in an entry of D^-1 H; all releases have the same."""
    return (config.private_run.clip * state.spread * float(state.multipliers[0]) / state.clients) ** 2


def pooled_in_words(config: FederatedEMConfig, state: FederatedEMState) -> str:
    """Describe what a run gained from the earlier runs of its series; empty for other runs."""
    rounds = len(state.multipliers)
    gamma = decreased_step(config, state.gamma, rounds - 1)
    alone = series.of_first_run(gamma, noise_of(config, state), rounds)
    if not (state.pooled_weight and alone.known) or state.pooled_variance == alone.variance:
        return ""
    share = math.sqrt(state.pooled_variance / alone.variance)
    return (
        f"Pooled with earlier runs of the series: {share:.0%} of the noise that the statistics of this run alone have."
    )
