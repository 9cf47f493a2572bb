"""What one leaf of clients computes in a run that is not private: local statistics, compressed differences, memories.

Vectorised over the clients. A client's part depends on its own rows, its own memory, the message and its own named
streams only. Weights w_i (summing to 1 over the population) stand for the paper's 1/n: m_i / N or one vote per client.

Source: Dieuleveut, Fort, Moulines, Robin 2021, Algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from fedcore.aggregation import FloatSum, Statistics
from fedcore.federated_em.codecs import Codec, Identity, check_finite
from fedcore.federated_em.config import FederatedEMConfig
from fedcore.federated_em.messages import (
    FieldMessage,
    ObjectiveMessage,
    RoundMessage,
    Scaling,
    TrialMessage,
)
from fedcore.models.contract import CurvedEM, Rows
from fedcore.population.blocks import ClientBlock, CountsBlock
from fedcore.randomness import client_uniforms
from fedcore.rounds import Memory

PARTICIPATION, BATCH, CODEC = "federated_em/participation", "federated_em/batch", "federated_em/codec"


# --- rows and weights -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeafRows:
    """The rows of C clients. y: (N, d); ptr: (C + 1,); sizes: (C,) float64 observations of each client.

    unit: rows of an observation: 1, or those of a table.
    """

    y: Rows
    ptr: np.ndarray
    sizes: np.ndarray
    unit: int = 1

    def of(self, chosen: np.ndarray) -> LeafRows:
        """The rows of some clients. chosen: (C,) bool."""
        if chosen.all():
            return self
        rows = np.diff(self.ptr)
        ptr = np.concatenate([[0], np.cumsum(rows[chosen])])
        return LeafRows(self.y[np.repeat(chosen, rows)], ptr, self.sizes[chosen], self.unit)

    def batch(self, uniforms: np.ndarray) -> LeafRows:
        """b observations of each client, drawn with replacement. uniforms: (C, b); no client may be without rows."""
        clients, b = uniforms.shape
        own = np.minimum((uniforms * self.sizes[:, None]).astype(np.int64), self.sizes[:, None].astype(np.int64) - 1)
        at = (self.ptr[:-1, None] + own * self.unit)[:, :, None] + np.arange(self.unit)
        ptr = np.arange(clients + 1) * (b * self.unit)
        return LeafRows(self.y[at.ravel()], ptr, np.full(clients, float(b)), self.unit)


def rows_of(block: ClientBlock, scaling: Scaling | None = None, unit: int = 1) -> LeafRows:
    """A client of a population of counts has one row: its counts."""
    if isinstance(block, CountsBlock):
        ptr = np.arange(block.clients + 1)
        return LeafRows(sp.csr_matrix(block.csr, dtype=np.float64), ptr, np.ones(block.clients))
    y = block.x.astype(np.float64)
    if scaling is not None and len(scaling.centre):
        y = (y - scaling.centre) / scaling.scale
    return LeafRows(y, block.ptr, np.diff(block.ptr) / unit, unit)


def client_weights(config: FederatedEMConfig, sizes: np.ndarray, clients: float, rows: float) -> np.ndarray:
    """(C,) w_i: m_i / N, or 1 / n over the n clients that have rows; 0 without rows."""
    return sizes / rows if config.by_rows else (sizes > 0) / clients


def row_weights(config: FederatedEMConfig, leaf: LeafRows, clients: float, rows: float) -> np.ndarray | None:
    """(observations,) w_i / m_i of every one's client, up to the factor 1 / N; None if all are equal."""
    if config.by_rows:
        return None
    each = rows / (clients * np.maximum(leaf.sizes, 1.0))
    return np.repeat(each, leaf.sizes.astype(np.int64))


def weighted_total(config, model: CurvedEM, theta, leaf: LeafRows, clients: float, rows: float) -> np.ndarray:
    """(q,) sum of w_i s_bar_i(theta): no client is told apart."""
    if not leaf.sizes.any():
        return np.zeros(model.q)
    return model.e_total(theta, leaf.y, row_weights(config, leaf, clients, rows)) / rows


def weighted_loss(config, model: CurvedEM, theta, leaf: LeafRows, clients: float, rows: float) -> float:
    """Sum of -w_i / m_i ln p(y_ij; theta), nats."""
    if not leaf.sizes.any():
        return 0.0
    losses = -model.log_likelihood(theta, leaf.y)
    weights = row_weights(config, leaf, clients, rows)
    return float(losses.sum() if weights is None else losses @ weights) / rows


# --- passes before the rounds ---------------------------------------------------------------------------------------


