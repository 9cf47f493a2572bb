"""What a client contributes to a release: a vector of whole numbers with a norm of at most 2^16.

    scale     one cell: that of its mean energy
    moments   its mean of y y', clipped
    sums      means of codes times what they leave and of squared codes, clipped; the cell of the former's norm

It is a function of the message and of the client's own rows, to the last bit, and no rows make it fail or warn: clients
are answered one after the other, in tiles whose size follows from the number of columns alone. The argument is
docs/privacy/dictionaries.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedcore.methods.dictionaries.matching_pursuit import omp
from fedcore.methods.dictionaries.private.ladders import ENERGIES, NORMS
from fedcore.methods.dictionaries.private.messages import (
    MomentsMessage,
    PrivateMessage,
    PrivateSumsMessage,
    ScaleMessage,
)
from fedcore.population.blocks import RowsBlock
from fedcore.privacy.grid import GRID_NORM, bound_norms
from fedcore.rounds.statistics import IntegerSum, Statistics

TILE_NUMBERS = 2**18  # of a tile of rows
# Of the squared bound of a round's vector: steps of the atoms, energies of their codes, the ladder
SHARES = (0.90, 0.07, 0.03)
STEP_BOUND, ENERGY_BOUND, CELL_BOUND = (math.floor(math.sqrt(share) * GRID_NORM) for share in SHARES)
ENERGY_CLIP = 0.5  # of a client's squared codes, in units of the typical energy


def client_update(message: PrivateMessage, block: RowsBlock) -> Statistics:
    """The leaf's exact sum on the grid, int64, and nothing else."""
    total = np.zeros(cells_of(message, block.features), np.int64)
    with np.errstate(all="ignore"):
        for low, high in zip(block.ptr[:-1].tolist(), block.ptr[1:].tolist(), strict=True):
            total += contribution(message, block, low, high).astype(np.int64)
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


def contribution(message: PrivateMessage, block: RowsBlock, low: int, high: int) -> np.ndarray:
    """(cells,) float64 whole numbers z with sum z^2 <= 2^32 exactly: of the client with the rows low .. high - 1."""
    match message:
        case ScaleMessage():
            grid = _energy(block, low, high)
        case MomentsMessage():
            grid = _moments(message, block, low, high)
        case PrivateSumsMessage():
            grid = _sums(message, block, low, high)
    return bound_norms(grid, np.array([0, len(grid)]))


def tiles(block: RowsBlock, low: int, high: int) -> Iterator[np.ndarray]:
    """(m, d) float64 rows of a client, without those that are not finite or whose square is not."""
    step = max(TILE_NUMBERS // max(block.features, 1), 1)
    for first in range(low, high, step):
        rows = np.array(block.x[first : min(first + step, high)], np.float64, order="C")
        usable = np.isfinite(np.einsum("ij,ij->i", rows, rows))
        yield rows if usable.all() else rows[usable]


def _energy(block: RowsBlock, low: int, high: int) -> np.ndarray:
    energy, count, grid = 0.0, 0, np.zeros(ENERGIES.cells)
    for rows in tiles(block, low, high):
        energy, count = energy + float(np.sum(rows * rows)), count + len(rows)
    if count and energy > 0 and math.isfinite(energy):
        grid[ENERGIES.cell(energy / count)] = GRID_NORM
    return grid


def _moments(message: MomentsMessage, block: RowsBlock, low: int, high: int) -> np.ndarray:
    d, count = block.features, 0
    total = np.zeros((d, d))
    for rows in tiles(block, low, high):
        total += rows.T @ rows
        count += len(rows)
    return clipped(packed(total / max(count, 1)), message.clip, GRID_NORM)


def _sums(message: PrivateSumsMessage, block: RowsBlock, low: int, high: int) -> np.ndarray:
    (r, d), count = message.atoms.shape, 0
    atoms = np.array(message.atoms, np.float64, order="C")  # what came over a wire may lie at any address
    steps, energies = np.zeros((r, d)), np.zeros(r)
    for rows in tiles(block, low, high):
        codes = omp(rows, atoms, message.sparsity)
        steps += codes.T @ (rows - codes @ atoms)
        energies += np.sum(codes * codes, axis=0)
        count += len(rows)
    steps, energies = steps / max(count, 1), energies / max(count, 1)
    ladder, norm = np.zeros(NORMS.cells), float(np.sqrt(np.sum(steps * steps)))
    if norm > 0 and math.isfinite(norm):
        ladder[NORMS.cell(norm / message.scale)] = CELL_BOUND
    grid = (
        clipped(steps.ravel(), message.clip, STEP_BOUND),
        clipped(energies, ENERGY_CLIP * message.scale, ENERGY_BOUND),
        ladder,
    )
    return np.concatenate(grid)


def clipped(values: np.ndarray, clip: float, bound: int) -> np.ndarray:
    """The vector scaled down to norm `clip` where it is longer, in units of clip / bound and cut toward zero; 0 if its
    norm is not finite. Rounding can leave it a hair above the bound."""
    norm = float(np.sqrt(np.sum(values * values)))
    if not math.isfinite(norm):
        return np.zeros_like(values)
    return np.trunc(values * (bound / max(norm, clip)))


def packed(matrix: np.ndarray) -> np.ndarray:
    """(d (d + 1) / 2,) of a symmetric matrix, with its Frobenius norm: entries off the diagonal times sqrt(2)."""
    rows, columns = np.triu_indices(len(matrix))
    return matrix[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))


def unpacked(values: np.ndarray, d: int) -> np.ndarray:
    """The symmetric matrix (d, d) of `packed` values."""
    rows, columns = np.triu_indices(d)
    matrix = np.zeros((d, d))
    matrix[rows, columns] = values / np.where(rows == columns, 1.0, math.sqrt(2.0))
    return matrix + np.triu(matrix, 1).T
