"""What a client contributes to a release: a vector of whole numbers with a norm of at most 2^16.

    scale     one cell: that of its mean energy
    moments   its mean of y y', clipped
    sums      means of codes times what they leave and of squared codes, clipped; the cell of the former's norm

It is a function of the message and of the client's own rows, to the last bit, and no rows make it fail or warn.
Clients with about as many rows are stacked, and answered together: products of matrices are made client by client,
sums run over a client's own numbers in an order that follows from their shape alone, and everything else is of one
number at a time. The argument is docs/privacy/dictionaries.md.

Ladders: how large clients' numbers are, by counts of half octaves that can be released with noise.

A client is in one cell. Numbers beyond the ends are in the last cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from fedcore.methods.dictionary_learning.sparse_codes import APART, omp_apart
from fedcore.population.blocks import RowsBlock
from fedcore.privacy.grid import GRID_NORM, bound_norms
from fedcore.rounds.messages import POSITIVE
from fedcore.rounds.statistics import IntegerSum, Statistics

STEP = 0.5  # octaves in a cell
WINDOW = 8  # cells in which nearly all clients are expected


@dataclass(frozen=True, slots=True)
class Ladder:
    """lowest: the binary logarithm at which the first cell begins; cells: their number."""

    lowest: float
    cells: int

    @property
    def edges(self) -> np.ndarray:
        """(cells - 1,) where all cells but the first begin."""
        return np.exp2(self.lowest + STEP * np.arange(1, self.cells))

    def cell(self, values: np.ndarray) -> np.ndarray:
        """The cells of positive numbers: by comparisons, which have no rounding."""
        return np.searchsorted(self.edges, values, side="right")

    def quantile(self, counts: np.ndarray, share: float) -> float:
        """The upper end of the cell at which this share of the clients is reached, within the window of WINDOW cells
        that holds the most. counts: (cells,) noisy, so that a sum over all cells would be mostly noise."""
        sums = np.convolve(counts, np.ones(WINDOW), "valid")
        first = int(sums.argmax())
        reached = np.cumsum(counts[first : first + WINDOW]) >= share * max(float(sums[first]), 1e-300)
        return float(2.0 ** (self.lowest + STEP * (first + int(reached.argmax()) + 1)))


ENERGIES = Ladder(-40.0, 160)  # of mean squared norms of rows, in the units of the data
NORMS = Ladder(-14.0, 32)  # of norms of a client's sums, in units of the typical energy


@dataclass(frozen=True, slots=True)
class ScaleMessage:
    """Asks for the cell of a client's mean energy."""

    release: str


@dataclass(frozen=True, slots=True)
class MomentsMessage:
    """Asks for second moments. clip: their Frobenius norm."""

    release: str
    clip: float = field(metadata=POSITIVE)


@dataclass(frozen=True, slots=True)
class PrivateSumsMessage:
    """Asks for what the atoms leave, by atom.

    atoms:    (r, d), norm 1
    sparsity: atoms in a code
    scale:    typical mean energy of a client's rows
    clip:     norm of what is left, times codes
    """

    release: str
    atoms: np.ndarray
    sparsity: int
    scale: float = field(metadata=POSITIVE)
    clip: float = field(metadata=POSITIVE)


PrivateMessage = ScaleMessage | MomentsMessage | PrivateSumsMessage


TILE_NUMBERS = 2**18  # of a tile of rows
STACK_NUMBERS = 2**20  # of a stack's rows, and of what its clients need: fewer calls, still near the caches
# Of the squared bound of a round's vector: steps of the atoms, energies of their codes, the ladder
SHARES = (0.90, 0.07, 0.03)
STEP_BOUND, ENERGY_BOUND, CELL_BOUND = (math.floor(math.sqrt(share) * GRID_NORM) for share in SHARES)
ENERGY_CLIP = 0.5  # of a client's squared codes, in units of the typical energy


