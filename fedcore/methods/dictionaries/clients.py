"""The clients' side: sums for the global atoms, then local atoms, a leaf of clients at a time.

What a client remembers, first axis = clients of the leaf:

    rank      (C,) int64 atoms of its dictionary; 0 for a client without samples, or with nothing but zeros
    loss      (C,) float64 mean squared residual of a sample in its last round, before the move
    distance  (C,) float64 zeros: no client has a version of the global atoms
    left      (C,) float64 share of the energy that the longer half of its codes left in its last round; 0 before
    local     (C, l, d) its local atoms, after the last pass; zeros beyond its rank

Local atoms of a client, in addition to the global ones. They are kept if they improve the code of held-out samples.

A quarter of the samples is held out. Global and local atoms together code the others, and the local ones move to their
minimum, as global ones do (`descend`). They begin as singular vectors of the residuals of the global atoms. They are
kept if they lower the held-out squared error, with the same number of atoms for a sample, by more than its standard
error. Then they continue to learn with all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedcore.methods.dictionaries import structure
from fedcore.methods.dictionaries.state import (
    FirstSumsMessage,
    LocalAtomsMessage,
    Message,
    StructureMessage,
    SumsMessage,
)
from fedcore.methods.dictionaries.sums import (
    BINS,
    SharedSums,
    client_factors,
    client_weights,
    drawn_sparsity,
    levelled,
    moments,
    numbers_of_rows,
    prints,
    signed_sums,
    vote,
)
from fedcore.methods.dictionary_learning.distances import TILE_NUMBERS, Group, groups
from fedcore.methods.dictionary_learning.operators import normalise
from fedcore.methods.dictionary_learning.sparse_codes import descend, omp, omp_with_errors
from fedcore.population.blocks import RowsBlock
from fedcore.randomness import client_uniforms, stream
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import ArgMax, FloatSum, Statistic, Statistics

# --- local atoms ------------------------------------------------------------------------------------------------------


HELD_OUT = 0.25  # share of a client's samples
SAMPLES_PER_ATOM = 4  # that a local atom is learnt from, at least
FEWEST_HELD = 4  # samples, below which nothing is known of an error
ENERGY = 1e-10  # share of the largest, below which a singular vector is rounding
HELD, LOCAL_SPARSITY = "dictionaries/held-out", "dictionaries/local-sparsity"

Rows = Callable[[], Iterator[np.ndarray]]


def local_atoms(
    rows: Rows, size: int, common: np.ndarray, most: int, least: int, longest: int, steps: int, seed: int, client: int
) -> np.ndarray:
    """(l, d) unit atoms of one client, l <= most; l = 0 where they do not improve the code.

    rows: its samples (m, d), tile by tile, `size` in all; common: (rg, d); least, longest: atoms of the shortest and of
    the longest codes; steps: of learning; client: its number in the population
    """
    part = _Part(rows, least, longest, seed, client)
    count = min(most, int((1 - HELD_OUT) * size) // SAMPLES_PER_ATOM)
    if count < 1 or size * HELD_OUT < FEWEST_HELD:
        return np.zeros((0, common.shape[1]))
    local = _first(part, common, count)
    if not len(local):
        return local
    local = _learnt(part, common, local, steps, held=False)
    gain, squares, held = 0.0, 0.0, 0
    for y, sparsity in part.tiles(held=True):
        without = omp_with_errors(y, common, sparsity)[1]
        gains = without - omp_with_errors(y, np.concatenate([common, local]), sparsity)[1]
        gain, squares, held = gain + float(gains.sum()), squares + float((gains**2).sum()), held + len(y)
    if held < FEWEST_HELD or gain <= np.sqrt(max(squares - gain**2 / held, 0.0) * held / (held - 1)):
        return local[:0]
    return _learnt(part, common, local, max(steps // 2, 1), held=None)


class _Part:
    """Samples of a client with the number of atoms of each one's code: those held out, the others, or all."""

    def __init__(self, rows: Rows, least: int, longest: int, seed: int, client: int):
        self.rows, self.least, self.longest, self.seed, self.client = rows, least, longest, seed, client

    def tiles(self, held: bool | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(samples (m, d), atoms of their codes (m,)). held: None for all."""
        place, me = 0, np.zeros(1, np.int64)
        for tile in self.rows():
            at = place + np.arange(len(tile))
            place += len(tile)
            numbers = numbers_of_rows(self.seed, LOCAL_SPARSITY, 0, self.client, me, at)[0]
            sparsity = drawn_sparsity(numbers, self.least, max(self.longest, self.least))
            if held is None:
                yield tile, sparsity
                continue
            out = numbers_of_rows(self.seed, HELD, 0, self.client, me, at)[0] < HELD_OUT
            mine = out if held else ~out
            yield tile[mine], sparsity[mine]


def _first(part: _Part, common: np.ndarray, count: int) -> np.ndarray:
    """(at most count, d) leading singular vectors of what the global atoms leave, by the smaller matrix of products; of
    the first tile alone where that has fewer samples than features."""
    rests = (y - omp(y, common, sparsity) @ common for y, sparsity in part.tiles(held=False))
    rest = next(rest for rest in rests if len(rest))  # of few wide samples all may be held out
    few = len(rest) < rest.shape[1]
    values, vectors = np.linalg.eigh(rest @ rest.T if few else sum((r.T @ r for r in rests), rest.T @ rest))
    vectors = vectors[:, ::-1][:, :count].T
    atoms = normalise(vectors @ rest if few else vectors)[0]
    return atoms[values[::-1][: len(atoms)] > ENERGY * values[-1]]


def _learnt(part: _Part, common: np.ndarray, local: np.ndarray, steps: int, held: bool | None) -> np.ndarray:
    """Local atoms after some steps from `local`."""
    wanted = len(common)
    for _ in range(steps):
        xx, xy = np.zeros((len(local), len(local))), np.zeros_like(local)
        atoms = np.concatenate([common, local])
        for y, sparsity in part.tiles(held):
            x = omp(y, atoms, sparsity)
            own = x[:, wanted:]
            xx += own.T @ own
            xy += own.T @ (y - x[:, :wanted] @ common)
        local = descend(local, xx, xy)
    return local


PARTICIPATION = "dictionaries/participation"
SPARSITY = "dictionaries/sparsity"
SIGNS = "dictionaries/signs"


def placed_tiles(group: Group) -> Iterator[tuple[int, np.ndarray]]:
    """(place in the client of the first sample of each, tile (c, m, d)) of a group, in order."""
    done = 0
    for tile in group.tiles():
        yield done, tile
        done += tile.shape[1]


def client_update(message: Message, block: RowsBlock, memory: Memory | None) -> tuple[Statistics, Memory]:
    """The answer of one leaf of clients. Raises PopulationError for values that are not finite."""
    if isinstance(message, FirstSumsMessage):
        return first_sums(message, block)
    assert memory is not None
    if isinstance(message, StructureMessage):
        return structure.client_update(message, block, memory)
    memory = {name: np.array(memory[name]) for name in ("rank", "loss", "distance", "left")}
    if isinstance(message, SumsMessage):
        return shared_round(message, block, memory)
    return local_round(message, block, memory)


def first_sums(message: FirstSumsMessage, block: RowsBlock) -> tuple[Statistics, Memory]:
    """Sums of all samples for the start, which samples there are, and how large they are."""
    sizes, d = np.diff(block.ptr), block.features
    shapes = {"moments": (d, d), "signed": (message.atoms, d), "": (0, 0)}
    sums, own = np.zeros(shapes[message.sums]), np.zeros(block.clients)
    votes, of_sizes = np.zeros((2, BINS))
    ranks = np.where(sizes > 0, max(message.atoms, 1), 0)
    for group in groups(block, ranks):
        energy, nonzero = np.zeros((2, len(group.clients)))
        weights = np.minimum(1.0, message.rows / group.sizes) if message.rows else np.ones(len(group.clients))
        signs = [stream(message.seed, SIGNS, 0, block.first + int(client)) for client in group.clients]
        for tile in group.tiles():
            norms = np.einsum("cmd,cmd->cm", tile, tile)
            energy += norms.sum(1)
            nonzero += np.count_nonzero(norms, axis=1)
            own[group.clients] += prints(tile)
            if message.sums == "moments":
                sums += moments(tile.reshape(-1, d), np.repeat(weights, tile.shape[1]))
            elif message.sums == "signed":
                for i, generator in enumerate(signs):
                    rows = tile[i, : min(int(group.sizes[i]), tile.shape[1])]
                    random = generator.integers(0, 2, (len(rows), message.atoms)) * 2.0 - 1.0
                    sums += signed_sums(rows, random * np.sqrt(weights[i]))
        heard = nonzero > 0
        ranks[group.clients[~heard]] = 0
        np.add.at(votes, vote(np.sqrt(energy[heard] / nonzero[heard])), 1.0)
        np.add.at(of_sizes, vote(group.sizes[heard]), 1.0)
    there = ranks > 0
    few = there & (sizes < message.atoms)
    seen = slice(max(message.seen - block.first, 0))
    counts = [there.sum(), sizes.sum(), (~there).sum(), few.sum()]
    statistics: dict[str, Statistic] = {
        "sizes": FloatSum.at(block.leaf, counts),
        "prints": FloatSum.at(block.leaf, [own.sum(), own[seen].sum(), sizes[seen].sum()]),
        "sums": FloatSum.at(block.leaf, sums),
        "votes": FloatSum.at(block.leaf, np.stack([votes, of_sizes])),
    }
    return statistics, {"rank": ranks} | {name: np.zeros(block.clients) for name in ("loss", "distance", "left")}


def shared_round(message: SumsMessage, block: RowsBlock, memory: Memory) -> tuple[Statistics, Memory]:
    """Sums of codes and samples of the clients that take part."""
    common = message.global_atoms
    taking = (memory["rank"] > 0) & (block.first + np.arange(block.clients) >= message.seen)
    if message.threshold < 1:
        uniforms = client_uniforms(message.seed, PARTICIPATION, message.number, block.first, block.clients)[:, 0]
        taking &= uniforms <= message.threshold
    sums, loud, bounded, votes = SharedSums.none(*common.shape), 0, 0, np.zeros(BINS)
    # All have the same atoms: long stacks, so that matching pursuit has many samples at a time
    for group in groups(block, memory["rank"], taking, TILE_NUMBERS):
        loss, energy, nonzero = np.zeros((3, len(group.clients)))
        long = np.zeros((2, len(group.clients)))  # squared residuals and energies of the longer half of codes
        # How loud a client that is read in tiles is, is known when they are read
        found = SharedSums.none(*common.shape) if group.in_tiles else sums
        weights = client_weights(group.sizes, memory["left"][group.clients], message)
        for place, tile in placed_tiles(group):
            level = levelled(tile, message.cap)
            loud, energy, nonzero = loud + level.loud, energy + level.energy, nonzero + level.nonzero
            factors = client_factors(energy, nonzero, message.cap)
            # Sums are quadratic in samples: those times f, and codes with them, count f squared
            by = factors * np.sqrt(weights)
            scaled = level.samples
            if not group.in_tiles and (by < 1).any():
                scaled = scaled * by[:, None, None]
            rows = place + np.arange(tile.shape[1])
            numbers = numbers_of_rows(message.seed, SPARSITY, message.number, block.first, group.clients, rows)
            sparsity = drawn_sparsity(numbers, message.least, message.most)
            flat = scaled.reshape(-1, block.features)
            errors = found.add(flat, common, sparsity.ravel()).reshape(tile.shape[:2])
            loss += errors.sum(1)
            longer = 2 * sparsity >= message.least + message.most
            long += [np.where(longer, part, 0.0).sum(1) for part in (errors, np.einsum("cmd,cmd->cm", scaled, scaled))]
        bounded += int(np.count_nonzero(factors < 1))
        if group.in_tiles:
            sums.include(found, float(by[0]))
            loss *= by**2
        loss /= weights
        left = np.divide(long[0], long[1], out=np.zeros(len(loss)), where=long[1] > 0)
        np.add.at(votes, vote(left[left > 0]), 1.0)
        memory["loss"][group.clients], memory["left"][group.clients] = loss / group.sizes, left
    sizes = np.diff(block.ptr)
    counts = [taking.sum(), sizes[taking].sum(), (memory["loss"] * sizes)[taking].sum(), sums.nonzero]
    statistics: dict[str, Statistic] = {
        "counts": FloatSum.at(block.leaf, counts),
        "loud": FloatSum.at(block.leaf, [float(loud), float(bounded)]),
        "left": FloatSum.at(block.leaf, votes),
        "worst": _worst(block, memory, taking),
        "xx": FloatSum.at(block.leaf, sums.xx),
        "xy": FloatSum.at(block.leaf, sums.xy),
    }
    return statistics, memory


def local_round(message: LocalAtomsMessage, block: RowsBlock, memory: Memory) -> tuple[Statistics, Memory]:
    """Every client learns local atoms, and keeps them if they improve the code of its held-out samples."""
    common = message.global_atoms
    wanted, active = len(common), memory["rank"] > 0
    local, ranks = np.zeros((block.clients, message.atoms, block.features)), np.where(active, wanted, 0)
    for group in groups(block, memory["rank"], active):
        for i, client in enumerate(group.clients.tolist()):
            number = block.first + client
            found = local_atoms(
                group.rows_of(i),
                int(group.sizes[i]),
                common,
                message.atoms,
                message.least,
                message.most,
                message.steps,
                message.seed,
                number,
            )
            local[client, : len(found)] = found
            ranks[client] = wanted + len(found)
    statistics: dict[str, Statistic] = {
        "local": FloatSum.at(block.leaf, [active.sum(), (ranks - wanted)[active].sum(), (ranks > wanted).sum()])
    }
    return statistics, {**memory, "rank": ranks, "local": local}


def _worst(block: RowsBlock, memory: Memory, taking: np.ndarray) -> ArgMax:
    values = np.where(taking, memory["loss"], -1.0)
    largest = int(values.argmax())
    return ArgMax(float(values[largest]), block.first + largest, {})
