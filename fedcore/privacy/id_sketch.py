"""A noisy sketch of the ids of a population, from which the number of ids in two populations can be estimated.

It is a signed count sketch: a keyed hash sends each id to one of m cells and adds 1 or subtracts 1 there. Two-sided
geometric noise is added to every cell before the sketch is stored. The product of two sketches estimates the number of
common ids. Privacy and accuracy: docs/privacy/shared-ids.md.
"""

from __future__ import annotations

import math
import os
import unicodedata
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

FEWEST, MOST = 2**6, 2**18  # cells
CONTINUE, OUTCOMES = 3, 8  # the noise has P(k) ~ (3/8)^|k|, so that one id changes odds by at most 8/3 < e
VARIANCE = 2 * (CONTINUE / OUTCOMES) / (1 - CONTINUE / OUTCOMES) ** 2  # of the noise of one cell
SIGNIFICANT = 4.0  # standard deviations of the estimate without a common id
MANY = 0.01  # of the ids of the smaller population
OF_IDS, OF_BLOCKS, OF_KEY = b"fedcore ids", b"fedcore blocks", b"fedcore key"  # uses of the key


@dataclass(frozen=True, slots=True)
class Sketch:
    """cells: (m,) int64, m a power of two; ids: that were added; parts: additions, each of which brought new noise"""

    cells: np.ndarray
    ids: int
    parts: int

    @classmethod
    def empty(cls, ids: int) -> Sketch:
        """An empty sketch for about this number of ids: half as many cells give the estimate its smallest error."""
        m = 2 ** round(math.log2(max(ids / 2, 1)))
        return cls(np.zeros(min(max(m, FEWEST), MOST), np.int64), 0, 0)

    def with_ids(self, names: np.ndarray) -> Sketch:
        """The sketch with these ids too, each of which must be new to it. names: of `keyed_names`"""
        signs = np.where(names >> np.uint64(63), 1, -1)
        places = (names & np.uint64(len(self.cells) - 1)).astype(np.int64)
        sums = np.zeros(len(self.cells), np.int64)
        np.add.at(sums, places, signs)
        return Sketch(self.cells + sums + noise(len(sums)), self.ids + len(names), self.parts + 1)

    @property
    def outgrown(self) -> bool:
        """Whether it has far more ids than cells, so that a new, larger one would estimate much better."""
        return self.ids > 32 * len(self.cells) and len(self.cells) < MOST

    def to_bytes(self) -> bytes:
        return zlib.compress(self.cells.astype("<i4").tobytes())

    @classmethod
    def of_bytes(cls, data: bytes, ids: int, parts: int) -> Sketch:
        """Raises ValueError for anything that `to_bytes` did not make."""
        try:
            cells = np.frombuffer(zlib.decompressobj().decompress(data, 4 * MOST), "<i4").astype(np.int64)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        if not FEWEST <= len(cells) <= MOST or len(cells) & (len(cells) - 1):
            raise ValueError(f"{len(cells)} cells")
        return cls(cells, ids, parts)


@dataclass(frozen=True, slots=True)
class Overlap:
    """ids: estimate of the common ids; error: its standard error; many: whether they are many, and surely not none"""

    ids: float
    error: float
    many: bool


def overlap(one: Sketch, other: Sketch) -> Overlap:
    """How many ids are in both. Both sketches have the same key; the larger one is folded to the size of the other."""
    m = min(len(one.cells), len(other.cells))
    product = int(np.dot(*(sketch.cells.reshape(-1, m).sum(0) for sketch in (one, other))))
    squares = [sketch.ids + VARIANCE * sketch.parts * len(sketch.cells) for sketch in (one, other)]  # of all cells
    by_chance = math.sqrt(squares[0] * squares[1] / m)
    smaller = min(one.ids, other.ids)
    many = smaller >= SIGNIFICANT * by_chance < product and product >= MANY * smaller
    estimate = min(max(product, 0), smaller)
    return Overlap(estimate, math.hypot(by_chance, estimate / math.sqrt(m)), many)


def noise(cells: int) -> np.ndarray:
    """(cells,) int64, the difference of two geometric numbers: exact, on bits of the operating system."""
    drawn: np.ndarray = _successes(cells) - _successes(cells)
    return drawn


def _successes(cells: int) -> np.ndarray:
    """(cells,) int64, how many of a row of octal digits are below 3 before the first one that is not."""
    found, running = np.zeros(cells, np.int64), np.arange(cells)
    while len(running):
        digits = np.frombuffer(os.urandom(len(running)), np.uint8) % OUTCOMES
        running = running[digits < CONTINUE]
        found[running] += 1
    return found


def keyed_names(ids: Iterable[str], key: bytes) -> np.ndarray:
    """(C,) uint64, a keyed hash of each id, the same for its spellings."""
    keyed = blake2b(digest_size=8, key=key, person=OF_IDS)

    def hashed(text: str) -> bytes:
        one = keyed.copy()  # cheaper than a new one
        one.update(text.encode())
        return one.digest()

    return np.frombuffer(b"".join(map(hashed, _folded(list(ids)))), "<u8")


def keyed_block(fingerprint: str, key: bytes) -> bytes:
    """Sixteen bytes in place of the digest of a block."""
    return blake2b(fingerprint.encode(), digest_size=16, key=key, person=OF_BLOCKS).digest()


def key_name(key: bytes) -> str:
    """A name that distinguishes sketches of different keys. It does not reveal the key."""
    return blake2b(key=key, digest_size=8, person=OF_KEY).hexdigest()


def _folded(texts: list[str]) -> list[str]:
    """Ids without differences of case, of compatibility forms (full-width letters), and of white space."""
    if "".join(texts).isascii():
        return [" ".join(text.lower().split()) for text in texts]
    return [" ".join(unicodedata.normalize("NFKC", _caseless(text)).split()) for text in texts]


def _caseless(text: str) -> str:
    """Compatibility caseless matching: the Unicode Standard, chapter 3.13, D146."""
    once = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", text).casefold())
    return unicodedata.normalize("NFKD", once.casefold())
