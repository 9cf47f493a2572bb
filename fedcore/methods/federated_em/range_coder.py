"""A range coder of symbols with adaptive contexts, and the exact number of bytes of what it writes.

A *context* is a counter of what it has coded so far. A symbol v of A costs -log2((2 n_v + 1) / (2 n + A)), n_v and n
the symbols v, and all symbols, that came before (Krichevsky and Trofimov 1981). Nothing about probabilities is sent,
frequencies are whole numbers, and both sides hence divide the same intervals on any machine. What all symbols of a
context cost is a function of their counts alone, `context_bits`, so that a leaf's messages are measured without being
written.

A message whose symbols have the probability P together is the number of the fewest bytes within its interval: no more
than ceil(-log2 P / 8) bytes, as no end of the message is coded. Source of the coder: Martin 1979.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

WINDOW = 64  # bits of the interval's width before it is widened again: whole bytes are shifted out
LOWEST = 1 << (WINDOW - 8)
UNIT = 2.0**-20  # bits: what code lengths are rounded to, so that their sums are exact in any order
SLACK = 2**14  # such units, 1/64 bit: more than is lost by whole divisions and by rounding of at most 64 contexts


class RangeWriter:
    """Codes symbols; `finish` gives the bytes."""

    def __init__(self) -> None:
        self.low, self.width, self.shifted = 0, 1 << WINDOW, 0

    def put(self, start: int, size: int, total: int) -> None:
        """A symbol that owns start .. start + size - 1 of 0 .. total - 1; total at most 2^30."""
        each = self.width // total
        self.low += start * each
        self.width = size * each
        while self.width < LOWEST:
            self.low <<= 8
            self.width <<= 8
            self.shifted += 8

    def bits(self, value: int, count: int) -> None:
        """The lowest `count` bits of a whole number, each with the probability 1/2; the highest comes first."""
        for place in range(count - 1, -1, -1):
            self.put(value >> place & 1, 1, 2)

    def finish(self, length: int) -> bytes:
        """The number of so many bytes within the interval. Raises ValueError if there is none."""
        spare = WINDOW + self.shifted - 8 * length
        if spare <= 0:
            return (self.low << -spare).to_bytes(length, "big")
        value = -(-self.low >> spare)
        if value << spare >= self.low + self.width:
            raise ValueError(f"the message does not fit into {length} bytes")
        return value.to_bytes(length, "big")


class RangeReader:
    """Reads what a `RangeWriter` wrote; it has to be asked for the same contexts in the same order."""

    def __init__(self, message: bytes) -> None:
        self.message, self.width = message, 1 << WINDOW
        self.place = WINDOW // 8
        self.rest = int.from_bytes(message[: self.place].ljust(self.place, b"\0"), "big")

    def where(self, total: int) -> int:
        """In which of 0 .. total - 1 the message goes on; `take` has to follow. Raises ValueError for bytes that no
        writer makes."""
        at = self.rest // (self.width // total)
        if at >= total:
            raise ValueError("the message was not written by this codec")
        return at

    def take(self, start: int, size: int, total: int) -> None:
        each = self.width // total
        self.rest -= start * each
        self.width = size * each
        while self.width < LOWEST:
            byte = self.message[self.place] if self.place < len(self.message) else 0
            self.rest = self.rest << 8 | byte
            self.width <<= 8
            self.place += 1

    def bits(self, count: int) -> int:
        value = 0
        for _ in range(count):
            bit = self.where(2)
            self.take(bit, 1, 2)
            value = value << 1 | bit
        return value


class Context:
    """Counts of the symbols 0 .. A - 1 so far; writes and reads the next one."""

    __slots__ = ("sizes", "total")

    def __init__(self, symbols: int = 2) -> None:
        self.sizes, self.total = [1] * symbols, symbols

    def write(self, writer: RangeWriter, symbol: int) -> None:
        writer.put(sum(self.sizes[:symbol]), self.sizes[symbol], self.total)
        self._count(symbol)

    def read(self, reader: RangeReader) -> int:
        at, symbol, start = reader.where(self.total), 0, 0
        while at >= start + self.sizes[symbol]:
            start += self.sizes[symbol]
            symbol += 1
        reader.take(start, self.sizes[symbol], self.total)
        self._count(symbol)
        return symbol

    def _count(self, symbol: int) -> None:
        self.sizes[symbol] += 2
        self.total += 2


def context_bits(counts: np.ndarray) -> np.ndarray:
    """(...,) int64: what a context costs that codes counts (..., A) symbols of each kind, in whole `UNIT`s."""
    counts = np.asarray(counts, np.int64)
    totals, symbols = counts.sum(axis=-1), counts.shape[-1]
    largest = 1 << int(totals.max(initial=0) + symbols).bit_length()  # tables of few sizes
    odd, even = _products(largest)
    if symbols % 2:
        raise ValueError("an odd number of symbols has another table")
    before = symbols // 2 - 1  # product of 2 i + A over i < n, from that of 2 i + 2
    return even[totals + before] - even[before] - odd[counts].sum(axis=-1)


@lru_cache(maxsize=8)
def _products(largest: int) -> tuple[np.ndarray, np.ndarray]:
    """log2 of the products of the first k odd and of the first k even numbers, k <= largest, in whole units."""
    i = np.arange(largest, dtype=np.float64)
    odd, even = (np.concatenate([[0.0], np.cumsum(np.log2(2 * i + first))]) for first in (1.0, 2.0))
    return np.rint(odd / UNIT).astype(np.int64), np.rint(even / UNIT).astype(np.int64)


def whole_bytes(units: np.ndarray) -> np.ndarray:
    """(...,) int64: bytes of messages whose symbols cost so many `UNIT`s; 0 for a message of certainties."""
    units = np.asarray(units, np.int64)
    bits = units + np.where(units > 0, SLACK, 0)
    return -(-bits // int(8 / UNIT))
