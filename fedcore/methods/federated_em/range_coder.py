"""A range coder of yes and no with adaptive contexts, and the exact number of bytes of what it writes.

A *context* is a counter of what it has coded so far. Its next answer costs -log2((2 n_v + 1) / (2 n + 2)), n_v and n
the answers like it, and all answers, that came before (Krichevsky and Trofimov 1981). Nothing about probabilities is
sent, frequencies are whole numbers, and both sides hence divide the same intervals on any machine. What all answers of
a context cost together is a function of their counts alone, `context_units`, so that a leaf's messages are measured
without being written.

A message whose answers have the probability P together is the number of the fewest bytes within its interval: no more
than ceil(-log2 P / 8) bytes, as no end of the message is coded. Source of the coder: Martin 1979.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

WINDOW = 64  # bits of the interval's width before it is widened again: whole bytes are shifted out
LOWEST = 1 << (WINDOW - 8)
UNIT = 2.0**-20  # bits: what code lengths are rounded to, so that their sums are exact in any order
SLACK = 2**14  # such units, 1/64 bit: more than whole divisions and the rounding of some thousand contexts lose


class RangeWriter:
    """Codes answers; `finish` gives the bytes."""

    def __init__(self) -> None:
        self.low, self.width, self.shifted = 0, 1 << WINDOW, 0

    def put(self, answer: int, no: int, total: int) -> None:
        """answer: 0, of the probability no / total, or 1. total: at most 2^30."""
        part = self.width // total * no
        if answer:
            self.low += part
            self.width -= part
        else:
            self.width = part
        while self.width < LOWEST:
            self.low <<= 8
            self.width <<= 8
            self.shifted += 8

    def bits(self, value: int, count: int) -> None:
        """The lowest `count` bits of a whole number, each with the probability 1/2; the highest comes first."""
        for place in range(count - 1, -1, -1):
            self.put(value >> place & 1, 1, 2)

    def finish(self, length: int) -> bytes:
        """A number of `length` bytes within the interval. Raises ValueError if there is none."""
        spare = WINDOW + self.shifted - 8 * length
        if spare <= 0:
            return (self.low << -spare).to_bytes(length, "big")
        value = -(-self.low >> spare)
        if value << spare >= self.low + self.width:
            raise ValueError(f"the message does not fit into {length} bytes")
        return value.to_bytes(length, "big")


class RangeReader:
    """Read what a `RangeWriter` wrote. The caller must ask for the same contexts in the same order. Beyond its end a
    message consists of zeros."""

    def __init__(self, message: bytes) -> None:
        self.message, self.width, self.place = message, 1 << WINDOW, WINDOW // 8
        self.rest = int.from_bytes(message[: self.place].ljust(self.place, b"\0"), "big")

    def take(self, no: int, total: int) -> int:
        """The next answer, 0 or 1."""
        part = self.width // total * no
        answer = int(self.rest >= part)
        if answer:
            self.rest -= part
            self.width -= part
        else:
            self.width = part
        while self.width < LOWEST:
            byte = self.message[self.place] if self.place < len(self.message) else 0
            self.rest = self.rest << 8 | byte
            self.width <<= 8
            self.place += 1
        return answer

    def bits(self, count: int) -> int:
        value = 0
        for _ in range(count):
            value = value << 1 | self.take(1, 2)
        return value


class Context:
    """Counts of no and yes so far; writes and reads the next answer."""

    __slots__ = ("no", "total")

    def __init__(self) -> None:
        self.no, self.total = 1, 2

    def write(self, writer: RangeWriter, answer: int) -> None:
        writer.put(answer, self.no, self.total)
        self._count(answer)

    def read(self, reader: RangeReader) -> int:
        answer = reader.take(self.no, self.total)
        self._count(answer)
        return answer

    def _count(self, answer: int) -> None:
        self.no += 0 if answer else 2
        self.total += 2


def context_units(no: np.ndarray, yes: np.ndarray) -> np.ndarray:
    """(...,) int64: cost of a context that codes these numbers of answers of each kind (...,), in whole `UNIT`s."""
    total = no + yes
    odd, even = _products(1 << int(np.max(total, initial=0)).bit_length())
    return even[total] - odd[no] - odd[yes]


@lru_cache(maxsize=4)
def _products(largest: int) -> tuple[np.ndarray, np.ndarray]:
    """log2 of the products of the first k odd and of the first k even numbers, k <= largest, in whole units."""
    i = np.arange(largest, dtype=np.float64)
    odd, even = (np.concatenate([[0.0], np.cumsum(np.log2(2 * i + first))]) for first in (1.0, 2.0))
    return np.rint(odd / UNIT).astype(np.int64), np.rint(even / UNIT).astype(np.int64)


def whole_bytes(units: np.ndarray) -> np.ndarray:
    """(...,) int64: bytes of messages that cost this many `UNIT`s; 0 for an empty one."""
    units = np.asarray(units, np.int64)
    return -(-(units + np.where(units > 0, SLACK, 0)) // int(8 / UNIT))
