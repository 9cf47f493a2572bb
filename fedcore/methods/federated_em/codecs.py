"""Codecs: unbiased random compressors of messages, their exact wire formats and their variance bounds.

A codec satisfies E Quant(x) = x and E ||Quant(x)||^2 <= (1 + omega) ||x||^2 (Dieuleveut, Fort, Moulines, Robin 2021,
assumption A6). Its randomness comes from outside, as uniforms named by (seed, purpose, round, client), so that messages
of different clients are independent and a retry sends the same bits.

    Identity     float64 as it is; omega = 0
    Dithering    a norm for each block, and integer levels of the entries relative to it (random dithering; with one
                 level the block-p-quantisation of DIANA: Mishchenko, Gorbunov, Takac, Richtarik 2019)
    RandK        k entries on a uniformly drawn set, scaled by q / k

`transmit` answers for a whole leaf: what the server decodes, and how many bits each client sends. `to_bits` and
`from_bits` are the wire format of one message; a test holds them against `transmit`, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedcore.errors import ConfigError, WorkerFailed
from fedcore.methods.federated_em.bits import BitReader, BitWriter, gamma_length, gamma_lengths
from fedcore.population.blocks import segment_sums

NORM_BITS = 32
LOOKED_UP = 2**12  # the largest number whose length of code is looked up
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class Codec(Protocol):
    """q: length of a message. omega: variance bound. draws: uniforms that one message needs."""

    @property
    def q(self) -> int: ...

    @property
    def omega(self) -> float: ...

    @property
    def draws(self) -> int: ...

    def transmit(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """x: (C, q) float64; uniforms: (C, draws) in (0, 1); clients: (C,) their numbers, for errors.

        Returns the decoded messages (C, q) float64 and the bits of each (C,) int64. Raises WorkerFailed for a message
        that is not finite, or too large for its wire format.
        """

    def to_bits(self, x: np.ndarray, uniforms: np.ndarray) -> tuple[bytes, int]:
        """The message of one client, x (q,) with uniforms (draws,): bytes, of which the first so many bits count."""

    def from_bits(self, message: bytes, uniforms: np.ndarray) -> np.ndarray:
        """What the server decodes, (q,) float64. uniforms: the same, where both sides know them (RandK's set)."""


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


def dithering_omega(length: int, norm: Literal["1", "2", "inf"], levels: int) -> float:
    """Smallest known omega of random dithering of a block of so many entries.

    Any level count s: min(d / (4 s^2), sqrt(d) / s) for the 2-norm and the maximum norm; with the 1-norm N <= sqrt(d)
    ||x||_2 gives min(d^2 / (4 s^2), d / s). s = 1 also has the exact value max ||x||_1 ||x||_r / ||x||_2^2 - 1 of
    block-p-quantisation: d - 1, sqrt(d) - 1 and (sqrt(d) - 1) / 2.
    """
    d, s = length, levels
    general = min(d * d / (4 * s * s), d / s) if norm == "1" else min(d / (4 * s * s), math.sqrt(d) / s)
    if s > 1:
        return general
    return min(general, {"1": d - 1.0, "2": math.sqrt(d) - 1, "inf": (math.sqrt(d) - 1) / 2}[norm])


@dataclass(frozen=True)
class Dithering:
    """Per block l: ||x_l||_r / s * sign(x) * floor(s |x| / ||x_l||_r + xi), xi uniform.

    blocks: stops of the consecutive blocks; the last one is q. norm: r. levels: s.

    The norm travels as float32, rounded up before the levels are computed from it, so that no level exceeds s and the
    levels stay unbiased. Wire format: for each block a bit that says whether it is zero, else its norm; then, unless
    all blocks are zero, a bit that names the shorter of two codes of the levels (Elias gamma codes):
    sparse = (non-zeros + 1), then gap, sign and level of each; dense = (level + 1) of each entry, signs of non-zeros.
    """

    blocks: tuple[int, ...]
    norm: Literal["1", "2", "inf"] = "2"
    levels: int = 1

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
        return max(dithering_omega(int(d), self.norm, self.levels) for d in set(self._lengths().tolist()))

    @property
    def draws(self) -> int:
        return self.q

    def transmit(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        norms, levels = self.quantise(x, uniforms, clients)
        return self.decode(norms, levels), self.bits(norms, levels)

    def quantise(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """norms (C, B) float32 and signed levels (C, q) int32, as they are sent."""
        check_finite(x, clients, LARGEST_FLOAT32)
        scaled = np.abs(x)
        norms = self._norms(scaled)
        check_finite(norms, clients)
        scaled *= self.levels
        scaled /= np.repeat(np.where(norms > 0, norms, 1.0).astype(np.float64), self._lengths(), axis=1)
        whole = np.floor(scaled)
        # the fraction against xi, not floor(scaled + xi): that sum may round up to the next whole number
        scaled -= whole
        whole += uniforms < scaled
        return norms, np.copysign(whole, x, out=whole).astype(np.int32)

    def decode(self, norms: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """(C, q) float64; the same operations on both sides, hence the same bits."""
        return np.repeat(norms.astype(np.float64), self._lengths(), axis=1) * levels / self.levels

    def bits(self, norms: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """(C,) int64: length of every message."""
        filled = (norms > 0).sum(axis=1)
        header = norms.shape[1] + NORM_BITS * filled
        return header + np.where(filled > 0, 1 + np.minimum(sparse_bits(levels), dense_bits(levels)), 0)

    def to_bits(self, x: np.ndarray, uniforms: np.ndarray) -> tuple[bytes, int]:
        norms, levels = self.quantise(x[None], uniforms[None])
        writer, code = BitWriter(), levels[0].tolist()
        for norm in norms[0]:
            writer.bit(norm == 0)
            if norm > 0:
                writer.fixed(int(norm.view(np.uint32)), NORM_BITS)
        if (norms > 0).any():
            dense = bool(dense_bits(levels)[0] <= sparse_bits(levels)[0])
            writer.bit(dense)
            (_write_dense if dense else _write_sparse)(writer, code)
        return writer.finish()

    def from_bits(self, message: bytes, uniforms: np.ndarray | None = None) -> np.ndarray:
        reader, norms = BitReader(message), np.zeros((1, len(self.blocks)), np.float32)
        for block in range(len(self.blocks)):
            if not reader.bit():
                norms[0, block] = np.uint32(reader.fixed(NORM_BITS)).view(np.float32)
        levels = np.zeros((1, self.q), np.int32)
        if (norms > 0).any():
            levels[0] = (_read_dense if reader.bit() else _read_sparse)(reader, self.q)
        return self.decode(norms, levels)[0]

    def _lengths(self) -> np.ndarray:
        return np.diff(self.blocks, prepend=0)

    def _norms(self, size: np.ndarray) -> np.ndarray:
        """(C, B) float32 block norms of |x|, rounded up; never below the largest entry of the block."""
        starts = np.array((0, *self.blocks[:-1]))
        top = np.maximum.reduceat(size, starts, axis=1)
        norms = top
        if self.norm != "inf":  # relative to the largest entry, so that no square under- or overflows
            ratio = size / np.repeat(np.where(top > 0, top, 1.0), self._lengths(), axis=1)
            if self.norm == "2":
                ratio *= ratio
            sums = np.add.reduceat(ratio, starts, axis=1)
            norms = np.maximum(top * (np.sqrt(sums) if self.norm == "2" else sums), top)
        with np.errstate(over="ignore"):
            single = norms.astype(np.float32)
            return np.where(single < norms, np.nextafter(single, np.float32(np.inf)), single)


def sparse_bits(levels: np.ndarray) -> np.ndarray:
    """(C,) int64: length of the sparse code of integer levels (C, q)."""
    clients, q = levels.shape
    at = np.flatnonzero(levels)
    ends = np.searchsorted(at, np.arange(1, clients + 1) * q)
    nonzeros = np.diff(ends, prepend=0)
    gaps = np.diff(at, prepend=-1)
    first = ends[nonzeros > 0] - nonzeros[nonzeros > 0]
    gaps[first] = at[first] - np.flatnonzero(nonzeros) * q + 1
    each = gamma_lengths(q)[gaps]
    each += _gamma_of(np.abs(levels.ravel()[at]))
    each += 1
    return gamma_lengths(q + 1)[nonzeros + 1] + segment_sums(each, np.concatenate([[0], ends]))


def dense_bits(levels: np.ndarray) -> np.ndarray:
    """(C,) int64: length of the dense code of integer levels (C, q)."""
    return _gamma_of(np.abs(levels.astype(np.int64)) + 1).sum(axis=1) + np.count_nonzero(levels, axis=1)


def _gamma_of(numbers: np.ndarray) -> np.ndarray:
    """`gamma_length`, looked up where that is possible."""
    largest = int(numbers.max(initial=0))
    return gamma_lengths(LOOKED_UP)[numbers] if largest <= LOOKED_UP else gamma_length(numbers)


def _write_sparse(writer: BitWriter, levels: Sequence[int]) -> None:
    places = [place for place, level in enumerate(levels) if level]
    writer.gamma(len(places) + 1)
    before = -1
    for place in places:
        writer.gamma(place - before)
        writer.bit(levels[place] < 0)
        writer.gamma(abs(levels[place]))
        before = place


def _read_sparse(reader: BitReader, q: int) -> list[int]:
    levels, place = [0] * q, -1
    for _ in range(reader.gamma() - 1):
        place += reader.gamma()
        sign = -1 if reader.bit() else 1
        levels[place] = sign * reader.gamma()
    return levels


def _write_dense(writer: BitWriter, levels: Sequence[int]) -> None:
    for level in levels:
        writer.gamma(abs(level) + 1)
        if level:
            writer.bit(level < 0)


def _read_dense(reader: BitReader, q: int) -> list[int]:
    levels = []
    for _ in range(q):
        size = reader.gamma() - 1
        levels.append(-size if size and reader.bit() else size)
    return levels


# --- random entries -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandK:
    """(q / k) x on the k entries with the smallest uniforms, 0 elsewhere; omega = q / k - 1.

    The entries travel as float32, 32 bits each; the set costs nothing, because both sides know the uniforms. Rounding
    to float32 leaves a relative bias of at most 2**-24 in an entry.
    """

    q: int
    k: int

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.q:
            raise ConfigError(f"rand-k keeps {self.k} of {self.q} entries.", f"Choose kept from 1 to {self.q}.")

    @property
    def omega(self) -> float:
        return self.q / self.k - 1

    @property
    def draws(self) -> int:
        return self.q

    def transmit(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        check_finite(x, clients, LARGEST_FLOAT32)
        decoded, chosen = np.zeros_like(x), self._chosen(uniforms)
        sent = np.take_along_axis(x, chosen, axis=1).astype(np.float32)
        np.put_along_axis(decoded, chosen, sent.astype(np.float64) * (self.q / self.k), axis=1)
        return decoded, np.full(len(x), 32 * self.k, np.int64)

    def to_bits(self, x: np.ndarray, uniforms: np.ndarray) -> tuple[bytes, int]:
        check_finite(x[None], None, LARGEST_FLOAT32)
        return x[self._chosen(uniforms[None])[0]].astype(">f4").tobytes(), 32 * self.k

    def from_bits(self, message: bytes, uniforms: np.ndarray) -> np.ndarray:
        decoded = np.zeros(self.q)
        decoded[self._chosen(uniforms[None])[0]] = np.frombuffer(message, ">f4").astype(np.float64) * (self.q / self.k)
        return decoded

    def _chosen(self, uniforms: np.ndarray) -> np.ndarray:
        """(C, k) increasing."""
        return np.sort(np.argsort(uniforms, axis=1, kind="stable")[:, : self.k], axis=1)
