"""The clients' side of a run that finds its sizes: which atoms are a client's own, and which others help.

    look     codes of all samples by the first shared atoms: how many atoms they ask for, and whose energy an atom has
    claims   a client that alone has most of an atom's energy takes it for its own
    grow     own atoms begin at the samples that are rebuilt worst; shared and own ones move together
    held     errors of held-out samples with fewer and fewer own atoms

A fifth of a client's samples is held out until the last passes. The server's side is `structure_server`.

What a client remembers next to `rank`, `loss`, `distance` and `left` (`clients`), first axis = clients of the leaf:

    own      (C,) int64 own atoms
    local    (C, w, d) own atoms, zeros beyond their number
    energies (C, rg) energies of the shared atoms' codes, from "look" to "claims"
    shares   (C, w) energy of each own atom, as a share of what the louder half has; from "held" to the next pass
    gains    (C, s) bool: whether held-out samples are coded better with those own atoms that are left at each of SHARES

Sources: as in `sums` (codes, and moves of atoms). The rules for claims, growth and dropping are this project's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedcore.methods.dictionaries.state import StructureMessage
from fedcore.methods.dictionaries.sums import client_factors, client_weights, drawn_sparsity, levelled, numbers_of_rows
from fedcore.methods.dictionary_learning.distances import TILE_NUMBERS, Group, groups
from fedcore.methods.dictionary_learning.operators import normalise
from fedcore.methods.dictionary_learning.sparse_codes import descend, doubles, omp, omp_with_errors
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import ArgMax, FloatSum, Statistic, Statistics

HELD = 0.2  # share of a client's samples
FEWEST = 5  # samples of a client, below which none is held out
CLAIM = 0.5  # share of an atom's energy, beyond which it is the client's
SAMPLES_PER_ATOM = 4  # that an own atom is learnt from, at least
APART = 0.7  # likeness of two samples, from which only one begins as an atom
DOUBLE = 0.95  # likeness of two own atoms, beyond which one of them is wasted
FEWEST_CODED = 3  # samples that an own atom is used by, at least
SHARES = (0.0, 0.1, 0.2, 0.4)  # of the energy of a louder own atom, up to which one may be dropped
CHANCE = 20.0  # an atom stays if it takes more than twice the log of this many times all atoms would by chance
HELD_OUT, LENGTHS = "dictionaries/structure-held-out", "dictionaries/sparsity"


def client_update(message: StructureMessage, block: RowsBlock, memory: Memory) -> tuple[Statistics, Memory]:
    """The answer of one leaf of clients."""
    kept = {name: np.array(memory[name]) for name in ("rank", "loss", "distance", "left")}
    match message.ask:
        case "look":
            return _look(message, block, kept)
        case "claims":
            return _claims(message, block, kept, np.array(memory["energies"]))
    if message.drop >= 0:
        own = _dropped(message, memory)
    elif "own" in memory:
        own = np.array(memory["own"]), np.array(memory["local"])
    else:  # the run started from atoms of one that has found its sizes
        own = np.zeros(block.clients, np.int64), np.zeros((block.clients, 0, block.features))
    if message.ask == "held":
        return _held(message, block, kept, *own)
    return _grow(message, block, kept, *own)


# --- look, and claims -------------------------------------------------------------------------------------------------


def _look(message: StructureMessage, block: RowsBlock, memory: Memory) -> tuple[Statistics, Memory]:
    common, longest = message.global_atoms, message.longest
    energies, found = np.zeros((block.clients, len(common))), _Paths(longest, 1)
    for group in groups(block, np.where(memory["rank"] > 0, len(common), 0), None, TILE_NUMBERS):
        mine = _Samples(message, block, group, memory)
        for tile, out, lengths in mine.tiles():
            gains = np.zeros((*tile.shape[:2], longest))
            codes, _ = omp_with_errors(tile, common, np.where(out, longest, lengths), gains)
            energies[group.clients] += np.einsum("cmr,cmr->cr", codes, codes)
            found.add(0, tile, out, gains, len(common), mine.weights)
        energies[group.clients] *= mine.factors[:, None]
    statistics: dict[str, Statistic] = {
        "held": FloatSum.at(block.leaf, found.sums),
        "energies": FloatSum.at(block.leaf, energies.sum(0)),
    }
    return statistics, {**memory, "energies": energies}


def _claims(
    message: StructureMessage, block: RowsBlock, memory: Memory, energies: np.ndarray
) -> tuple[Statistics, Memory]:
    common, sizes = message.global_atoms, np.diff(block.ptr)
    wanted = energies > CLAIM * np.maximum(message.energies, np.finfo(float).tiny)
    order = np.argsort(np.where(wanted, -energies, np.inf), axis=1, kind="stable")
    room = np.minimum(_learnt_from(sizes) // SAMPLES_PER_ATOM, message.width)
    own = np.where(memory["rank"] > 0, np.minimum(wanted.sum(1), room), 0)
    width = max(int(own.max(initial=0)), 1)
    there = np.arange(width) < own[:, None]
    local = np.where(there[..., None], common[order[:, :width]], 0.0)
    claimed = np.zeros(len(common))
    np.add.at(claimed, order[:, :width][there], 1.0)
    wide = np.zeros((block.clients, message.width, block.features))
    wide[:, :width] = local
    statistics = {"claims": FloatSum.at(block.leaf, claimed)} | _counts(block, memory, own)
    return statistics, {**memory, "own": own, "local": wide}


def _learnt_from(sizes: np.ndarray) -> np.ndarray:
    """(c,) int64 about how many samples own atoms are learnt from."""
    return np.where(sizes < FEWEST, sizes, ((1 - HELD) * sizes).astype(np.int64))


def _counts(block: RowsBlock, memory: Memory, own: np.ndarray) -> dict[str, Statistic]:
    most = int(own.argmax()) if len(own) else 0
    return {
        "own": FloatSum.at(block.leaf, [(memory["rank"] > 0).sum(), own.sum(), (own > 0).sum()]),
        "most": ArgMax(float(own.max(initial=0)), block.first + most, {}),
    }


# --- growth -----------------------------------------------------------------------------------------------------------


def _dropped(message: StructureMessage, memory: Memory) -> tuple[np.ndarray, np.ndarray]:
    """(own (C,), local (C, width, d)) without the atoms that the server's choice drops, and, before the last passes,
    without those of clients whose held-out samples are coded no better with them."""
    keep = np.array(memory["shares"]) > SHARES[message.drop]
    if message.whole:
        keep &= np.array(memory["gains"])[:, message.drop, None]
    order = np.argsort(~keep, axis=1, kind="stable")
    own, local = keep.sum(1), np.where(keep[..., None], memory["local"], 0.0)
    return own, np.take_along_axis(local, order[..., None], axis=1)


def _grow(
    message: StructureMessage, block: RowsBlock, memory: Memory, own: np.ndarray, before: np.ndarray
) -> tuple[Statistics, Memory]:
    common, active = message.global_atoms, memory["rank"] > 0
    rg, d = common.shape
    local = np.zeros((block.clients, message.width, d))
    fits = min(message.width, before.shape[1])
    local[:, :fits] = before[:, :fits]
    xx, xy, nonzero = np.zeros((rg, rg)), np.zeros((rg, d)), 0.0
    for group in groups(block, np.where(active, rg + own, 0)):
        mine, at = _Samples(message, block, group, memory), group.clients
        if message.seeds:
            _begin(mine, common, own, local)
        width = int(own[at].max())
        atoms, rest = _with_own(common, local[at, :width]), np.zeros(len(at))
        own_xx, own_xy = np.zeros((len(at), width, width)), np.zeros((len(at), width, d))
        shared_xx, shared_xy = np.zeros((rg, rg)), np.zeros((rg, d))
        for tile, _, lengths in mine.tiles():
            codes, errors = omp_with_errors(tile, atoms, lengths)
            rest += np.where(lengths > 0, errors, 0.0).sum(1)
            shared, x = codes[..., :rg], codes[..., rg:]
            own_xx += x.swapaxes(1, 2) @ x
            own_xy += x.swapaxes(1, 2) @ (tile - shared @ common)
            by = np.ones(len(at)) if group.in_tiles else np.sqrt(mine.factors)
            flat = (shared * by[:, None, None]).reshape(-1, rg)
            shared_xx += flat.T @ flat
            shared_xy += flat.T @ ((tile - x @ local[at, :width]) * by[:, None, None]).reshape(-1, d)
            nonzero += float(np.count_nonzero(codes))
        factor = float(mine.factors[0]) if group.in_tiles else 1.0
        xx, xy = xx + factor * shared_xx, xy + factor * shared_xy
        for i, client in enumerate(at):
            local[client, : own[client]] = descend(
                local[client, : own[client]], own_xx[i, : own[client], : own[client]], own_xy[i, : own[client]]
            )
        memory["loss"][at] = rest / np.maximum(mine.learnt, 1)
    if message.whole:  # before, the run may yet continue without own atoms, and stacks clients by rank
        memory["rank"] = np.where(active, rg + own, 0)
    sizes = np.diff(block.ptr)
    rows = (sizes if message.whole else _learnt_from(sizes))[active]
    counts = [active.sum(), rows.sum(), (memory["loss"][active] * rows).sum(), nonzero]
    statistics = {
        "counts": FloatSum.at(block.leaf, counts),
        "xx": FloatSum.at(block.leaf, xx),
        "xy": FloatSum.at(block.leaf, xy),
    }
    return statistics | _counts(block, memory, own), {**memory, "own": own, "local": local}


def _begin(mine: _Samples, common: np.ndarray, own: np.ndarray, local: np.ndarray) -> None:
    """New own atoms of a group, written into own and local: the samples that are rebuilt worst, unlike one another."""
    at, most = mine.group.clients, mine.message.seeds
    atoms = _with_own(common, local[at, : int(own[at].max())])
    loud, energy = np.zeros((len(at), 0, common.shape[1])), np.zeros((len(at), 0))
    for tile, _, lengths in mine.tiles():
        rest = np.where(lengths[..., None] > 0, tile - omp(tile, atoms, lengths) @ atoms, 0.0)
        loud, energy = np.concatenate([loud, rest], 1), np.concatenate([energy, (rest**2).sum(-1)], 1)
        order = np.argsort(-energy, axis=1, kind="stable")[:, : 8 * most]
        loud, energy = np.take_along_axis(loud, order[..., None], 1), np.take_along_axis(energy, order, 1)
    unit = normalise(loud)[0]
    for i, client in enumerate(at):
        room = min(most, int(mine.learnt[i]) // SAMPLES_PER_ATOM - int(own[client]), local.shape[1] - int(own[client]))
        chosen: list[np.ndarray] = []
        for sample in unit[i][energy[i] > 0]:
            if len(chosen) >= room:
                break
            if not chosen or np.abs(np.stack(chosen) @ sample).max() < APART:
                chosen.append(sample)
        if chosen:
            local[client, own[client] : own[client] + len(chosen)] = chosen
            own[client] += len(chosen)


def _held(
    message: StructureMessage, block: RowsBlock, memory: Memory, own: np.ndarray, local: np.ndarray
) -> tuple[Statistics, Memory]:
    common, longest = message.global_atoms, message.longest
    rg, shares = len(common), np.zeros(local.shape[:2])
    gains_own = np.zeros((block.clients, len(SHARES)), bool)
    found = _Paths(longest, len(SHARES))
    for group in groups(block, np.where(memory["rank"] > 0, rg + own, 0)):
        at = group.clients
        mine, width = _Samples(message, block, group, memory), int(own[at].max())
        atoms, energy, used = _with_own(common, local[at, :width]), np.zeros((2, len(at), width)), None
        for tile, _, lengths in mine.tiles():
            codes = omp(tile, atoms, lengths)[..., rg:]
            energy += [(codes**2).sum(1), np.count_nonzero(codes, axis=1)]
        energy, used = energy
        energy[used < FEWEST_CODED] = 0.0
        for i, client in enumerate(at):
            energy[i, doubles(local[client, :width], energy[i], DOUBLE)] = 0.0
            louder = np.sort(energy[i])[::-1][: (own[client] + 1) // 2]
            shares[client, :width] = energy[i] / max(float(louder.mean()) if len(louder) else 0.0, 1e-300)
        left = np.zeros((len(at), len(SHARES) + 1))
        for tile, out, _ in mine.tiles():
            for choice, share in enumerate((*SHARES, np.inf)):
                some = np.where((shares[at, :width] > share)[..., None], local[at, :width], 0.0)
                gains = np.zeros((*tile.shape[:2], longest))
                lengths = np.where(out, longest if choice < len(SHARES) else message.most, 0)
                omp_with_errors(tile, _with_own(common, some), lengths, gains)
                left[:, choice] -= gains[..., : message.most].sum((1, 2))
                if choice < len(SHARES):
                    found.add(choice, tile, out, gains, rg + width, mine.weights)
        gains_own[at] = left[:, :-1] < left[:, -1:]
    statistics: dict[str, Statistic] = {"held": FloatSum.at(block.leaf, found.sums)}
    return statistics, {**memory, "own": own, "local": local, "shares": shares, "gains": gains_own}


def _with_own(common: np.ndarray, local: np.ndarray) -> np.ndarray:
    """(c, rg + l, d) of shared atoms (rg, d) and own ones (c, l, d), of which those of zero are never chosen."""
    return np.concatenate([np.broadcast_to(common, (len(local), *common.shape)), local], axis=1)


class _Samples:
    """Samples of a group of clients, levelled as in the rounds before.

    factors: (c,) by which sums of squares of a client are multiplied, once its samples are read; learnt: (c,) samples
    that atoms are learnt from
    """

    def __init__(self, message: StructureMessage, block: RowsBlock, group: Group, memory: Memory) -> None:
        self.message, self.block, self.group = message, block, group
        self.weights = client_weights(group.sizes, memory["left"][group.clients], message)
        self.factors, self.learnt = self.weights, group.sizes if message.whole else _learnt_from(group.sizes)

    def tiles(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(samples (c, m, d), which are held out (c, m), atoms of their codes (c, m): 0 for those held out)."""
        message, group, place = self.message, self.group, 0
        energy, nonzero = np.zeros((2, len(group.clients)))
        for tile in group.tiles():
            level, rows = levelled(tile, message.cap), place + np.arange(tile.shape[1])
            place += tile.shape[1]
            energy, nonzero = energy + level.energy, nonzero + level.nonzero
            self.factors = self.weights * client_factors(energy, nonzero, message.cap) ** 2
            names = (self.block.first, group.clients, rows)
            there = rows < group.sizes[:, None]
            out = there & (numbers_of_rows(message.seed, HELD_OUT, 0, *names) < HELD) & (group.sizes >= FEWEST)[:, None]
            numbers = numbers_of_rows(message.seed, LENGTHS, message.number, *names)
            lengths = drawn_sparsity(numbers, message.least, message.most)
            yield level.samples, out, np.where(there & (message.whole | ~out), lengths, 0)


class _Paths:
    """Of held-out samples: squared errors with 0, 1, ... atoms, and how many samples a further atom improves enough.

    sums: (choices, 2 t + 2): the t + 1 errors, the t numbers of samples, and of all of them
    """

    def __init__(self, longest: int, choices: int) -> None:
        self.longest, self.sums = longest, np.zeros((choices, 2 * longest + 2))

    def add(
        self, choice: int, tile: np.ndarray, out: np.ndarray, gains: np.ndarray, atoms: int, weights: np.ndarray
    ) -> None:
        """tile: (c, m, d); out: (c, m) which of them count; gains: (c, m, t) of the atoms of their codes; weights: (c,)
        of the clients."""
        by = np.broadcast_to(weights[:, None], out.shape)[out]
        squares, gains = np.einsum("cmd,cmd->cm", tile, tile)[out], gains[out]
        left = np.concatenate([squares[:, None], squares[:, None] - np.cumsum(gains, 1)], 1)
        by_chance = 2 * np.log(CHANCE * atoms) / np.maximum(tile.shape[-1] - np.arange(self.longest), 1)
        pays = gains > by_chance * np.maximum(left[:, :-1], 0.0)
        self.sums[choice] += np.concatenate([by @ left, by @ pays, [by.sum()]])
