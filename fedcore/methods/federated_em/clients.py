"""What one leaf of clients computes in a run that is not private: local statistics, compressed differences, memories.

Vectorised over the clients. A client's part depends on its own rows, its own memory, the message and its own named
streams only. Weights w_i (summing to 1 over the population) stand for the paper's 1/n: m_i / N or one vote per client.

Source: Dieuleveut, Fort, Moulines, Robin 2021, Algorithms 1 and 2.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from fedcore.errors import PopulationError
from fedcore.methods.federated_em.codecs import Codec, Identity, check_finite
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.leaf_rows import LeafRows, client_means, rows_of
from fedcore.methods.federated_em.messages import FieldMessage, ObjectiveMessage, RoundMessage, TrialMessage
from fedcore.methods.mixture_models.contract import CurvedEM
from fedcore.population.blocks import ClientBlock
from fedcore.randomness import client_uniforms
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import FloatSum, Statistics

PARTICIPATION, BATCH, CODEC = "federated_em/participation", "federated_em/batch", "federated_em/codec"


# --- weights --------------------------------------------------------------------------------------------------------


def client_weights(config: FederatedEMConfig, sizes: np.ndarray, clients: float, rows: float) -> np.ndarray:
    """(C,) w_i: m_i / N, or 1 / n over the n clients that have rows; 0 without rows."""
    return sizes / rows if config.by_rows else (sizes > 0) / clients


def row_weights(
    config: FederatedEMConfig, leaf: LeafRows, observations: slice, clients: float, rows: float
) -> np.ndarray | None:
    """w_i / m_i of the client of each of these observations, up to the factor 1 / N; None if all are equal."""
    if config.by_rows:
        return None
    each = rows / (clients * np.maximum(leaf.sizes, 1.0))
    ends = leaf.ptr // leaf.unit
    first, last = np.searchsorted(ends, [observations.start, observations.stop - 1], "right") - 1
    counts = np.diff(np.clip(ends[first : last + 2], observations.start, observations.stop))
    return np.repeat(each[first : last + 1], counts)


def weighted_total(config, model: CurvedEM, theta, leaf: LeafRows, clients: float, rows: float) -> np.ndarray:
    """(q,) sum of w_i s_bar_i(theta): no client is told apart."""
    total = np.zeros(model.q)
    for observations, y in leaf.pieces():
        total += model.e_total(theta, y, row_weights(config, leaf, observations, clients, rows))
    return total / rows


def weighted_loss(config, model: CurvedEM, theta, leaf: LeafRows, clients: float, rows: float) -> float:
    """Sum of -w_i / m_i ln p(y_ij; theta), nats."""
    total = 0.0
    for observations, y in leaf.pieces():
        losses = -model.log_likelihood(theta, y)
        weights = row_weights(config, leaf, observations, clients, rows)
        total += float(losses.sum() if weights is None else losses @ weights)
    return total / rows


# --- passes before the rounds ---------------------------------------------------------------------------------------


def moments(config, model: CurvedEM, block: ClientBlock) -> Statistics:
    """sizes: clients with rows, observations, sum of m_i^2. moments: (3, d) number, sum and sum of squares of every
    column (in tables: every cell).
    """
    leaf = rows_of(block, unit=config.unit)
    check_rows(model, block, leaf)
    sizes = np.array([np.count_nonzero(leaf.sizes), leaf.sizes.sum(), np.sum(leaf.sizes**2)])
    if sp.issparse(leaf.y):
        total, squares = leaf.y.sum(axis=0), leaf.y.multiply(leaf.y).sum(axis=0)
        columns = np.vstack([np.full(leaf.y.shape[1], leaf.y.shape[0]), np.asarray(total), np.asarray(squares)])
    else:
        columns = np.zeros((3, config.unit * leaf.y.shape[1]))
        for _, rows in leaf.pieces():
            entries = np.asarray(rows, np.float64).reshape(-1, columns.shape[1])
            seen = np.isfinite(entries)
            y = np.where(seen, entries, 0.0)
            with np.errstate(over="ignore"):  # the server refuses an infinite sum
                columns += np.vstack([seen.sum(axis=0), y.sum(axis=0), np.sum(y * y, axis=0)])
    return {"sizes": FloatSum.at(block.leaf, sizes), "moments": FloatSum.at(block.leaf, columns)}


def check_rows(model: CurvedEM, block: ClientBlock, leaf: LeafRows) -> None:
    """Raises PopulationError that names the client, and the row among its own."""
    torn = np.flatnonzero(np.diff(leaf.ptr) % leaf.unit)
    if len(torn):  # rows of two clients would make one table
        raise PopulationError(
            f"client {block.first + torn[0]}: its rows do not make whole tables of {leaf.unit} rows.",
            "Pad missing rows with NaN.",
        )
    try:
        model.check_rows(leaf.y)
    except PopulationError as wrong:
        for client, (low, high) in enumerate(zip(leaf.ptr[:-1], leaf.ptr[1:], strict=True)):
            try:
                model.check_rows(leaf.y[low:high])
            except PopulationError as error:
                raise PopulationError(f"client {block.first + client}: {error.message}", error.remedy) from None
        raise wrong


def trials(config, model: CurvedEM, message: TrialMessage, block: ClientBlock) -> Statistics:
    """totals: (R, q) sum of w_i s_bar_i for each start; losses: (R,) the objectives there, without the penalty."""
    leaf, sizes = rows_of(block, message.scaling, config.unit), (message.clients, message.rows)
    totals = [weighted_total(config, model, theta, leaf, *sizes) for theta in message.thetas]
    losses = [weighted_loss(config, model, theta, leaf, *sizes) for theta in message.thetas]
    return {"totals": FloatSum.at(block.leaf, totals), "losses": FloatSum.at(block.leaf, losses)}


def field(config, model: CurvedEM, message: FieldMessage, block: ClientBlock) -> tuple[Statistics, Memory]:
    """V_{0,i} = h_i(S_0), and its weighted sum."""
    leaf = rows_of(block, message.scaling, config.unit)
    v = client_means(model, message.theta, leaf, np.ones(block.clients, bool))
    v -= message.s
    v[leaf.sizes == 0] = 0.0
    check_finite(v, block.first + np.arange(block.clients))
    weights = client_weights(config, leaf.sizes, message.clients, message.rows)
    return {"sum": FloatSum.at(block.leaf, weights @ v)}, {"V": v}


def objective(config, model: CurvedEM, message: ObjectiveMessage, block: ClientBlock) -> Statistics:
    leaf = rows_of(block, message.scaling, config.unit)
    loss = weighted_loss(config, model, message.theta, leaf, message.clients, message.rows)
    return {"loss": FloatSum.at(block.leaf, loss)}


# --- a round --------------------------------------------------------------------------------------------------------


def round_answer(
    config: FederatedEMConfig,
    model: CurvedEM,
    codec: Codec,
    message: RoundMessage,
    block: ClientBlock,
    memory: Memory | None,
) -> tuple[Statistics, Memory | None]:
    """One client step of Algorithm 1 or 2 for every active client of the leaf.

    sum:    (q,) sum over active clients of w_i Q_i
    costs:  (3,) active clients, conditional expectations, bits sent
    loss, total: objective and sum of w_i s_bar_i at theta, if they are monitored
    memory: (q,) sum of w_i V_i before the round, if it is audited
    """
    leaf, sizes = rows_of(block, message.scaling, config.unit), (message.clients, message.rows)
    if per_client(config, codec):
        statistics, memory = _clients(config, model, codec, message, block, leaf, memory)
    else:
        total = weighted_total(config, model, message.theta, leaf, *sizes)
        filled = np.count_nonzero(leaf.sizes)
        costs = [filled, leaf.sizes.sum(), filled * 64 * model.q]
        statistics = {
            "sum": FloatSum.at(block.leaf, total - _mass(config, leaf, *sizes) * message.s),
            "costs": FloatSum.at(block.leaf, costs),
        }
        memory = None
    if message.monitor:
        loss = weighted_loss(config, model, message.theta, leaf, *sizes)
        if per_client(config, codec):
            total = weighted_total(config, model, message.theta, leaf, *sizes)
        statistics |= {"loss": FloatSum.at(block.leaf, loss), "total": FloatSum.at(block.leaf, total)}
    return statistics, memory


def per_client(config: FederatedEMConfig, codec: Codec) -> bool:
    """Whether clients have to be told apart. Without a codec, with all clients and all rows they need not: then
    H = sum w_i s_i - S_k whatever the memories and alpha are.
    """
    everything = isinstance(codec, Identity) and config.participation == 1
    return not everything or config.batch is not None or config.variance_reduced


def remembers(config: FederatedEMConfig, codec: Codec) -> bool:
    """Whether clients keep V_i: not in the naive variant, and not where H does not depend on it."""
    return config.algorithm != "naive" and not (isinstance(codec, Identity) and config.participation == 1)


def _mass(config, leaf: LeafRows, clients: float, rows: float) -> float:
    return float(client_weights(config, leaf.sizes, clients, rows).sum())


def _clients(config, model, codec, message: RoundMessage, block, leaf: LeafRows, memory: Memory | None):
    clients, q = block.clients, model.q
    memory = {} if memory is None else dict(memory)
    if remembers(config, codec):
        memory.setdefault("V", np.zeros((clients, q)))
    if config.variance_reduced:  # also where nobody has rows: all leaves of a block remember the same
        memory.setdefault("S", np.zeros((clients, q)))
    weights = client_weights(config, leaf.sizes, message.clients, message.rows)
    statistics = {}
    if message.audit:
        v = memory.get("V")
        statistics["memory"] = FloatSum.at(block.leaf, np.zeros(q) if v is None else weights @ v)
    active = leaf.sizes > 0
    if message.threshold < 1:
        active &= _uniforms(message, PARTICIPATION, block)[:, 0] <= message.threshold
    total, costs = np.zeros(q), np.zeros(3)
    if active.any():
        chosen = slice(None) if active.all() else active  # a slice copies nothing
        delta, evaluations = _oracle(config, model, message, block, leaf, active, memory)
        delta -= message.s
        if "V" in memory:
            delta -= memory["V"][chosen]
        decoded, bits = codec.transmit(
            delta, _uniforms(message, CODEC, block, codec.draws)[chosen], block.first + np.flatnonzero(active)
        )
        total = weights[chosen] @ decoded
        if "V" in memory:
            moved = config.memory_rate(codec.omega) * decoded
            memory["V"] = _changed(memory["V"], chosen, moved + memory["V"][chosen])
        costs = np.array([np.count_nonzero(active), evaluations, bits.sum()], np.float64)
    statistics |= {"sum": FloatSum.at(block.leaf, total), "costs": FloatSum.at(block.leaf, costs)}
    return statistics, memory or None


def _oracle(config, model: CurvedEM, message: RoundMessage, block, leaf: LeafRows, active, memory: Memory):
    """(A, q) s_i of the active clients and the conditional expectations it took. VR-FedEM keeps s_i in the memory."""
    if message.oracle == "full":
        means, evaluations = client_means(model, message.theta, leaf, active), leaf.sizes[active].sum()
    else:
        batch = leaf.batch(_uniforms(message, BATCH, block, message.batch)[active], active)
        means, evaluations = model.e_mean(message.theta, batch.y, batch.ptr), batch.sizes.sum()
        if message.oracle == "recursive":
            means = memory["S"][active] + (means - model.e_mean(message.previous, batch.y, batch.ptr))
            evaluations *= 2
    if config.variance_reduced:
        memory["S"] = _changed(memory["S"], slice(None) if active.all() else active, means)
        means = means.copy()  # the caller goes on with them
    return means, evaluations


def _changed(kept: np.ndarray, chosen: slice | np.ndarray, rows: np.ndarray) -> np.ndarray:
    """kept (C, q) with these rows in place of the chosen ones; never changed in place."""
    if isinstance(chosen, slice):
        return rows
    changed = kept.copy()
    changed[chosen] = rows
    return changed


def _uniforms(message: RoundMessage, purpose: str, block, draws: int = 1) -> np.ndarray:
    return client_uniforms(message.seed, purpose, message.number, block.first, block.clients, max(draws, 1))
