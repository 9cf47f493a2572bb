"""Codecs: unbiased random compressors of messages, their exact wire formats and their variance bounds.

A codec satisfies E Quant(x) = x and E ||Quant(x)||^2 <= (1 + omega) ||x||^2 (Dieuleveut, Fort, Moulines, Robin 2021,
assumption A6). Its randomness comes from outside, as uniforms named by (seed, purpose, round, client), so that messages
of different clients are independent and a retry sends the same bits. Where a codec dithers, each uniform decides about
one number, and both promises are about sums over the numbers of what is expected of each: so the draws of one message
may share their last bits (`fedcore.randomness.client_dither`).

    Identity     float64 as it is; omega = 0
    Dithering    a 2-norm for each block, and integer levels of the entries relative to it (random dithering; with one
                 level the block quantisation of DIANA: Mishchenko, Gorbunov, Takac, Richtarik 2019)

`transmit` answers for a whole leaf: what the server decodes, and how many bits each client sends. `to_bits` and
`from_bits` are the wire format of one message; a test holds them against `transmit`, bit by bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Protocol

import numpy as np

from fedcore.errors import ConfigError, WorkerFailed
from fedcore.methods.federated_em.bits import BitReader, BitWriter
from fedcore.methods.federated_em.level_codes import level_bits, read_dense, read_sparse, write_dense, write_sparse

NORM_BITS = 32
SMALLEST_SQUARES = 1e-280  # sum below which squares may have underflowed
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class Codec(Protocol):
    """q: length of a message; omega: variance bound; draws: uniforms that one message needs; dithers: whether each of
    them is used separately, as in `fedcore.randomness.client_dither`; order: their preferred order in memory."""

    @property
    def q(self) -> int: ...

    @property
    def omega(self) -> float: ...

    @property
    def draws(self) -> int: ...

    @property
    def dithers(self) -> bool: ...

    @property
    def order(self) -> Literal["C", "F"]: ...

    def transmit(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """x: (C, q) float64; uniforms: (C, draws) in (0, 1); clients: (C,) their numbers, for errors.

        Returns the decoded messages (C, q) float64 and the bits of each (C,) int64. Raises WorkerFailed for a message
        that is not finite, or too large for its wire format.
        """

    def to_bits(self, x: np.ndarray, uniforms: np.ndarray) -> tuple[bytes, int]:
        """The message of one client, x (q,) with uniforms (draws,): bytes, and the number of bits that count."""

    def from_bits(self, message: bytes, uniforms: np.ndarray) -> np.ndarray:
        """What the server decodes, (q,) float64. uniforms: the same, where both sides know them."""


def check_finite(x: np.ndarray, clients: np.ndarray | None = None, largest: float = math.inf) -> None:
    """Raises WorkerFailed naming the first client of which a message has an entry that is no number or too large."""
    if x.size and not (x.max() <= largest and x.min() >= -largest and np.isfinite(x).all()):
        row = int(np.argmax(~(np.isfinite(x) & (np.abs(x) <= largest)).all(axis=1)))
        raise WorkerFailed(
            f"the message of client {row if clients is None else clients[row]} is not finite, or too large to be sent.",
            "Standardise the columns, look for extreme values, or lower gamma.",
        )


# --- no compression -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """q float64 values, 64 bits each."""

    q: int

    omega = 0.0
    draws = 0
    dithers = False
    order: ClassVar[Literal["C", "F"]] = "C"

    def transmit(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        check_finite(x, clients)
        return x, np.full(len(x), 64 * self.q, np.int64)

    def to_bits(self, x: np.ndarray, uniforms: np.ndarray) -> tuple[bytes, int]:
        return np.asarray(x, ">f8").tobytes(), 64 * self.q

    def from_bits(self, message: bytes, uniforms: np.ndarray) -> np.ndarray:
        return np.frombuffer(message, ">f8").astype(np.float64)


# --- random dithering -----------------------------------------------------------------------------------------------


def dithering_omega(length: int, levels: int) -> float:
    """Smallest known omega of random dithering of a block of d entries: min(d / (4 s^2), sqrt(d) / s) for s levels.
    s = 1 also has the exact value max ||x||_1 / ||x||_2 - 1 = sqrt(d) - 1 of block quantisation.
    """
    d, s = length, levels
    general = min(d / (4 * s * s), math.sqrt(d) / s)
    return general if s > 1 else min(general, math.sqrt(d) - 1)


@dataclass(frozen=True)
class Dithering:
    """Per block l: ||x_l|| / s * sign(x) * floor(s |x| / ||x_l|| + xi), xi uniform.

    blocks: stops of the consecutive blocks; the last one is q. levels: s.

    The norm travels as float32, rounded up before the levels are computed from it, so that no level exceeds s and the
    levels stay unbiased. Wire format: for each block a bit that says whether it is zero, else its norm; then, unless
    all blocks are zero, a bit that names the shorter of two codes of the levels (`level_codes`).
    """

    blocks: tuple[int, ...]
    levels: int = 1

    dithers = True
    order: ClassVar[Literal["C", "F"]] = "C"

    def __post_init__(self) -> None:
        starts = (0, *self.blocks[:-1])
        if not self.blocks or any(stop <= start for start, stop in zip(starts, self.blocks, strict=True)):
            raise ConfigError("the blocks of a codec must be consecutive and not empty.")
        if not 1 <= self.levels < 2**31:
            raise ConfigError(f"{self.levels} levels cannot be coded.", "Choose from 1 to 2**31 - 1.")

    @property
    def q(self) -> int:
        return self.blocks[-1]

    @property
    def omega(self) -> float:
        """The largest of the blocks' (product structure)."""
        return max(dithering_omega(int(d), self.levels) for d in set(self._lengths.tolist()))

    @property
    def draws(self) -> int:
        return self.q

    def transmit(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        norms, wide, levels = self._rounded(x, uniforms, clients)
        return self._scaled(wide, levels), self.bits(norms, self._integers(levels))

    def quantise(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """norms (C, B) float32 and signed levels (C, q) int8 or int32, as they are sent."""
        norms, _, levels = self._rounded(x, uniforms, clients)
        return norms, self._integers(levels)

    def decode(self, norms: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """(C, q) float64; the same operations on both sides, hence the same bits."""
        return self._scaled(np.repeat(norms.astype(np.float64), self._lengths, axis=1), levels)

    def _rounded(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """norms (C, B) float32; the norm of each number's block (C, q) float64; signed levels (C, q) float64."""
        scaled = np.abs(x)
        norms = self._norms(scaled, clients)
        wide = np.repeat(norms.astype(np.float64), self._lengths, axis=1)
        scaled *= self.levels
        if norms.all():
            scaled /= wide
        else:
            np.divide(scaled, wide, out=scaled, where=wide > 0)
        levels = np.floor(scaled)
        # the fraction against xi, not floor(scaled + xi): that sum may round up to the next whole number
        scaled -= levels
        levels += uniforms < scaled
        np.minimum(levels, self.levels, out=levels)
        np.copysign(levels, x, out=levels)
        levels += 0.0  # no -0
        return norms, wide, levels

    def _scaled(self, wide: np.ndarray, levels: np.ndarray) -> np.ndarray:
        decoded = wide * levels
        decoded /= self.levels
        return decoded

    def _integers(self, levels: np.ndarray) -> np.ndarray:
        return levels.astype(np.int8 if self.levels < 2**7 else np.int32)

    def bits(self, norms: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """(C,) int64: length of every message."""
        filled = (norms > 0).sum(axis=1)
        header = norms.shape[1] + NORM_BITS * filled
        return header + np.where(filled > 0, 1 + np.minimum(*level_bits(levels)), 0)

    def to_bits(self, x: np.ndarray, uniforms: np.ndarray) -> tuple[bytes, int]:
        norms, levels = self.quantise(x[None], uniforms[None])
        writer, code = BitWriter(), levels[0].tolist()
        for norm in norms[0]:
            writer.bit(norm == 0)
            if norm > 0:
                writer.fixed(int(norm.view(np.uint32)), NORM_BITS)
        if (norms > 0).any():
            sparse_length, dense_length = level_bits(levels)
            dense = bool(dense_length[0] <= sparse_length[0])
            writer.bit(dense)
            (write_dense if dense else write_sparse)(writer, code)
        return writer.finish()

    def from_bits(self, message: bytes, uniforms: np.ndarray | None = None) -> np.ndarray:
        reader, norms = BitReader(message), np.zeros((1, len(self.blocks)), np.float32)
        for block in range(len(self.blocks)):
            if not reader.bit():
                norms[0, block] = np.uint32(reader.fixed(NORM_BITS)).view(np.float32)
        levels = np.zeros((1, self.q), np.int32)
        if (norms > 0).any():
            levels[0] = (read_dense if reader.bit() else read_sparse)(reader, self.q)
        return self.decode(norms, levels)[0]

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.array((0, *self.blocks[:-1]))

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.diff(self.blocks, prepend=0)

    def _norms(self, size: np.ndarray, clients: np.ndarray | None) -> np.ndarray:
        """(C, B) float32 block norms of |x|, rounded up; never below the largest entry of the block. Raises
        WorkerFailed for an entry that is no number, or a norm that is too large.

        A root of squares may be below the entry by a rounding, and a float32 only if it is just below, so that the
        entry's level exceeds s with a probability of 1e-15: it is cut.
        """
        with np.errstate(over="ignore"):
            sums = np.add.reduceat(size * size, self._starts, axis=1)
        norms, exact = np.sqrt(sums), sums > SMALLEST_SQUARES
        if not exact.all():  # the norm is far below the smallest float32, to which it is rounded up
            norms = np.where(exact, norms, np.maximum.reduceat(size, self._starts, axis=1))
        check_finite(norms, clients, LARGEST_FLOAT32)
        with np.errstate(over="ignore"):
            single = norms.astype(np.float32)
            up = np.where(single < norms, np.nextafter(single, np.float32(np.inf)), single)
        check_finite(up, clients)
        return up
