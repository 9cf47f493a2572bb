"""The clients' side: their own dictionaries at the start, then the rounds (Algorithm 1), a stack of clients at a time.

What a client remembers, first axis = clients of the leaf:

    rank      (C,) int64 atoms of its dictionary; 0 for a client without samples, or with nothing but zeros
    atoms     (C, r, d) its own dictionary, after the start; zeros beyond its rank
    local     (C, r - rg, d) instead, from round 1: its local atoms
    far       (C,) int64 rounds in a row in which its atoms were far from the global ones
    loss, distance   (C,) float64 of its last round: mean squared residual of a sample (loss = "huber": mean Huber loss
              of what the global atoms leave), mean matched distance
    fitted    (C,) int64, loss = "huber" only: 1 once its local atoms were learnt from what the global ones leave
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.dictionaries import learners, robust
from fedcore.methods.dictionaries.alignment import choose, split
from fedcore.methods.dictionaries.client_groups import Group, groups
from fedcore.methods.dictionaries.config import DictionariesConfig
from fedcore.methods.dictionaries.distances import ZERO_DISTANCE
from fedcore.methods.dictionaries.operators import normalise, polar
from fedcore.methods.dictionaries.sparse_coding import Coder
from fedcore.methods.dictionaries.state import RoundMessage, StartMessage
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import client_uniforms, stream
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import ArgMax, FloatSum, Stack, Statistics

MATCHED = "dictionaries/matched"
PARTICIPATION = "dictionaries/participation"


def coder_of(config: DictionariesConfig) -> Coder:
    return Coder(config.code, config.threshold, config.sparsity, config.alpha)


def as_sent(config: DictionariesConfig, atoms: np.ndarray) -> np.ndarray:
    """Atoms in the precision of messages."""
    return atoms.astype(config.precision, copy=False)


# --- start ----------------------------------------------------------------------------------------------------------


def start(config: DictionariesConfig, message: StartMessage, block: RowsBlock) -> tuple[Statistics, Memory]:
    """Every client's own dictionary; those drawn send it. Raises PopulationError for values that are not finite."""
    sizes = np.diff(block.ptr)
    r, d = config.atoms, block.features
    ranks = np.where(sizes > 0, r, 0)
    if config.ragged:
        ranks = np.where(sizes > 0, np.maximum(np.minimum(r, sizes // 2), max(message.least, 1)), 0)
    atoms = np.zeros((block.clients, r, d))
    scores = np.zeros(block.clients)
    for group in groups(block, ranks):
        lively = _lively(group)
        ranks[group.clients[~lively]] = 0
        found, score = _own(config, message.seed, group)
        atoms[group.clients, : group.rank] = np.where(lively[:, None, None], found, 0.0)
        scores[group.clients] = np.where(lively, score, 0.0)
    own = ranks > 0
    draws = client_uniforms(message.seed, MATCHED, 0, block.first, block.clients)[:, 0]
    sent = np.flatnonzero(own & (draws <= message.threshold))
    few = own & (sizes < r)
    statistics = {
        "sizes": FloatSum.at(block.leaf, [own.sum(), sizes.sum(), (~own).sum(), few.sum(), scores.sum()]),
        "senders": Stack({block.first: np.column_stack([block.first + sent, ranks[sent]])}),
        "dictionaries": Stack({block.first: as_sent(config, atoms[sent])}),
    }
    return statistics, {"rank": ranks, "atoms": atoms}


def _lively(group: Group) -> np.ndarray:
    """(c,) bool, False for clients whose samples are all zero."""
    found = np.zeros(len(group.clients), bool)
    for tile in group.tiles():
        found |= tile.any(axis=(1, 2))
    return found


def _own(config: DictionariesConfig, seed: int, group: Group) -> tuple[np.ndarray, np.ndarray]:
    """(atoms (c, rank, d), objective (c,)) of the best of the configured starts."""
    d = group.block.features
    numbers = group.block.first + group.clients
    begun = learners.first_dictionaries(group.rank, d, config.starts, seed, numbers, _first(config, seed, group))
    schedule = learners.Schedule(config.first_threshold, config.threshold_decay, config.steps_of_start, config.density)
    return learners.warm_start(
        config.learner, group.tiles, group.sizes, begun, coder_of(config), schedule, config.step_size
    )


def _first(config: DictionariesConfig, seed: int, group: Group) -> np.ndarray | None:
    """(c, rank, d) the first beginning; None: a random one. More atoms than features: unit vectors and singular ones do
    not suffice, and samples are taken."""
    d, rule = group.block.features, config.first
    if rule == "auto":
        square = group.rank == d and config.learner == "orthogonal"
        rule = "unit" if square else "singular" if config.learner == "orthogonal" else "samples"
    if rule == "random":
        return None
    if rule == "samples" or group.rank > d:
        return np.stack([_drawn(seed, group, i) for i in range(len(group.clients))])
    if rule == "unit":
        return np.broadcast_to(np.eye(group.rank, d), (len(group.clients), group.rank, d))
    return learners.singular_start(group.tiles, group.rank)


def _drawn(seed: int, group: Group, i: int) -> np.ndarray:
    """(rank, d) atoms made of different samples of client i, filled up with random directions."""
    client = int(group.clients[i])
    generator = stream(seed, "dictionaries/samples", 0, group.block.first + client)
    low, size = int(group.block.ptr[client]), int(group.sizes[i])
    rows = low + np.sort(generator.choice(size, min(group.rank, size), replace=False))
    atoms = learners.random_atoms(generator, group.rank, group.block.features)
    found, norms = normalise(np.asarray(group.block.x[rows], np.float64))
    at = np.flatnonzero(norms > 0)
    atoms[at] = found[at]
    return atoms


# --- rounds ---------------------------------------------------------------------------------------------------------


def begun(message: RoundMessage, block: RowsBlock, memory: Memory) -> Memory:
    """The memory with global atoms taken out of the clients' own: as matched, or by assignment to the global ones."""
    if "local" in memory:
        return memory
    common, ranks, atoms = message.global_atoms, memory["rank"], memory["atoms"]
    wanted = len(common)
    local = np.zeros((block.clients, atoms.shape[1] - wanted, block.features))
    at = np.searchsorted(message.matched, block.first + np.arange(block.clients))
    at = np.minimum(at, max(len(message.matched) - 1, 0))
    for rank in np.unique(ranks[ranks > 0]):
        mine = np.flatnonzero(ranks == rank)
        found = choose(common, atoms[mine, :rank], "lsa").local
        if len(message.matched):
            index = message.index[at[mine]]
            told = (message.matched[at[mine]] == block.first + mine) & (index >= 0).all(1)
            if told.any():
                found[told] = split(atoms[mine[told], :rank], index[told])[1]
        local[mine, : rank - wanted] = found
    zeros = np.zeros(block.clients)
    return {"rank": ranks, "local": local, "far": zeros.astype(np.int64), "loss": zeros, "distance": zeros.copy()}


def active(config: DictionariesConfig, message: RoundMessage, block: RowsBlock, ranks: np.ndarray) -> np.ndarray:
    """(C,) bool: who takes part."""
    taking = ranks > 0
    if message.threshold < 1:
        draws = client_uniforms(message.seed, PARTICIPATION, message.number, block.first, block.clients)[:, 0]
        taking = taking & (draws <= message.threshold)
    return taking


def local_round(
    config: DictionariesConfig, message: RoundMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """Steps from [G | L_i], then the choice of the global atoms (Algorithms 1, 3 and, if configured, 6)."""
    memory = {name: np.array(value) for name, value in memory.items()}
    common, coder = message.global_atoms, coder_of(config)
    wanted, d = common.shape
    sizes, ranks = np.diff(block.ptr), memory["rank"]
    taking = active(config, message, block, ranks)
    sent = np.full((block.clients, wanted, d), np.nan)
    counts = np.zeros(COUNTS)
    if config.robust:
        memory.setdefault("fitted", np.zeros(block.clients, np.int64))
    for group in groups(block, ranks, taking):
        mine, locals_ = group.clients, group.rank - wanted
        if config.robust:
            counts += _robustly(config, message, group, memory, sent)
            continue
        local = memory["local"][mine, :locals_]
        if message.number == config.restart_round and locals_:
            local, kept = begun_anew(config, message.seed, group, common, local)
            counts[9] += kept.sum()
        if config.refine_steps and locals_:
            local = learners.refine(
                config.learner, group.tiles, common, local, coder, config.refine_steps, config.step_size
            )
        atoms = np.concatenate([np.broadcast_to(common, (len(mine), wanted, d)), local], axis=1)
        for _ in range(config.local_steps):
            atoms, sums = learners.step(config.learner, group.tiles, atoms, coder, config.step_size)
        dead = unused(sums.used[:, 0])
        if config.learner != "orthogonal":
            atoms = reseeded(atoms, dead, wanted, group, coder)
        picked = choose(common, atoms, config.align)
        sent[mine] = picked.common
        memory["local"][mine, :locals_] = picked.local
        memory["loss"][mine] = sums.loss[:, 0] / group.sizes
        memory["distance"][mine] = picked.distances.mean(1) if wanted else 0.0
        counts[3:6] += [sums.nonzero.sum(), picked.collisions.sum(), dead.sum()]
    far = taking & (memory["distance"] > (np.inf if config.far is None else config.far))
    memory["far"][taking] = np.where(far, memory["far"] + 1, 0)[taking]
    counts[8] = far.sum()
    left_out = taking & (memory["far"] >= config.far_rounds) & message.leave_out
    statistics = summaries(block, memory, taking, left_out, counts)
    giving = np.flatnonzero(taking & ~left_out)
    if config.aggregate == "median":
        statistics["sent"] = Stack({block.first: as_sent(config, sent[giving])})
    else:
        sent = as_sent(config, sent).astype(np.float64, copy=False)
        w = np.ones(len(giving)) if config.weights == "clients" else sizes[giving].astype(np.float64)
        if config.weight_cap is not None:
            w = np.minimum(w, config.weight_cap)
        total = np.einsum("c,cjd->jd", w, sent[giving])
        statistics["sum"] = FloatSum.at(block.leaf, np.column_stack([total, np.full(wanted, w.sum())]))
    return statistics, memory


def begun_anew(
    config: DictionariesConfig, seed: int, group: Group, common: np.ndarray, local: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """((c, l, d) local atoms, (c,) bool whether they are new ones): a start on the samples' parts off the global atoms,
    kept where the client's objective falls."""
    d, wanted = common.shape[1], len(common)
    frame = polar(common, common) if wanted <= d else common[:0]

    def off():
        for tile in group.tiles():
            yield tile - (tile @ frame.T) @ frame

    numbers = group.block.first + group.clients
    begun = learners.first_dictionaries(local.shape[1], d, config.restarts, seed, numbers, None, "dictionaries/restart")
    schedule = learners.Schedule(config.first_threshold, config.threshold_decay, config.steps_of_start)
    coder = coder_of(config)
    new, _ = learners.warm_start(config.learner, off, group.sizes, begun, coder, schedule, config.step_size)
    both = np.stack([local, new], axis=1)
    shared = np.broadcast_to(common, (*both.shape[:2], wanted, d))
    scores = learners.objective(group.tiles, np.concatenate([shared, both], axis=2), coder)
    better = scores[:, 1] < scores[:, 0]
    return np.where(better[:, None, None], new, local), better


def _robustly(
    config: DictionariesConfig, message: RoundMessage, group: Group, memory: Memory, sent: np.ndarray
) -> np.ndarray:
    """The clients of a group by `fedcore.methods.dictionaries.robust`: their atoms into `sent`, what they learnt into
    `memory`; returns their counts."""
    counts, coder, common = np.zeros(COUNTS), coder_of(config), message.global_atoms
    for i, client in enumerate(group.clients):
        found = robust.answer(config, message, group, i, memory, coder)
        sent[client] = found.common
        memory["loss"][client] = found.loss / group.sizes[i]
        counts[3:6] += [group.sizes[i] * len(common) + found.nonzero, 0, found.dead]
    memory["distance"][group.clients] = robust.distance(sent[group.clients], common)
    return counts


# taking part, samples, loss, nonzero codes, collisions, unused atoms, matched distance, left out, far, begun anew
COUNTS = 10


def summaries(
    block: RowsBlock, memory: Memory, taking: np.ndarray, left_out: np.ndarray, counts: np.ndarray
) -> Statistics:
    """What the round's log needs: sums, the largest loss and the largest matched distance."""
    sizes = np.diff(block.ptr)
    loss, distance = np.where(taking, memory["loss"], -1.0), np.where(taking, memory["distance"], -1.0)
    counts = counts + [
        taking.sum(),
        sizes[taking].sum(),
        (memory["loss"] * sizes)[taking].sum(),
        0,
        0,
        0,
        memory["distance"][taking].sum(),
        left_out.sum(),
        0,
        0,
    ]
    worst, farthest = int(loss.argmax()), int(distance.argmax())
    return {
        "counts": FloatSum.at(block.leaf, counts),
        "worst": ArgMax(float(loss[worst]), block.first + worst, {}),
        "farthest": ArgMax(float(distance[farthest]), block.first + farthest, {}),
    }


def unused(used: np.ndarray) -> np.ndarray:
    """(c, r) bool: atoms that no sample uses. used: (c, r) nonzero codes of each atom."""
    return used == 0


def reseeded(atoms: np.ndarray, dead: np.ndarray, wanted: int, group: Group, coder: Coder) -> np.ndarray:
    """Unused local atoms become the client's worst coded samples. Global ones are the server's business."""
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
        found, norms = normalise(worst)
        at = np.flatnonzero(dead[i])[: len(found)]
        good = (norms > 0) & (errors > ZERO_DISTANCE**2)
        atoms[i, at[good[: len(at)]]] = found[: len(at)][good[: len(at)]]
    return atoms


# --- sums of codes and samples ----------------------------------------------------------------------------------------


def statistics_round(
    config: DictionariesConfig, message: RoundMessage, block: RowsBlock, memory: Memory
) -> tuple[Statistics, Memory]:
    """Sums of codes and samples for the global atoms; every client moves its own local atoms by its own sums.

    The sums of all clients are those of the pooled samples: with split = "nested" the global dictionary is the one that
    a learner of the pooled samples would have, and local atoms learn what [G | L_i] leaves to them.
    """
    memory = {name: np.array(value) for name, value in memory.items()}
    common, coder = message.global_atoms, coder_of(config)
    wanted, d = common.shape
    taking = active(config, message, block, memory["rank"])
    xx, xy, counts = np.zeros((wanted, wanted)), np.zeros((wanted, d)), np.zeros(COUNTS)
    for group in groups(block, memory["rank"], taking):
        mine, locals_ = group.clients, group.rank - wanted
        loss = np.zeros(len(mine))
        if config.split == "nested":
            for tile in group.tiles():
                flat = tile.reshape(-1, d)
                x = coder(flat, common)
                xx += x.T @ x
                xy += x.T @ flat
                loss += ((flat - x @ common) ** 2).sum(1).reshape(tile.shape[:2]).sum(1)
                counts[3] += np.count_nonzero(x)
        if locals_ and (message.learn_local or config.split == "joint"):
            local = memory["local"][mine, :locals_]
            atoms = np.concatenate([np.broadcast_to(common, (len(mine), wanted, d)), local], axis=1)
            sums = learners.pass_over(group.tiles, atoms[:, None], coder, second=True)
            both, samples = sums.xx[:, 0], sums.xy[:, 0]
            if config.split == "joint":
                xx += both[:, :wanted, :wanted].sum(0)
                xy += (samples[:, :wanted] - both[:, :wanted, wanted:] @ local).sum(0)
                counts[3] += sums.nonzero.sum()
            loss = sums.loss[:, 0]
            rest = samples[:, wanted:] - both[:, wanted:, :wanted] @ common
            local = np.stack(
                [learners.descend(*each) for each in zip(local, both[:, wanted:, wanted:], rest, strict=True)]
            )
            dead = unused(sums.used[:, 0])
            counts[5] += dead[:, wanted:].sum()
            atoms[:, wanted:] = local
            memory["local"][mine, :locals_] = reseeded(atoms, dead, wanted, group, coder)[:, wanted:]
        elif config.split == "joint":
            atoms = np.broadcast_to(common, (len(mine), 1, wanted, d))
            sums = learners.pass_over(group.tiles, atoms, coder, second=True)
            xx, xy, loss = xx + sums.xx.sum((0, 1)), xy + sums.xy.sum((0, 1)), sums.loss[:, 0]
        memory["loss"][mine] = loss / group.sizes
    statistics = summaries(block, memory, taking, np.zeros(block.clients, bool), counts)
    statistics |= {"xx": FloatSum.at(block.leaf, xx), "xy": FloatSum.at(block.leaf, xy)}
    return statistics, memory
