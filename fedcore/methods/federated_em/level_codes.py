"""Two codes of a message's integer levels, of Elias gamma codes (`bits`): the shorter one travels.

    sparse   (non-zeros + 1), then gap, sign and level of each
    dense    (level + 1) of each entry, and the signs of non-zeros

Lengths are counted for a whole leaf without writing a message; a test holds them against the written ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcore.methods.federated_em.bits import BitReader, BitWriter, gamma_length


def level_bits(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of the sparse and of the dense code of integer levels (C, q), each (C,) int64.

    A gamma code of v has 2 j + 1 bits, j the number of powers of 2 from 2 on that v reaches: so lengths are counts,
    over a message, of how many of its numbers reach each power. Counts are those of the bits of masks, 64 to a word.
    """
    size = np.abs(levels)
    q, largest = levels.shape[1], int(size.max(initial=0))
    filled = _packed(size != 0, first=True)
    nonzeros = _ones(filled) - 1
    sparse = 3 * nonzeros + gamma_length(nonzeros + 1)  # the last bits of gaps and levels, and signs
    dense = q + nonzeros
    power = 2
    while power <= largest + 1:
        dense += 2 * (nonzeros if power == 2 else _ones(_packed(size >= power - 1)))
        if power <= largest:
            sparse += 2 * _ones(_packed(size >= power))
        power *= 2
    # A gap reaches a power g unless one of the g - 1 places before is filled; `before` marks the g / 2 places from a
    # filled one on. A bit in front of the message stands for where the first gap begins.
    before, power = filled, 2
    while power <= q:
        near = before if power == 2 else before | _shifted(before, power // 2 - 1)
        reach = _ones(filled & ~_shifted(near, 1)) - 1  # but the bit in front
        if not reach.any():
            break
        sparse += 2 * reach
        before = before | _shifted(before, power // 2)
        power *= 2
    return sparse, dense


def _packed(mask: np.ndarray, first: bool = False) -> np.ndarray:
    """The bits of (C, q) bool in rows of 64-bit words, (C, W) uint64; `first`: behind one more that is set."""
    clients, q = mask.shape
    width = q + first
    padded = np.zeros((clients, -(-width // 64) * 64), bool)
    padded[:, first:width] = mask
    if first:
        padded[:, 0] = True
    return np.packbits(padded, axis=1, bitorder="little").view("<u8")


def _ones(words: np.ndarray) -> np.ndarray:
    """(C,) int64: how many bits of each row are set."""
    return np.bitwise_count(words).sum(axis=1, dtype=np.int64)


def _shifted(words: np.ndarray, places: int) -> np.ndarray:
    """The rows with every bit shifted by `places`; bits that leave a row are dropped."""
    whole, part = divmod(places, 64)
    moved = np.zeros_like(words)
    if whole < words.shape[1]:
        kept = words[:, : words.shape[1] - whole]
        moved[:, whole:] = kept << np.uint64(part)
        if part:
            moved[:, whole + 1 :] |= kept[:, :-1] >> np.uint64(64 - part)
    return moved


def write_sparse(writer: BitWriter, levels: Sequence[int]) -> None:
    places = [place for place, level in enumerate(levels) if level]
    writer.gamma(len(places) + 1)
    before = -1
    for place in places:
        writer.gamma(place - before)
        writer.bit(levels[place] < 0)
        writer.gamma(abs(levels[place]))
        before = place


def read_sparse(reader: BitReader, q: int) -> list[int]:
    levels, place = [0] * q, -1
    for _ in range(reader.gamma() - 1):
        place += reader.gamma()
        sign = -1 if reader.bit() else 1
        levels[place] = sign * reader.gamma()
    return levels


def write_dense(writer: BitWriter, levels: Sequence[int]) -> None:
    for level in levels:
        writer.gamma(abs(level) + 1)
        if level:
            writer.bit(level < 0)


def read_dense(reader: BitReader, q: int) -> list[int]:
    levels = []
    for _ in range(q):
        size = reader.gamma() - 1
        levels.append(-size if size and reader.bit() else size)
    return levels