def moments(config, model: CurvedEM, block: ClientBlock) -> Statistics:
    """sizes: clients with rows, observations, sum of m_i^2. moments: (3, d) number, sum and sum of squares of every
    column (in tables: every cell).
    """
    leaf = rows_of(block, unit=config.unit)
    model.check_rows(leaf.y)
    sizes = np.array([np.count_nonzero(leaf.sizes), leaf.sizes.sum(), np.sum(leaf.sizes**2)])
    if sp.issparse(leaf.y):
        total, squares = leaf.y.sum(axis=0), leaf.y.multiply(leaf.y).sum(axis=0)
        columns = np.vstack([np.full(leaf.y.shape[1], leaf.y.shape[0]), np.asarray(total), np.asarray(squares)])
    else:
        entries = leaf.y.reshape(-1, config.unit * leaf.y.shape[1])
        seen = np.isfinite(entries)
        y = np.where(seen, entries, 0.0)
        with np.errstate(over="ignore"):  # the server refuses an infinite sum
            columns = np.vstack([seen.sum(axis=0), y.sum(axis=0), np.sum(y * y, axis=0)])
    return {"sizes": FloatSum.at(block.leaf, sizes), "moments": FloatSum.at(block.leaf, columns)}


def trials(config, model: CurvedEM, message: TrialMessage, block: ClientBlock) -> Statistics:
    """totals: (R, q) sum of w_i s_bar_i for each start; losses: (R,) the objectives there, without the penalty."""
    leaf, sizes = rows_of(block, message.scaling, config.unit), (message.clients, message.rows)
    totals = [weighted_total(config, model, theta, leaf, *sizes) for theta in message.thetas]
    losses = [weighted_loss(config, model, theta, leaf, *sizes) for theta in message.thetas]
    return {"totals": FloatSum.at(block.leaf, totals), "losses": FloatSum.at(block.leaf, losses)}


def field(config, model: CurvedEM, message: FieldMessage, block: ClientBlock) -> tuple[Statistics, Memory]:
    """V_{0,i} = h_i(S_0), and its weighted sum."""
    leaf = rows_of(block, message.scaling, config.unit)
    v = np.where(leaf.sizes[:, None] > 0, model.e_mean(message.theta, leaf.y, leaf.ptr) - message.s, 0.0)
    check_finite(v, block.first + np.arange(block.clients))
    weights = client_weights(config, leaf.sizes, message.clients, message.rows)
    return {"sum": FloatSum.at(block.leaf, weights @ v)}, {"V": v}


def objective(config, model: CurvedEM, message: ObjectiveMessage, block: ClientBlock) -> Statistics:
    leaf = rows_of(block, message.scaling, config.unit)
    loss = weighted_loss(config, model, message.theta, leaf, message.clients, message.rows)
    return {"loss": FloatSum.at(block.leaf, loss)}


# --- a round --------------------------------------------------------------------------------------------------------


def round_answer(config: FederatedEMConfig, model: CurvedEM, codec: Codec, message: RoundMessage, block: ClientBlock,
                 memory: Memory | None) -> tuple[Statistics, Memory | None]:  # fmt: skip
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
        statistics = {"sum": FloatSum.at(block.leaf, total - _mass(config, leaf, *sizes) * message.s),
                      "costs": FloatSum.at(block.leaf, costs)}  # fmt: skip
        memory = None
    if message.monitor:
        loss = weighted_loss(config, model, message.theta, leaf, *sizes)
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
        means, evaluations = _oracle(config, model, message, block, leaf.of(active), active, memory)
        delta = means - message.s
        if "V" in memory:
            delta -= memory["V"][active]
        decoded, bits = codec.transmit(delta, _uniforms(message, CODEC, block, codec.draws)[active],
                                       block.first + np.flatnonzero(active))  # fmt: skip
        if "V" in memory:
            v = memory["V"].copy()
            v[active] += config.memory_rate(codec.omega) * decoded
            memory["V"] = v
        total = weights[active] @ decoded
        costs = np.array([np.count_nonzero(active), evaluations, bits.sum()], np.float64)
    statistics |= {"sum": FloatSum.at(block.leaf, total), "costs": FloatSum.at(block.leaf, costs)}
    return statistics, memory or None


def _oracle(config, model: CurvedEM, message: RoundMessage, block, leaf: LeafRows, active, memory: Memory):
    """(A, q) s_i of the active clients and the conditional expectations it took. VR-FedEM keeps s_i in the memory."""
    if message.oracle == "full":
        means, evaluations = model.e_mean(message.theta, leaf.y, leaf.ptr), leaf.sizes.sum()
    else:
        batch = leaf.batch(_uniforms(message, BATCH, block, message.batch)[active])
        means, evaluations = model.e_mean(message.theta, batch.y, batch.ptr), batch.sizes.sum()
        if message.oracle == "recursive":
            means = memory["S"][active] + (means - model.e_mean(message.previous, batch.y, batch.ptr))
            evaluations *= 2
    if config.variance_reduced:
        kept = memory["S"].copy() if "S" in memory else np.zeros((len(active), model.q))
        kept[active] = means
        memory["S"] = kept
    return means, evaluations


def _uniforms(message: RoundMessage, purpose: str, block, draws: int = 1) -> np.ndarray:
    return client_uniforms(message.seed, purpose, message.number, block.first, block.clients, max(draws, 1))
