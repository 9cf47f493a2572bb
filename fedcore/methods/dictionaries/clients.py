"""The clients' side: their own dictionaries at first, then the rounds (Algorithm 1), a stack of clients at a time.

What a client remembers, first axis = clients of the leaf:

    rank      (C,) int64 atoms of its dictionary; 0 for a client without samples, or with nothing but zeros
    atoms     (C, r, d) its own dictionary, before the first round; zeros beyond its rank
    local     (C, r - rg, d) instead, from round 1: its local atoms
    far       (C,) int64 rounds in a row in which its atoms were far from the global ones
    loss, distance   (C,) float64 of its last round: mean squared residual of a sample (loss = "huber": mean Huber loss
              of what the global atoms leave), mean matched distance
    fitted    (C,) int64, loss = "huber" only: 1 once its local atoms were learnt from what the global ones leave
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.dictionaries import statistics_clients
from fedcore.methods.dictionaries.alignment import align, divide
from fedcore.methods.dictionaries.client_groups import Group, groups
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.distances import ZERO_DISTANCE
from fedcore.methods.dictionaries.initialisation import initial_dictionaries, restarted
from fedcore.methods.dictionaries.learners import descend, pass_over, refine, step
from fedcore.methods.dictionaries.messages import (
    Counts,
    FirstSumsMessage,
    InitialMessage,
    LocalAtomsMessage,
    Message,
    RoundMessage,
    SumsMessage,
    in_message_precision,
)
from fedcore.methods.dictionaries.operators import normalise
from fedcore.methods.dictionaries.robust import robust_round
from fedcore.methods.dictionaries.sizes import atoms_of
from fedcore.methods.dictionaries.sparse_coding import Coder, coder_of
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import client_uniforms
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import ArgMax, FloatSum, Stack, Statistic, Statistics

MATCHED = "dictionaries/matched"
PARTICIPATION = "dictionaries/participation"


def client_update(
    config: DictionariesConfig, message: Message, block: RowsBlock, memory: Memory | None
) -> tuple[Statistics, Memory]:
    """The answer of one leaf of clients. Raises PopulationError for values that are not finite."""
    if isinstance(message, InitialMessage):
        return initial_round(config, message, block)
    if isinstance(message, FirstSumsMessage):
        return statistics_clients.first_sums(message, block)
    assert memory is not None
    if isinstance(message, SumsMessage | LocalAtomsMessage):
        memory = statistics_clients.memory_of(memory)
        if isinstance(message, SumsMessage):
            return statistics_clients.shared_round(config, message, block, memory)
        return statistics_clients.local_round(config, message, block, memory)
    memory = {name: np.array(value) for name, value in with_local_atoms(message, block, memory).items()}
    if config.learner == "statistics":
        return joint_round(config, message, block, memory)
    return local_round(config, message, block, memory)


# --- before the first round -----------------------------------------------------------------------------------------


def initial_round(config: DictionariesConfig, message: InitialMessage, block: RowsBlock) -> tuple[Statistics, Memory]:
    """Every client learns its own dictionary; the clients that are sampled for the matching send it."""
    sizes = np.diff(block.ptr)
    r, d = atoms_of(config, block.features), block.features
    ranks = np.where(sizes > 0, r, 0)
    if config.ragged:
        ranks = np.where(sizes > 0, np.maximum(np.minimum(r, sizes // 2), max(message.fewest_atoms, 1)), 0)
    atoms = np.zeros((block.clients, r, d))
    scores = np.zeros(block.clients)
    for group in groups(block, ranks):
        nonzero = _with_nonzero_samples(group)
        ranks[group.clients[~nonzero]] = 0
        found, score = initial_dictionaries(config, message.seed, group)
        atoms[group.clients, : group.rank] = np.where(nonzero[:, None, None], found, 0.0)
        scores[group.clients] = np.where(nonzero, score, 0.0)
    learnt = ranks > 0
    uniforms = client_uniforms(message.seed, MATCHED, 0, block.first, block.clients)[:, 0]
    senders = np.flatnonzero(learnt & (uniforms <= message.threshold))
    few = learnt & (sizes < r)
    statistics: dict[str, Statistic] = {
        "sizes": FloatSum.at(block.leaf, [learnt.sum(), sizes.sum(), (~learnt).sum(), few.sum(), scores.sum()]),
        "senders": Stack({block.first: np.column_stack([block.first + senders, ranks[senders]])}),
        "dictionaries": Stack({block.first: in_message_precision(config, atoms[senders])}),
    }
    return statistics, {"rank": ranks, "atoms": atoms}


def _with_nonzero_samples(group: Group) -> np.ndarray:
    """(c,) bool, False for clients whose samples are all zero."""
    nonzero = np.zeros(len(group.clients), bool)
    for tile in group.tiles():
        nonzero |= tile.any(axis=(1, 2))
    return nonzero


def with_local_atoms(message: RoundMessage, block: RowsBlock, memory: Memory) -> Memory:
    """The memory with `local` in place of `atoms`: the client's own dictionary without the atoms that were matched, or
    without those that a linear assignment gives to the global ones."""
    if "local" in memory:
        return memory
    if "atoms" not in memory:  # the learner statistics has no local atoms before its last pass
        ranks = np.where(memory["rank"] > 0, len(message.common), 0)
        return {**memory, "rank": ranks, "local": np.zeros((block.clients, 0, block.features))}
    common, ranks, atoms = message.global_atoms, memory["rank"], memory["atoms"]
    wanted = len(common)
    local = np.zeros((block.clients, atoms.shape[1] - wanted, block.features))
    at = np.searchsorted(message.matched, block.first + np.arange(block.clients))
    at = np.minimum(at, max(len(message.matched) - 1, 0))
    for rank in np.unique(ranks[ranks > 0]):
        mine = np.flatnonzero(ranks == rank)
        found = align(common, atoms[mine, :rank], "lsa").local
        if len(message.matched):
            index = message.index[at[mine]]
            matched = (message.matched[at[mine]] == block.first + mine) & (index >= 0).all(1)
            if matched.any():
                found[matched] = divide(atoms[mine[matched], :rank], index[matched])[1]
        local[mine, : rank - wanted] = found
    zeros = np.zeros(block.clients)
    return {"rank": ranks, "local": local, "far": zeros.astype(np.int64), "loss": zeros, "distance": zeros.copy()}


# --- rounds of the learners of Algorithms 4 and 5 -------------------------------------------------------------------


def participating(message: RoundMessage, block: RowsBlock, ranks: np.ndarray) -> np.ndarray:
    """(C,) bool: who takes part in the round."""
    if message.threshold >= 1:
        return ranks > 0
    uniforms = client_uniforms(message.seed, PARTICIPATION, message.number, block.first, block.clients)[:, 0]
    return (ranks > 0) & (uniforms <= message.threshold)


def local_round(
    config: DictionariesConfig, message: RoundMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """Steps from [G | L_i], then the alignment to the global atoms (Algorithms 1, 3 and, if configured, 6)."""
    common, coder = message.global_atoms, coder_of(config, block.features)
    wanted, d = common.shape
    taking = participating(message, block, memory["rank"])
    sent = np.full((block.clients, wanted, d), np.nan)
    counts = Counts()
    if config.robust:
        memory.setdefault("fitted", np.zeros(block.clients, np.int64))
    for group in groups(block, memory["rank"], taking):
        if config.robust:
            robust_round(config, message, group, memory, sent, coder, counts)
            continue
        mine, local_atoms = group.clients, group.rank - wanted
        local = memory["local"][mine, :local_atoms]
        if message.number == config.restart_round and local_atoms:
            local, new = restarted(config, message.seed, group, common, local)
            counts.restarted += float(new.sum())
        if config.refine_steps and local_atoms:
            local = refine(config.learner, group.tiles, common, local, coder, config.refine_steps, config.step_size)
        atoms = np.concatenate([np.broadcast_to(common, (len(mine), wanted, d)), local], axis=1)
        for _ in range(config.local_steps):
            atoms, sums = step(config.learner, group.tiles, atoms, coder, config.step_size)
        dead = unused(sums.used[:, 0])
        if config.learner != "orthogonal":
            atoms = with_unused_replaced(atoms, dead, wanted, group, coder)
        aligned = align(common, atoms, config.align)
        sent[mine] = aligned.common
        memory["local"][mine, :local_atoms] = aligned.local
        memory["loss"][mine] = sums.loss[:, 0] / group.sizes
        memory["distance"][mine] = aligned.distances.mean(1) if wanted else 0.0
        counts.nonzero += float(sums.nonzero.sum())
        counts.collisions += float(aligned.collisions.sum())
        counts.unused_atoms += float(dead.sum())
    far = taking & (memory["distance"] > (np.inf if config.far is None else config.far))
    memory["far"][taking] = np.where(far, memory["far"] + 1, 0)[taking]
    left_out = taking & (memory["far"] >= config.far_rounds) & message.leave_out
    counts.far, counts.left_out = float(far.sum()), float(left_out.sum())
    name, versions = _sent(config, block, sent, np.flatnonzero(taking & ~left_out))
    return {**_round_statistics(block, memory, taking, counts), name: versions}, memory


def _sent(
    config: DictionariesConfig, block: RowsBlock, sent: np.ndarray, senders: np.ndarray
) -> tuple[str, FloatSum | Stack]:
    """The versions (C, rg, d) of the global atoms of these clients: each by itself for a median, summed for a mean."""
    sent = in_message_precision(config, sent)
    if config.aggregate == "median":
        return "sent", Stack({block.first: sent[senders]})
    weights = np.ones(len(senders))
    if config.weights == "samples":
        weights = np.diff(block.ptr)[senders].astype(np.float64)
    if config.weight_cap is not None:
        weights = np.minimum(weights, config.weight_cap)
    total = np.einsum("c,cjd->jd", weights, sent.astype(np.float64, copy=False)[senders])
    return "sum", FloatSum.at(block.leaf, np.column_stack([total, np.full(sent.shape[1], weights.sum())]))


def _round_statistics(block: RowsBlock, memory: Memory, taking: np.ndarray, counts: Counts) -> dict[str, Statistic]:
    """What the round's log needs: sums, the largest loss and the largest matched distance."""
    sizes = np.diff(block.ptr)
    counts.active_clients, counts.samples = float(taking.sum()), float(sizes[taking].sum())
    counts.loss = float((memory["loss"] * sizes)[taking].sum())
    counts.distance = float(memory["distance"][taking].sum())
    found: dict[str, Statistic] = {"counts": FloatSum.at(block.leaf, counts.to_array())}
    for name, values in (("worst", memory["loss"]), ("farthest", memory["distance"])):
        values = np.where(taking, values, -1.0)
        largest = int(values.argmax())
        found[name] = ArgMax(float(values[largest]), block.first + largest, {})
    return found


