"""Rounded Gaussian noise, exactly: values + round(s Z), Z standard normal. Argument: docs/privacy/rounded-gaussian.md.

The sum of a whole number S and round(s Z) is round(S + s Z), so this is the Gaussian mechanism and then a rounding: for
an L2 sensitivity D it is (D / s)-GDP, whatever the grid.

Every cell takes one word of 64 random bits: a sign and the first 63 bits k of a uniform U in [k, k + 1) 2^-63, of
which more are drawn when they are needed. |Y| = round(s z(U)) with z(u) = Q^-1(u / 2). Nearly always k alone decides
it, and a table of polynomials with a proven error gives it in floating point; where it does not, `_magnitude` decides
in balls that contain every rounding error, so that they hold whatever the precision of Arb is.
"""

from __future__ import annotations

import hashlib
import math
import os
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from fedcore.errors import PrivacyError, SensitivityError
from fedcore.privacy import normal_table

if TYPE_CHECKING:
    from flint import arb

# From 2**39 on every cell needs the slow path, which is exact for any scale; beyond this the guesses that it begins
# with become bad. Sums of squares of rows have noise of such a scale, where little of the budget is theirs.
LARGEST_SCALE: Final = 2.0**48
SMALLEST_FAST: Final = 2**normal_table.FIRST_OCTAVE  # of k; the bits of U behind a smaller k matter too much
ERROR: Final = 2.0**-40 * (1 + 2.0**-20)  # of s z in the fast path, in units of s: hidden bits, table, products
CHUNK: Final = 2**16  # cells
TO_INDEX: Final = (1023 + normal_table.FIRST_OCTAVE) << 5  # exponent and five bits of a float, of the first piece
MORE: Final = 64  # bits that are appended to U at a time


class Bits(Protocol):
    """Where random bits come from. Each bit is handed out once."""

    def words(self, n: int) -> np.ndarray:
        """(n,) uint64."""

    def more(self, n: int) -> int:
        """A whole number of n bits."""


