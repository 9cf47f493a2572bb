"""The clients' side: their own dictionaries at first, then the rounds (Algorithm 1), a stack of clients at a time.

What a client remembers, first axis = clients of the leaf:

    rank      (C,) int64 atoms of its dictionary; 0 for a client without samples, or with nothing but zeros
    atoms     (C, r, d) its own dictionary, before the first round; zeros beyond its rank
    local     (C, r - rg, d) instead, from round 1: its local atoms
    far       (C,) int64 rounds in a row in which its atoms were far from the global ones
    loss, distance   (C,) float64 of its last round: mean squared residual of a sample (learner robust: mean Huber loss
              of what the global atoms leave), mean matched distance
    fitted    (C,) int64, learner robust only: 1 once its local atoms were learnt from what the global ones leave
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.dictionary_learning.distances import ZERO_DISTANCE, Group, groups
from fedcore.methods.dictionary_learning.operators import normalise
from fedcore.methods.perma.config import PermaConfig
from fedcore.methods.perma.initialisation import initial_dictionaries, restarted
from fedcore.methods.perma.learners import Coder, coder_of, refine, step
from fedcore.methods.perma.matching import align, divide
from fedcore.methods.perma.robust import robust_round
from fedcore.methods.perma.state import Counts, InitialMessage, Message, RoundMessage
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import client_uniforms
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import ArgMax, FloatSum, Stack, Statistic, Statistics

MATCHED = "dictionaries/matched"
FAR_ROUNDS = 3  # in a row, after which a far client is left out


def client_update(
    config: PermaConfig, message: Message, block: RowsBlock, memory: Memory | None
) -> tuple[Statistics, Memory]:
    """The answer of one leaf of clients. Raises PopulationError for values that are not finite."""
    if isinstance(message, InitialMessage):
        return initial_round(config, message, block)
    assert memory is not None
    memory = {name: np.array(value) for name, value in with_local_atoms(message, block, memory).items()}
    return local_round(config, message, block, memory)


# --- before the first round -----------------------------------------------------------------------------------------


def initial_round(config: PermaConfig, message: InitialMessage, block: RowsBlock) -> tuple[Statistics, Memory]:
    """Every client learns its own dictionary; the clients that are sampled for the matching send it."""
    sizes = np.diff(block.ptr)
    r, d = config.atoms, block.features
    ranks = np.where(sizes > 0, r, 0)
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
        "dictionaries": Stack({block.first: atoms[senders]}),
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


# --- rounds ---------------------------------------------------------------------------------------------------------


def local_round(
    config: PermaConfig, message: RoundMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """Steps from [G | L_i], then the alignment to the global atoms (Algorithms 1, 3 and, if configured, 6)."""
    common, coder = message.global_atoms, coder_of(config)
    wanted, d = common.shape
    taking = memory["rank"] > 0
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
            local = refine(config.steps_of, group.tiles, common, local, coder, config.refine_steps)
        atoms = np.concatenate([np.broadcast_to(common, (len(mine), wanted, d)), local], axis=1)
        atoms, sums = step(config.steps_of, group.tiles, atoms, coder)
        dead = unused(sums.used[:, 0])
        if config.steps_of != "orthogonal":
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
    left_out = taking & (memory["far"] >= FAR_ROUNDS) & message.leave_out
    counts.far, counts.left_out = float(far.sum()), float(left_out.sum())
    name, versions = _sent(config, block, sent, np.flatnonzero(taking & ~left_out))
    return {**_round_statistics(block, memory, taking, counts), name: versions}, memory


def _sent(config: PermaConfig, block: RowsBlock, sent: np.ndarray, senders: np.ndarray) -> tuple[str, FloatSum | Stack]:
    """The versions (C, rg, d) of the global atoms of these clients: each by itself for a median, summed for a mean."""
    if config.aggregate == "median":
        return "sent", Stack({block.first: sent[senders]})
    total = np.einsum("c,cjd->jd", np.ones(len(senders)), sent[senders])
    return "sum", FloatSum.at(block.leaf, np.column_stack([total, np.full(sent.shape[1], float(len(senders)))]))


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