def client_update(message: PrivateMessage, block: RowsBlock) -> Statistics:
    """The leaf's exact sum on the grid, int64, and nothing else."""
    total = np.zeros(cells_of(message, block.features), np.int64)
    with np.errstate(all="ignore"):
        for stack in stacks(block, room_of(message, block.features)):
            total += contributions(message, stack).sum(axis=0).astype(np.int64)
    return {message.release: IntegerSum(total)}


def cells_of(message: PrivateMessage, d: int) -> int:
    """How many numbers a client sends."""
    match message:
        case ScaleMessage():
            return ENERGIES.cells
        case MomentsMessage():
            return triangle(d)
        case PrivateSumsMessage():
            return sums_cells(*message.atoms.shape)


def triangle(d: int) -> int:
    """Entries of a symmetric matrix (d, d)."""
    return d * (d + 1) // 2


def sums_cells(r: int, d: int) -> int:
    return r * d + r + NORMS.cells


def room_of(message: PrivateMessage, d: int) -> int:
    """How many numbers a client needs in addition to its rows."""
    match message:
        case ScaleMessage():
            return ENERGIES.cells
        case MomentsMessage():
            return d * d
        case PrivateSumsMessage():
            return 2 * message.atoms.size


# --- rows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stack:
    """Clients of a leaf who are answered together; each has rows, filled up with zeros to `rows`, a multiple of APART.

    lows, highs: (c,) int64 where the rows of each begin and end in the block
    """

    block: RowsBlock
    lows: np.ndarray
    highs: np.ndarray
    rows: int

    def __len__(self) -> int:
        return len(self.lows)

    def tiles(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(c, m, d) float64 rows, zeros for those that are not finite or whose square is not, and (c,) how many others
        there are; more than one tile only of a client that is alone."""
        step = min(self.rows, max(TILE_NUMBERS // max(self.block.features, 1) // APART, 1) * APART)
        for first in range(0, self.rows, step):
            tile = np.zeros((len(self), min(step, self.rows - first), self.block.features))
            counts = np.minimum(self.highs - self.lows - first, tile.shape[1])
            for own, low, count in zip(tile, self.lows + first, counts, strict=True):
                own[:count] = self.block.x[low : low + count]
            usable = np.isfinite(np.add.reduce(tile * tile, axis=2))
            if not usable.all():
                tile[~usable] = 0.0
                counts = counts - np.count_nonzero(~usable, axis=1)
            yield tile, counts


def stacks(block: RowsBlock, room: int) -> Iterator[Stack]:
    """All clients of the leaf with rows, each once, those of about as many rows together."""
    lows, highs = block.ptr[:-1], block.ptr[1:]
    rows = -(-(highs - lows) // APART) * APART
    order = np.argsort(rows, kind="stable")
    order = order[np.searchsorted(rows[order], 1) :]
    edges = np.flatnonzero(np.diff(rows[order], prepend=-1, append=-1))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        many = int(rows[order[first]])
        together = max(STACK_NUMBERS // max(many * block.features, room), 1)
        if many * block.features > TILE_NUMBERS:
            together = 1
        for low in range(first, last, together):
            mine = order[low : min(low + together, last)]
            yield Stack(block, lows[mine], highs[mine], many)


# --- contributions --------------------------------------------------------------------------------------------------


def contributions(message: PrivateMessage, stack: Stack) -> np.ndarray:
    """(c, cells) float64 whole numbers, z with sum z^2 <= 2^32 exactly, of each of the clients."""
    match message:
        case ScaleMessage():
            grid = _energy(stack)
        case MomentsMessage():
            grid = _moments(message, stack)
        case PrivateSumsMessage():
            grid = _sums(message, stack)
    return bound_norms(grid.ravel(), np.arange(len(grid) + 1) * grid.shape[1]).reshape(grid.shape)


def _energy(stack: Stack) -> np.ndarray:
    energy, rows = np.zeros(len(stack)), np.zeros(len(stack), np.int64)
    for tile, counts in stack.tiles():
        energy, rows = energy + squares_of(tile), rows + counts
    mean = energy / np.maximum(rows, 1)
    return _in_cells(ENERGIES, mean, np.isfinite(energy), GRID_NORM)


def _moments(message: MomentsMessage, stack: Stack) -> np.ndarray:
    d = stack.block.features
    total, rows = np.zeros((len(stack), d, d)), np.zeros(len(stack), np.int64)
    for tile, counts in stack.tiles():
        total += tile.swapaxes(1, 2) @ tile
        rows += counts
    return clipped(packed(total / np.maximum(rows, 1)[:, None, None]), message.clip, GRID_NORM)


def _sums(message: PrivateSumsMessage, stack: Stack) -> np.ndarray:
    atoms = np.array(message.atoms, np.float64, order="C")  # a received array may be at any address
    c, (r, d) = len(stack), atoms.shape
    steps, energies, rows = np.zeros((c, r, d)), np.zeros((c, r)), np.zeros(c, np.int64)
    for tile, counts in stack.tiles():
        codes = omp_apart(tile, atoms, message.sparsity)
        rest = codes @ atoms
        np.subtract(tile, rest, out=rest)
        steps += codes.swapaxes(1, 2) @ rest
        energies += np.add.reduce(codes * codes, axis=1)
        rows += counts
    some = np.maximum(rows, 1)[:, None]
    means = steps.reshape(c, r * d)
    means /= some
    norms = np.sqrt(squares_of(means))
    grid = np.empty((c, sums_cells(r, d)))
    grid[:, : r * d] = clipped(means, message.clip, STEP_BOUND)
    grid[:, r * d : r * d + r] = clipped(energies / some, ENERGY_CLIP * message.scale, ENERGY_BOUND)
    grid[:, r * d + r :] = _in_cells(NORMS, norms / message.scale, np.isfinite(norms), CELL_BOUND)
    return grid


def _in_cells(ladder: Ladder, values: np.ndarray, finite: np.ndarray, bound: int) -> np.ndarray:
    """(c, cells): `bound` in the cell of each client's value, (c,), and 0 if that is 0 or not finite."""
    grid = np.zeros((len(values), ladder.cells))
    there = np.flatnonzero(finite & (values > 0))
    grid[there, ladder.cell(values[there])] = bound
    return grid


def squares_of(values: np.ndarray) -> np.ndarray:
    """(c,) sums of squares of all numbers of each client, first axis."""
    flat = values.reshape(len(values), -1)
    return np.asarray(np.add.reduce(flat * flat, axis=1))


def clipped(values: np.ndarray, clip: float, bound: int) -> np.ndarray:
    """Vectors (c, q) scaled down to norm `clip` where they are longer, in units of clip / bound and cut toward zero; 0
    if their norm is not finite. Rounding can leave them a hair above the bound."""
    norms = np.sqrt(squares_of(values))
    grid = values * (bound / np.maximum(norms, clip))[:, None]
    np.trunc(grid, out=grid)
    grid[~np.isfinite(norms)] = 0.0
    return grid


# --- symmetric matrices -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _upper(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the entries of the upper triangle are in a flat matrix (d, d), and their weights in its Frobenius norm."""
    rows, columns = np.triu_indices(d)
    return rows * d + columns, np.where(rows == columns, 1.0, math.sqrt(2.0))


def packed(matrices: np.ndarray) -> np.ndarray:
    """(c, d (d + 1) / 2) of symmetric matrices (c, d, d), with their Frobenius norms: entries off the diagonal times
    sqrt(2)."""
    places, weights = _upper(matrices.shape[-1])
    return matrices.reshape(len(matrices), -1)[:, places] * weights


def unpacked(values: np.ndarray, d: int) -> np.ndarray:
    """The symmetric matrix (d, d) of `packed` values."""
    places, weights = _upper(d)
    flat = np.zeros(d * d)
    flat[places] = values / weights
    matrix = flat.reshape(d, d)
    return matrix + np.triu(matrix, 1).T
