"""What one leaf of clients computes for FedGrEM: its start, and one round of Algorithm 1.

Vectorised over the clients. A client's part depends on its own rows, its own memory, the message and its own named
streams only.

Source: Tian, Weng, Feng 2024, Algorithm 1; Appendix D for sampled clients, batches, clipping and shared weights. The
two sums per component, caps of steps and guards are ours.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.gradient_em import central, shrinkage
from fedcore.methods.gradient_em import memory as remembered
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.frame import inward, outward, rows_of
from fedcore.methods.gradient_em.local_start import local_fits
from fedcore.methods.gradient_em.local_steps import Rows, Sums, e_step, full_m_step, largest_curvature
from fedcore.methods.gradient_em.state import MomentsMessage, RoundMessage, StartMessage, TotalsMessage
from fedcore.methods.gradient_em.tiles import of_clients
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import client_uniforms
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import ArgMax, FloatSum, Stack, Statistics

COMPARED, PARTICIPATION, BATCH = "gradient_em/compared", "gradient_em/participation", "gradient_em/batch"
SAFE_CURVATURE = 1.8  # times 1 / the largest eigenvalue; 2 is the limit, and the eigenvalue is estimated from below
FARTHEST = 1e6  # a centre farther out than this, in the model's units, has diverged
MOST_HALVINGS = 5
SECOND_STEPS = 10  # EM steps from either start


# --- before the rounds ----------------------------------------------------------------------------------------------


def moments(message: MomentsMessage, block: RowsBlock) -> Statistics:
    """moments: (3, d) number, sum and sum of squares of the columns."""
    x = block.x.astype(np.float64)
    sums = np.stack([np.full(x.shape[1], float(len(x))), x.sum(axis=0), np.einsum("ij,ij->j", x, x)])
    return {"moments": FloatSum.at(block.leaf, sums)}


def start(config: GradientEMConfig, message: StartMessage, block: RowsBlock) -> tuple[Statistics, Memory]:
    """The local fits, whose centres alone leave the clients.

    sizes:   (3,) clients with rows, rows, clients with a fit of their own
    largest: the client with the most rows
    centres: (c, 1 + R p) number and centres of the fitted clients that were chosen to be compared
    scatter: (q + 1,) sum over fitted clients of n_k times their covariance, and of n_k
    """
    rows = rows_of(config, message.frame, block)
    n = rows.sizes
    shape = (block.clients, config.components, rows.x.shape[1])
    memory = {"theta": np.zeros(shape), "w": np.full(shape[:2], 1.0 / config.components)}
    chosen, parts = np.zeros(block.clients, bool), np.zeros((block.clients, 1))
    covariance = np.zeros((block.clients, 0))
    if config.start == "local":
        fits = local_fits(
            rows,
            config.components,
            message.seed,
            block.first,
            starts=config.starts,
            ward=config.ward and rows.y is None,
            steps=config.start_steps,
        )
        memory = {"theta": outward(config, message.frame, fits.theta), "w": fits.w}
        if config.algorithm == "local-fit":
            memory["covariance" if rows.y is None else "variances"] = fits.covariance
        uniforms = client_uniforms(message.seed, COMPARED, 0, block.first, block.clients)[:, 0]
        chosen = fits.fitted & (uniforms <= message.threshold)
        own = fits.covariance.reshape(block.clients, -1)
        if rows.y is not None:
            own = (fits.w * fits.covariance).sum(axis=1, keepdims=True)
        covariance, parts = own * fits.fitted[:, None], fits.fitted[:, None].astype(np.float64)
    memory["started"] = parts[:, 0].astype(np.int8)
    numbers = (block.first + np.flatnonzero(chosen)).astype(np.float64)
    sent = np.column_stack([numbers, memory["theta"][chosen].reshape(len(numbers), shape[1] * shape[2])])
    most = int(np.argmax(n)) if len(n) else 0
    return {
        "sizes": FloatSum.at(block.leaf, [np.count_nonzero(n), n.sum(), parts.sum()]),
        "largest": ArgMax(float(n[most]), block.first + most, {}),
        "centres": Stack({block.first: sent}),
        "scatter": FloatSum.at(block.leaf, np.concatenate([n @ covariance, n @ parts])),
    }, memory


def totals(config: GradientEMConfig, message: TotalsMessage, block: RowsBlock, memory: Memory):
    """Sum of the aligned starts of the clients that have one, and their number (tgmm)."""
    own = memory["started"].astype(bool)
    memory = remembered.aligned(memory, message.orders, message.centres, block)
    memory["source"] = np.where(own[:, None, None], memory["theta"], 0.0)
    return {
        "totals": FloatSum.at(block.leaf, memory["source"].sum(axis=0)),
        "sources": FloatSum.at(block.leaf, float(own.sum())),
    }, memory


# --- a round --------------------------------------------------------------------------------------------------------


def gradient_round(
    config: GradientEMConfig, message: RoundMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """Local and central update of Algorithm 1, as far as they are the clients'.

    centre:   (R, p + 1) the two sums of the central update, in the model's units; or
    sent:     (C, R, p + 1) the clients' estimates and what they count, if the server solves it (`central`)
    spread:   (R, 3) the sums of the clients' spread around the centres, if it is estimated
    weights:  (R + 1,) the two sums of the weights' update, if they are shared
    scatter:  sums of the shared covariance, the last entry its divisor, if it is estimated
    counts:   (8,) active clients, rows they used, their log-likelihood, pairs (client, component) that count, of these
              apart from the centre, pairs that do not count, pairs that diverged, clients that took the second start
    movement: the largest change of a centre before the central update, standardised units
    """
    memory = begun(config, message, block, memory)
    rows = rows_of(config, message.frame, block)
    n = rows.sizes
    active = n > 0
    if message.threshold < 1:
        uniforms = client_uniforms(message.seed, PARTICIPATION, message.number, block.first, block.clients)[:, 0]
        active &= uniforms <= message.threshold
    mine = {name: value[active] for name, value in memory.items()}
    n, v = n[active], inward(config, message.frame, message.centres)
    theta = inward(config, message.frame, mine["theta"])
    shares, fitted, seconds = None, 0.0, 0
    if message.number > 1:
        theta, shares, fitted = _own_parameters(config, message, theta, mine, n, v)
    w = mine["w"]
    if config.share_weights and message.number > 1:
        w = remembered.shared_weights(message.weights, message.weight_prox, w, n)
    if config.starts_again(message.number):
        theta, w, seconds = _second_start(config, message, _of_active(rows, active), theta, w, n, v)
        shares = None
    used, before = _used_rows(config, message, rows, active, block), theta
    new, w, sums, mine = _local_update(config, message, used, theta, w, n, mine, shares)
    new, diverged = _restored(new, v, mine)
    changed = outward(config, message.frame, new)
    step = np.abs(changed - mine["theta"]).max(axis=(1, 2), initial=0.0)
    mine |= {"theta": changed, "w": w, "out": remembered.left_out(config, n, w, mine["out"])}
    counts = remembered.effective_rows(config, n, w, mine["out"])
    if config.estimated:
        share = remembered.share_of_full_step(config, message.shrink, w, n, mine)
        seen = np.minimum(counts, used.sizes[:, None])  # an estimate from a batch has the noise of a batch
        by = shrinkage.pull(seen, w, message.spread, share, config.limit, v.shape[1])
        full = before + (new - before) / np.where(share > 0, share, 1.0)[:, :, None]
        answer = shrinkage.answer(full, v, by, config.limit)
        apart = answer.beyond
    else:
        tau = central.thresholds(message.penalty, counts)
        apart = (counts > 0) & (central.distances(new, v) > tau)
    numbers = [
        len(n),
        used.sizes.sum(),
        sums.log_likelihood.sum(),
        np.count_nonzero(counts),
        np.count_nonzero(apart),
        np.count_nonzero(counts == 0),
        diverged,
        seconds,
    ]
    statistics = {"counts": FloatSum.at(block.leaf, numbers), "movement": _largest(step, active, block.first)}
    if config.estimated:
        statistics |= {
            "centre": FloatSum.at(block.leaf, answer.centre),
            "spread": FloatSum.at(block.leaf, answer.spread),
        }
    elif config.central == "step":
        a = central.huber_weights(new, v, counts, tau)
        statistics["centre"] = FloatSum.at(block.leaf, central.weighted_sums(new, a))
    else:
        sent = np.zeros((block.clients, *new.shape[1:-1], new.shape[2] + 1))
        sent[active] = np.concatenate([new, counts[:, :, None]], axis=2)
        statistics["sent"] = Stack({block.first: sent})
    if config.share_weights:
        statistics["weights"] = FloatSum.at(block.leaf, _weight_sums(message, w, n))
    if config.shared_covariance:
        statistics["scatter"] = FloatSum.at(block.leaf, _scatter(sums, rows.x.shape[1], rows.y is not None, fitted))
    kept = {}
    for name, value in memory.items():
        whole = value.copy()
        whole[active] = mine[name]
        kept[name] = whole
    return statistics, kept


def begun(config: GradientEMConfig, message: RoundMessage, block: RowsBlock, memory: Memory) -> Memory:
    """The memory at the beginning of the round; in round 1 aligned, and with what later rounds keep."""
    if message.number > 1 or "started" not in memory:
        return memory
    memory = remembered.aligned(memory, message.orders, message.centres, block)
    if config.algorithm != "fedgrem":
        return memory
    memory["halvings"] = np.zeros(memory["w"].shape, np.int8)
    memory["out"] = np.zeros(memory["w"].shape, np.int8)
    if config.step == "paper":
        memory["step"] = config.step_size / np.maximum(memory["w"], config.weight_floor)
    if config.model == "regression" and config.cap_steps:
        memory["cap"] = np.full(memory["w"].shape, np.inf)
    return memory


def _own_parameters(config, message, theta, mine, n, v):
    """theta after the last central update; the share of a pair in the scatter: min(1, tau / distance), or what falls to
    0 for clients far from the others; the parameters that were fitted to the rows of the scatter."""
    counts = remembered.effective_rows(config, n, mine["w"], mine["out"])
    if config.estimated:
        p, share = v.shape[1], remembered.share_of_full_step(config, message.shrink_before, mine["w"], n, mine)
        by = shrinkage.pull(counts, mine["w"], message.spread, share, config.limit, p)
        theta = shrinkage.drawn(theta, v, by)
        z = np.nan_to_num(shrinkage.deviations(theta, v, by, p), nan=np.inf)
        shares = np.clip(3.0 - z / config.limit, 0.0, 1.0)
        free = shares * by.spread / (by.spread + by.noise)
        return theta, shares, float(free.sum()) * (p if config.model == "regression" else 1)
    tau = central.thresholds(message.prox, counts)
    found = np.where(counts[:, :, None] > 0, central.pulled(theta, v, tau), v)
    shares = None
    if config.shared_covariance:
        shares = central.huber_weights(theta, v, (counts > 0).astype(np.float64), tau)
    return found, shares, 0.0


def _second_start(config, message: RoundMessage, rows: Rows, theta, w, n, v):
    """EM steps with the pull to fixed centres, from the client's own parameters and from the centres themselves; the
    one of the larger log-likelihood less penalty, and how many clients took the latter. Local fits end in poor optima;
    the centres are those of most clients."""
    first = _penalised(config, message, rows, theta, w, n, v)
    even = np.full(w.shape, 1.0 / w.shape[1])
    second = _penalised(config, message, rows, np.broadcast_to(v, theta.shape), even, n, v)
    better = second[2] > first[2] + 1e-6 * np.abs(first[2])
    theta = np.where(better[:, None, None], second[0], first[0])
    w = np.where(better[:, None], second[1], first[1])
    return theta, w, int(np.count_nonzero(better))


def _penalised(config, message: RoundMessage, rows: Rows, theta, w, n, v):
    """theta, w and the objective of each client after some EM steps."""
    counts = np.broadcast_to(n[:, None], w.shape)
    for _ in range(SECOND_STEPS):
        sums = e_step(rows, theta, w, second=config.model == "regression", clip=config.gradient_clip)
        w = sums.mass / n[:, None]
        by = shrinkage.pull(counts, w, message.spread, np.ones(w.shape), config.limit, v.shape[1])
        theta = shrinkage.drawn(full_m_step(theta, sums), v, by)
    fit = e_step(rows, theta, w).log_likelihood
    return theta, w, fit - shrinkage.penalty(theta, v, by)


def _used_rows(config, message: RoundMessage, rows: Rows, active: np.ndarray, block) -> Rows:
    """Rows of the active clients: all of them, or a batch drawn with replacement."""
    rows = _of_active(rows, active)
    if config.batch is None:
        return rows
    x, y, ptr = rows.x, rows.y, rows.ptr
    uniforms = client_uniforms(message.seed, BATCH, message.number, block.first, block.clients, config.batch)[active]
    sizes = np.diff(ptr)[:, None]
    at = (ptr[:-1, None] + np.minimum((uniforms * sizes).astype(np.int64), sizes - 1)).ravel()
    batch = np.arange(len(ptr), dtype=np.int64) * config.batch
    return Rows(x[at], None if y is None else y[at], batch)


def _of_active(rows: Rows, active: np.ndarray) -> Rows:
    x, ptr = of_clients(rows.x, rows.ptr, active)
    return Rows(x, None if rows.y is None else of_clients(rows.y, rows.ptr, active)[0], ptr)


def _local_update(config, message: RoundMessage, rows: Rows, theta, w, n, mine: Memory, shares):
    """E- and gradient steps: new theta, w, the sums of the first E-step, and the clients' memory."""
    capped = config.model == "regression" and config.cap_steps
    used, rate, first = rows.sizes, 1.0 if config.batch is None else config.batch_weight, None
    if message.number == 1:
        shares = None  # there is no common centre yet that a client could be apart from
    for step in range(config.local_steps):
        sums = e_step(
            rows,
            theta,
            w,
            second=capped and message.curvature and step == 0,
            clip=config.gradient_clip,
            shares=shares if step == 0 else None,
        )
        if sums.second is not None:
            mine = {**mine, "cap": SAFE_CURVATURE / np.maximum(largest_curvature(sums.second, used), 1e-12)}
        first = first or sums
        w = (1.0 - rate) * w + rate * sums.mass / used[:, None]
        eta = remembered.step_sizes(config, message.shrink, w, n, mine)
        theta = theta + eta[:, :, None] * (sums.gradient / used[:, None, None])
    return theta, w, first, mine