def unused(used: np.ndarray) -> np.ndarray:
    """(c, r) bool: atoms that no sample uses. used: (c, r) number of nonzero codes of each atom."""
    return used == 0


def with_unused_replaced(atoms: np.ndarray, dead: np.ndarray, wanted: int, group: Group, coder: Coder) -> np.ndarray:
    """Unused local atoms become the client's worst coded samples. The server replaces the global ones.

    atoms: (c, r, d), changed in place, the first `wanted` of them global; dead: (c, r) bool.
    """
    dead = dead.copy()
    dead[:, :wanted] = False
    for i in np.flatnonzero(dead.any(1)):
        worst, errors = np.zeros((0, atoms.shape[2])), np.zeros(0)
        count = int(dead[i].sum())
        for tile in group.tiles():
            rest = ((tile[i] - coder(tile[i], atoms[i]) @ atoms[i]) ** 2).sum(1)
            worst, errors = np.concatenate([worst, tile[i]]), np.concatenate([errors, rest])
            top = np.argsort(-errors, kind="stable")[:count]
            worst, errors = worst[top], errors[top]
        unit, norms = normalise(worst)
        at = np.flatnonzero(dead[i])[: len(unit)]
        good = ((norms > 0) & (errors > ZERO_DISTANCE**2))[: len(at)]
        atoms[i, at[good]] = unit[: len(at)][good]
    return atoms