class SystemBits:
    """The operating system's generator. Nothing is kept, so that there is no state and no seed, and a fork is safe."""

    def words(self, n: int) -> np.ndarray:
        return np.frombuffer(os.urandom(8 * n), "<u8").astype(np.uint64, copy=False)

    def more(self, n: int) -> int:
        return int.from_bytes(os.urandom(-(-n // 8)), "little") >> (-n % 8)


class StreamBits:
    """SHAKE-256 of (key, round, name), in blocks that are counted: bits that anyone with the key can make again.

    For `TestNoise` only: the same sampler, and no protection.
    """

    BLOCK = 2**16  # bytes

    def __init__(self, key: str, round: int, name: str) -> None:
        self._seed = repr((key, round, name)).encode()
        self._held = {"words": b"", "more": b""}
        self._count = {"words": 0, "more": 0}

    def _take(self, stream: str, size: int) -> bytes:
        pieces = [self._held[stream]]
        missing = size - len(pieces[0])
        while missing > 0:
            block = hashlib.shake_256(self._seed + f"|{stream}|{self._count[stream]}".encode()).digest(self.BLOCK)
            self._count[stream] += 1
            pieces.append(block)
            missing -= len(block)
        held = b"".join(pieces)
        self._held[stream] = held[size:]
        return held[:size]

    def words(self, n: int) -> np.ndarray:
        return np.frombuffer(self._take("words", 8 * n), "<u8").astype(np.uint64, copy=False)

    def more(self, n: int) -> int:
        return int.from_bytes(self._take("more", -(-n // 8)), "little") >> (-n % 8)


@cache
def _table() -> np.ndarray:
    """(8, 672) float64. Raises PrivacyError if the stored table is not the one that was proved."""
    try:
        table: np.ndarray = np.load(normal_table.FILE, allow_pickle=False)
        found = hashlib.sha256(np.ascontiguousarray(table, "<f8").tobytes()).hexdigest()
    except (OSError, ValueError):
        found = "nothing readable"
    if found != normal_table.SHA256:
        raise PrivacyError(
            f"{normal_table.FILE.name}, the table that noise is drawn with, is not the one that was proved.",
            "Install fedcore again.",
        )
    return table


def ready(scale: float) -> None:
    """Whether noise of this scale can be drawn, before anything is charged for it: range, table, source of bits.

    Raises SensitivityError for a scale that is not positive or too large, PrivacyError for a damaged installation or a
    system without random bits.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise SensitivityError(f"the scale of noise is positive and finite, not {scale!r}.")
    if scale > LARGEST_SCALE:
        raise SensitivityError(
            f"noise of scale {scale:.3g} grid units is wider than {LARGEST_SCALE:.3g}.", "Use a coarser grid."
        )
    _table()
    try:
        SystemBits().words(1)
    except (OSError, NotImplementedError) as error:
        raise PrivacyError(f"the operating system gives no random bits ({type(error).__name__}).") from None


def add(values: np.ndarray, scale: float, bits: Bits) -> np.ndarray:
    """values + round(scale Z) in every cell, independently; int64 of the same shape, saturated at the ends of int64.

    values: int64 of any shape. scale: float64, taken as the exact number that it is. Raises what `ready` raises.
    """
    ready(scale)
    flat = np.ascontiguousarray(values, np.int64).reshape(-1)
    noised = np.empty_like(flat)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        noised[start : start + CHUNK] = _saturated_sum(part, _noise(part.size, scale, bits))
    return noised.reshape(np.shape(values))


def _noise(size: int, scale: float, bits: Bits) -> np.ndarray:
    """(size,) int64: round(scale Z)."""
    words = bits.words(size)
    k = (words >> np.uint64(1)).astype(np.int64)
    scaled = scale * _z(k)
    whole = np.rint(scaled)
    decided = (k >= SMALLEST_FAST) & (np.abs(scaled - whole) + ERROR * scale < 0.5)
    magnitude = whole.astype(np.int64)
    exact_scale = Fraction(scale)
    for cell in np.flatnonzero(~decided):
        magnitude[cell] = _magnitude(int(k[cell]), exact_scale, bits, int(magnitude[cell]))
    return np.where(words & np.uint64(1), -magnitude, magnitude)


def _z(k: np.ndarray) -> np.ndarray:
    """z of k in float64, within 2^-41.6 of z(U) for every U in [k, k + 1) 2^-63 if k >= 2^42.

    k: int64. Multiplications, additions and look-ups only, which IEEE 754 rounds in one way.
    """
    table = _table()
    number = k.astype(np.float64)
    high = number.view(np.int64) >> np.int64(47)  # exponent, and the five bits behind the leading one
    index = np.clip(high - TO_INDEX, 0, normal_table.COUNT - 1)
    middle, inverse_half = _pieces()
    t = (number - middle[index]) * inverse_half[index]  # exact: k is inside the piece, and half is a power of two
    result: np.ndarray = table[normal_table.DEGREE][index]
    for n in range(normal_table.DEGREE - 1, -1, -1):
        result = result * t + table[n][index]
    return result


@cache
def _pieces() -> tuple[np.ndarray, np.ndarray]:
    """(middle, 1 / half the width) of every piece, exact floats."""
    pieces = [normal_table.piece(index) for index in range(normal_table.COUNT)]
    return np.array([float(middle) for middle, _ in pieces]), np.array([1.0 / half for _, half in pieces])


def _magnitude(k: int, scale: Fraction, bits: Bits, guess: int) -> int:
    """round(scale z(U)) for a U in [k, k + 1) 2^-63 whose further bits are drawn as they are needed.

    U is compared with the thresholds 2 Q((j - 1/2) / s) and 2 Q((j + 1/2) / s) of the guess j, in balls 64 bits more
    precise than what is known of U. j is returned only if all possible values of U are between them; any guess leads to
    the same j.
    """
    from flint import arb, ctx

    known, length = k, 63
    while known.bit_length() < 64:
        known, length = known << MORE | bits.more(MORE), length + MORE
    j = guess if k >= SMALLEST_FAST else None
    while True:
        with ctx.workprec(length + 64):
            low, high = arb(known) / arb(2) ** length, arb(known + 1) / arb(2) ** length
            if j is None:
                j = _start(low, scale)
            below, above = _threshold(2 * j + 1, scale), _threshold(2 * j - 1, scale)
            if bool(high <= below):
                j += 1
            elif j > 0 and bool(low >= above):
                j -= 1
            elif bool(low >= below) and (j == 0 or bool(high <= above)):
                return j
            else:
                known, length = known << MORE | bits.more(MORE), length + MORE


def _threshold(odd: int, scale: Fraction) -> arb:
    """2 Q(odd / (2 s)), a ball."""
    from flint import arb

    return (arb(odd * scale.denominator) / (2 * scale.numerator) / arb(2).sqrt()).erfc()


def _start(u: arb, scale: Fraction) -> int:
    """Approximate value of round(s z(u))."""
    from flint import arb

    about = u.erfcinv() * arb(2).sqrt() * scale.numerator / scale.denominator
    return max(int(float(about)), 0) if about.is_finite() else 0


def _saturated_sum(values: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """values + noise, int64; a sum that does not fit becomes the end of int64 that it would pass."""
    with np.errstate(over="ignore"):
        total = values + noise
    passed = ((values ^ total) & (noise ^ total)) < 0
    ends = np.where(values < 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max)
    return np.where(passed, ends, total)