def _restored(new: np.ndarray, v: np.ndarray, mine: Memory) -> tuple[np.ndarray, int]:
    """A diverged estimate goes back to the common centre and its step is halved, five times; then it stays there."""
    bad = ~np.isfinite(new).all(axis=2)
    bad |= np.abs(np.where(bad[:, :, None], 0.0, new)).max(axis=2, initial=0.0) > FARTHEST * (1.0 + np.abs(v).max())
    if not bad.any():
        return new, 0
    mine["halvings"] = np.where(bad, mine["halvings"] + (mine["halvings"] < MOST_HALVINGS), mine["halvings"])
    mine["halvings"] = mine["halvings"].astype(np.int8)
    return np.where(bad[:, :, None], v, new), int(bad.sum())


def _largest(step: np.ndarray, active: np.ndarray, first: int) -> ArgMax:
    if not len(step):
        return ArgMax(0.0, first, {})
    at = int(np.argmax(step))
    return ArgMax(float(step[at]), first + int(np.flatnonzero(active)[at]), {})


def _weight_sums(message: RoundMessage, w: np.ndarray, n: np.ndarray) -> np.ndarray:
    counts = n[:, None]
    a = central.huber_weights(
        w[:, None], message.weights[None], counts, central.thresholds(message.weight_penalty, counts)
    )
    return central.weighted_sums(w[:, None], a)[0]


def _scatter(sums: Sums, p: int, regression: bool, fitted: float) -> np.ndarray:
    """The sum and its divisor: rows less the parameters that were fitted to them, at least half the rows."""
    size = 1 if regression else p * p
    if sums.scatter is None:
        return np.zeros(size + 1)
    return np.append(sums.scatter.ravel(), max(sums.scatter_mass - fitted, 0.5 * sums.scatter_mass))
