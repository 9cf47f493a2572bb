"""Rows as whole numbers, so that other units do not change what a unit adds to a sum, to the last bit.

A *unit* is what a budget protects: a record (a row), or a client with all its rows. Every number here is whole and
small enough that float64 holds it exactly, or it is one correctly rounded operation on numbers of one row. So a row's
numbers depend neither on neighbouring rows, nor on tiles, BLAS or the processor.

    s = rint((x - c) / scale 2^16), cut to 2^22          standardised rows, each column by itself
    u = rint((s - m) M 2^-e), cut to 2^22                a linear map of whole numbers: all partial sums are exact

The rows of a client of b rows count 1 / b each: what they may add is divided by b before it is made whole, so that a
client adds no more than a record may. docs/privacy/private-mixture.md argues the bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedcore.population.blocks import RowsBlock

STEP_BITS = 16
STEP = 2.0**-STEP_BITS  # of a coordinate of a row
LIMIT = 2.0**22  # steps; no coordinate of a row or of its image is further out
ONE = 2**24  # what a unit adds to a count, and the largest norm of what it adds to a sum of vectors
ROOT = 2**12  # the largest norm of a vector whose products are summed; its square is ONE
MOST_FEATURES = 256  # LIMIT**2 MOST_FEATURES stays below 2**53
WHOLE_BITS = 53
DIAGONAL = 46340, 2**16  # a fraction below 1 / sqrt(2)
OFF_DIAGONAL, ON_DIAGONAL = 17, 12  # of whole products: a ratio just above sqrt(2)
SHRINK = 1.0 - 2.0**-40  # more than the rounding of a scaling can add to a norm
TILE_NUMBERS = 2**18  # of a tile, so that a pass finds them in the processor's cache
FEWEST_ROWS, MOST_ROWS = 256, 2**17  # of a tile; sums of products below 2**24 stay far below 2**53


@dataclass(frozen=True, slots=True)
class Tile:
    """Consecutive rows. x: (n, d) float64, finite in the columns where they have to be. rows: (n,) int64 b, the number
    of rows of each row's client (with those that are not finite), or ones where records are protected. codes: (n,
    categories) int64, which value of each category a row has, for a method that reads such; None: of none."""

    x: np.ndarray
    rows: np.ndarray
    codes: np.ndarray | None = None

    def of(self, rows: np.ndarray) -> Tile:
        """Some of the rows."""
        return Tile(self.x[rows], self.rows[rows], None if self.codes is None else self.codes[rows])


def tiles(block: RowsBlock, by_client: bool, numbers_per_row: int, needed: np.ndarray | None = None) -> Iterator[Tile]:
    """The block's rows in order. Rows that are not finite are left out, and still count in b. needed: the columns whose
    numbers have to be finite; None: all."""
    length = int(np.clip(TILE_NUMBERS // max(numbers_per_row, 1), FEWEST_ROWS, MOST_ROWS))
    sizes, n = np.diff(block.ptr), int(block.ptr[-1])
    for low in range(int(block.ptr[0]), n, length):
        high = min(low + length, n)
        x = np.asarray(block.x[low:high], np.float64)
        if by_client:
            client = np.searchsorted(block.ptr[1:], np.arange(low, high), side="right")
            rows = sizes[client].astype(np.int64)
        else:
            rows = np.ones(high - low, np.int64)
        usable = np.isfinite(x if needed is None else x[:, needed]).all(axis=1)
        yield Tile(x, rows) if usable.all() else Tile(x[usable], rows[usable])


# --- coordinates ------------------------------------------------------------------------------------------------------


def standardised(x: np.ndarray, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """(n, d) float64 whole numbers of steps. centre, scale: (d,) in the units of the data, scale positive."""
    s = x - centre
    s /= scale * STEP
    return cut_coordinates(s)


def cut_coordinates(s: np.ndarray) -> np.ndarray:
    """s, changed: whole numbers of at most LIMIT; what is not a number becomes 0."""
    np.nan_to_num(s, copy=False, nan=0.0, posinf=LIMIT, neginf=-LIMIT)
    np.clip(s, -LIMIT, LIMIT, out=s)
    return np.rint(s, out=s)


@dataclass(frozen=True, slots=True)
class WholeMap:
    """An affine map between whole numbers, z -> rint((z - centre) matrix 2^-exponent), cut to LIMIT.

    centre: (d,) whole, at most LIMIT. matrix: (d, q) float64 whole. exponent: (q,) int64.
    """

    centre: np.ndarray
    matrix: np.ndarray
    exponent: np.ndarray

    def of(self, z: np.ndarray) -> np.ndarray:
        """(n, q) whole numbers. z: (n, d) whole, at most LIMIT."""
        out = (z - self.centre) @ self.matrix
        out *= np.ldexp(1.0, -self.exponent)
        return cut_coordinates(out)

    def linear(self) -> np.ndarray:
        """(d, q) what the map multiplies by, in steps of the image for each step."""
        linear: np.ndarray = self.matrix * np.ldexp(1.0, -self.exponent)
        return linear


def whole_map(centre: np.ndarray, matrix: np.ndarray) -> WholeMap:
    """The map z -> (z - centre) matrix, whose matrix is rounded to as many bits as leave all sums exact, whatever it
    holds. Entries that no exponent brings to these bits are cut to them; NaN stays, and clients refuse it.

    centre: (d,) in steps. matrix: (d, q), in steps of the image for each step.
    """
    d = len(centre)
    bits = WHOLE_BITS - 24 - int(np.ceil(np.log2(max(d, 1))))
    largest = np.maximum(np.abs(matrix).max(axis=0, initial=0.0), 1e-200)
    exponent = np.clip(bits - np.ceil(np.log2(largest)), -900, 900).astype(np.int64)
    whole = np.clip(np.rint(matrix * np.ldexp(1.0, exponent)), -(2.0**bits), 2.0**bits)
    return WholeMap(cut_coordinates(np.array(centre, np.float64)), whole, exponent)


def squared_norms(z: np.ndarray) -> np.ndarray:
    """(n,) of whole numbers of at most LIMIT (n, d): exact, whatever the order."""
    squares: np.ndarray = np.einsum("ij,ij->i", z, z)
    return squares


# --- what a unit adds -------------------------------------------------------------------------------------------------


def count_weight(rows: np.ndarray) -> np.ndarray:
    """(n,) float64 whole: what a row may add to counts, floor(ONE / b)."""
    weight: np.ndarray = np.floor_divide(ONE, rows).astype(np.float64)
    return weight


def shortened(z: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """z, changed: (n, d) whole numbers with sum z**2 <= allowed exactly.

    z: any numbers below 2**26, of which rounded ones have squared norms below 2**53; rows with NaN become 0. allowed:
    (n,) whole, below 2**53.
    """
    np.rint(z, out=z)
    squares = squared_norms(z)
    long = np.flatnonzero(~(squares <= allowed))
    if len(long):
        cut = np.trunc(z[long] * (np.sqrt(allowed[long] / squares[long]) * SHRINK)[:, None])
        z[long] = np.where(np.isnan(cut).any(axis=1)[:, None], 0.0, cut)
    return z


def cut_to(z: np.ndarray, clip: float) -> np.ndarray:
    """(n,) factors in (0, 1] that bring whole rows (n, d) to a norm of at most `clip` steps."""
    factor: np.ndarray = np.minimum(1.0, clip / np.sqrt(np.maximum(squared_norms(z), 1.0)))
    return factor


def for_sums(z: np.ndarray, factor: np.ndarray, clip: float, rows: np.ndarray) -> np.ndarray:
    """(n, d) whole numbers of norm at most floor(ONE / b): z times factor, in units of clip / ONE, divided by b.

    factor: (n,) such that z factor has a norm of at most `clip`.
    """
    allowed = count_weight(rows)
    return shortened(z * (factor * (ONE / clip) / rows)[:, None], allowed**2)


def for_products(z: np.ndarray, factor: np.ndarray, clip: float, rows: np.ndarray) -> np.ndarray:
    """(n, d) whole numbers of squared norm at most floor(ONE / b): z times factor in units of clip / ROOT, divided by
    sqrt(b)."""
    weight = factor * (ROOT / clip) / np.sqrt(rows.astype(np.float64))
    return shortened(z * weight[:, None], count_weight(rows))


def products(y: np.ndarray) -> np.ndarray:
    """(d (d + 1) / 2,) int64: the sum over rows of y y', as the upper triangle with its diagonal times 1 / sqrt(2), so
    that a row's part has norm at most sum y**2 / sqrt(2).

    y: (n, d) whole numbers with squared norms of at most ONE.
    """
    d = y.shape[1]
    sums = y.T @ y
    squares = y * y
    squares *= DIAGONAL[0]
    squares /= DIAGONAL[1]
    np.fill_diagonal(sums, np.floor(squares, out=squares).sum(axis=0))
    upper: np.ndarray = sums[np.triu_indices(d)].astype(np.int64)
    return upper


def matrix_of(triangle: np.ndarray, d: int) -> np.ndarray:
    """(d, d) symmetric from what `products` packs, its diagonal restored."""
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = triangle
    matrix += np.triu(matrix, 1).T
    matrix[np.diag_indices(d)] *= DIAGONAL[1] / DIAGONAL[0]
    return matrix


def whole_products(y: np.ndarray) -> np.ndarray:
    """(d (d + 1) / 2,) int64: the matrix A, the sum over rows of y y', as its upper triangle, OFF_DIAGONAL times the
    entries off the diagonal and ON_DIAGONAL times those on it. Nothing is rounded, so its squared norm is at most
    OFF_DIAGONAL^2 / 2 times that of A, whatever the rows are.

    y: (n, d) whole numbers with squared norms of at most ONE.
    """
    d = y.shape[1]
    places, packed = np.triu_indices(d), (y.T @ y).astype(np.int64)
    factors = np.where(places[0] == places[1], ON_DIAGONAL, OFF_DIAGONAL)
    upper: np.ndarray = packed[places] * factors
    return upper


def matrix_of_products(triangle: np.ndarray, d: int) -> np.ndarray:
    """(d, d) symmetric float64 from what `whole_products` packs."""
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = triangle
    diagonal = np.diagonal(matrix) / ON_DIAGONAL
    matrix = (matrix + matrix.T) / OFF_DIAGONAL
    matrix[np.diag_indices(d)] = diagonal
    return matrix