# --- rounds of the learner "statistics" with split = "joint" ----------------------------------------------------------


def joint_round(
    config: DictionariesConfig, message: RoundMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """Sums of codes and samples for the global atoms, all atoms of a client coding its samples together; every client
    moves its own local atoms by its own sums."""
    common, coder = message.global_atoms, coder_of(config, block.features)
    wanted, d = common.shape
    taking = participating(message, block, memory["rank"])
    xx, xy, counts = np.zeros((wanted, wanted)), np.zeros((wanted, d)), Counts()
    for group in groups(block, memory["rank"], taking):
        mine, local_atoms = group.clients, group.rank - wanted
        local = memory["local"][mine, :local_atoms]
        atoms = np.concatenate([np.broadcast_to(common, (len(mine), wanted, d)), local], axis=1)
        sums = pass_over(group.tiles, atoms[:, None], coder, second=True)
        both, samples = sums.xx[:, 0], sums.xy[:, 0]
        xx += both[:, :wanted, :wanted].sum(0)
        xy += (samples[:, :wanted] - both[:, :wanted, wanted:] @ local).sum(0)
        counts.nonzero += float(sums.nonzero.sum())
        memory["loss"][mine] = sums.loss[:, 0] / group.sizes
        if local_atoms:
            rest = samples[:, wanted:] - both[:, wanted:, :wanted] @ common
            local = np.stack([descend(*each) for each in zip(local, both[:, wanted:, wanted:], rest, strict=True)])
            dead = unused(sums.used[:, 0])
            counts.unused_atoms += float(dead[:, wanted:].sum())
            atoms[:, wanted:] = local
            memory["local"][mine, :local_atoms] = with_unused_replaced(atoms, dead, wanted, group, coder)[:, wanted:]
    statistics = _round_statistics(block, memory, taking, counts)
    return {**statistics, "xx": FloatSum.at(block.leaf, xx), "xy": FloatSum.at(block.leaf, xy)}, memory
