"""Messages of clients that are handled singly: compressed differences of their statistics, and their memories.

Some hundred clients at a time go through all steps, so that their data stay in the cache.

Source: Dieuleveut, Fort, Moulines, Robin 2021, Algorithms 1 and 2.
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.federated_em.codecs import Codec, Identity
from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.leaf_rows import LeafRows
from fedcore.methods.federated_em.messages import RoundMessage
from fedcore.methods.federated_em.weighted_sums import Weights
from fedcore.methods.mixture_models.client_sums import row_tiles
from fedcore.methods.mixture_models.contract import CurvedEM
from fedcore.population.blocks import ClientBlock
from fedcore.randomness import ClientDither, client_uniforms
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import FloatSum, Statistic

PARTICIPATION, BATCH, CODEC = "federated_em/participation", "federated_em/batch", "federated_em/codec"
TILE_NUMBERS = 54_000  # of the messages that are answered together


def treats_clients_singly(config: FederatedEMConfig, codec: Codec) -> bool:
    """Whether a round needs each client's s_i. Without a codec, with all clients and all rows it does not: then
    H = sum w_i s_i - S_k, whatever the memories are.
    """
    everything = isinstance(codec, Identity) and config.algorithm.participation == 1
    return not everything or config.algorithm.batch is not None or config.variance_reduced


def remembers(config: FederatedEMConfig, codec: Codec) -> bool:
    """Whether clients keep V_i: not where H does not depend on it."""
    return config.variant.memories and not (isinstance(codec, Identity) and config.algorithm.participation == 1)


def compressed_differences(
    config: FederatedEMConfig,
    model: CurvedEM,
    codec: Codec,
    message: RoundMessage,
    block: ClientBlock,
    leaf: LeafRows,
    weights: Weights,
    memory: Memory | None,
) -> tuple[dict[str, Statistic], Memory | None]:
    """Q_i = Quant(s_i - V_i - S_k) of the active clients, and V_i + alpha Q_i (lines 4 to 12 of Algorithm 1). In
    natural units Q_i = Quant(s_i - V_i); V_i is the model's own statistic before a client's first answer, and sum then
    has w_i (V_i + Q_i)."""
    clients, q = block.clients, model.q
    memory = {} if memory is None else dict(memory)
    if remembers(config, codec):
        memory.setdefault("V", np.zeros((clients, q)))
    if config.variance_reduced:  # also where no client has rows: all leaves of a block remember the same names
        memory.setdefault("S", np.zeros((clients, q)))
    if config.natural:
        memory.setdefault("heard", np.zeros(clients, bool))
    w = weights.of_clients(leaf.sizes)
    statistics: dict[str, Statistic] = {}
    if message.audit:
        v = memory.get("V")
        statistics["memory"] = FloatSum.at(block.leaf, np.zeros(q) if v is None else w @ v)
    active = leaf.sizes > 0
    if message.threshold < 1:
        active &= _uniforms(message, PARTICIPATION, block)[:, 0] <= message.threshold
    total, costs = np.zeros(q), np.zeros(3)
    if config.natural:
        new = active & ~memory["heard"]
        weight = float(w[new].sum())
        statistics["heard"] = FloatSum.at(block.leaf, weight)
        if new.any():
            known = message.s if config.sends_statistic else model.statistic_of(message.theta)
            memory |= {"V": _with_rows(memory["V"], new, known), "heard": memory["heard"] | new}
            total = weight * known
    if active.any():
        means, evaluations = _oracle(config, model, message, block, leaf, active, memory)
        chosen, draws, bits = np.flatnonzero(active), _Draws(message, codec, block), 0
        v, rate = memory.get("V"), config.memory_rate(codec.omega)
        for tile in row_tiles(len(chosen), tile_clients(q)):
            own, delta = chosen[tile], means[tile]
            at = slice(int(own[0]), int(own[-1]) + 1) if own[-1] - own[0] == len(own) - 1 else own
            if not config.natural:
                delta -= message.s
            if v is not None:
                delta -= v[at]
            decoded, lengths = codec.transmit(delta, draws.of(own), block.first + own)
            total += w[at] @ decoded
            bits += int(lengths.sum())
            if v is not None:  # what is remembered takes the place of the mean
                if rate != 1.0:
                    decoded *= rate
                np.copyto(delta, decoded)
                delta += v[at]
        if v is not None:
            memory["V"] = _with_rows(v, slice(None) if active.all() else active, means)
        costs = np.array([len(chosen), evaluations, bits], np.float64)
    statistics |= {"sum": FloatSum.at(block.leaf, total), "costs": FloatSum.at(block.leaf, costs)}
    return statistics, memory or None


def tile_clients(q: int) -> int:
    """Clients who are answered together. Never a multiple of 16, as `fedcore.methods.mixture_models.client_sums` says:
    their numbers are turned on the way."""
    return max(TILE_NUMBERS // q, 1) // 16 * 16 + 8


def _oracle(
    config: FederatedEMConfig,
    model: CurvedEM,
    message: RoundMessage,
    block: ClientBlock,
    leaf: LeafRows,
    active: np.ndarray,
    memory: Memory,
) -> tuple[np.ndarray, float]:
    """(A, q) s_i of the active clients, and the conditional expectations that it took. VR-FedEM keeps s_i in the
    memory."""
    if message.oracle == "full":
        means, evaluations = leaf.client_means(model, message.theta, active), float(leaf.sizes[active].sum())
    else:
        batch = leaf.batch(_uniforms(message, BATCH, block, message.batch)[active], active)
        means, evaluations = model.e_mean(message.theta, batch.y, batch.ptr), float(batch.sizes.sum())
        if message.previous is not None:  # the recursive oracle, line 8 of Algorithm 2
            means = memory["S"][active] + (means - model.e_mean(message.previous, batch.y, batch.ptr))
            evaluations *= 2
    if config.variance_reduced:
        memory["S"] = _with_rows(memory["S"], slice(None) if active.all() else active, means)
        means = means.copy()  # the caller changes it in place
    return means, evaluations


def _with_rows(kept: np.ndarray, chosen: slice | np.ndarray, rows: np.ndarray) -> np.ndarray:
    """kept (C, q) with these rows in place of the chosen ones; never changed in place."""
    if isinstance(chosen, slice):
        return rows
    changed = kept.copy()
    changed[chosen] = rows
    return changed


def _uniforms(message: RoundMessage, purpose: str, block: ClientBlock, draws: int = 1) -> np.ndarray:
    return client_uniforms(message.seed, purpose, message.number, block.first, block.clients, max(draws, 1))


class _Draws:
    """Uniforms of the codec for some of the block's clients after the other, in ascending order."""

    def __init__(self, message: RoundMessage, codec: Codec, block: ClientBlock) -> None:
        self.name, self.codec = (message.seed, CODEC, message.number), codec
        self.first, self.dither = block.first, None
        if codec.dithers:
            self.dither = ClientDither(*self.name, block.first, codec.draws, codec.order)
        self.next = 0

    def of(self, chosen: np.ndarray) -> np.ndarray:
        """(A, draws) for these numbers (A,) in the block."""
        start, stop = self.next, int(chosen[-1]) + 1
        self.next = stop
        if self.dither is None:
            found = client_uniforms(*self.name, self.first + start, stop - start, self.codec.draws)
        else:
            found = self.dither.of_next(stop - start)
        return found if len(found) == len(chosen) else found[chosen - start]
