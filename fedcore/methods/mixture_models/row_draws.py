"""Random numbers of single rows: functions of names and numbers alone, whatever blocks or pieces the rows come in.

A word of random bits belongs to a client, of its named stream or of a key; a finaliser of bits turns it into one number
for each of the client's rows.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", for the mixing (SplitMix64).
"""

from __future__ import annotations

import hashlib

import numpy as np

from fedcore.randomness import client_uniforms

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


def client_words(seed: int, purpose: str, number: int, first: int, clients: int) -> np.ndarray:
    """(C,) uint64 of 53 random bits, of each client's named stream."""
    return (client_uniforms(seed, purpose, number, first, clients)[:, 0] * 2.0**53).astype(np.uint64)


def mixed_words(words: np.ndarray, number: np.ndarray) -> np.ndarray:
    """uint64 random bits, one for each pair of a word and a number >= 0; shapes are broadcast."""
    bits = words + (number.astype(np.uint64) + np.uint64(1)) * GOLDEN  # wraps, as it should
    for shift, factor in MIX:
        bits ^= bits >> np.uint64(shift)
        bits *= factor
    bits ^= bits >> np.uint64(31)
    return bits


def uniforms_of(words: np.ndarray, number: np.ndarray) -> np.ndarray:
    """[0, 1) float64, one for each pair of a word and a number; shapes are broadcast."""
    return (mixed_words(words, number) >> np.uint64(11)) * 2.0**-53


FOLDS = 5
SHARE = 0.2
FIRST = np.zeros(1, np.int64)


def random_order(seed: int, purpose: str, numbers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(N,) int64: the place of each row in a random order of its client's rows, from 0.

    numbers: (C,) of the clients in the population; sizes: (C,) their rows, which follow each other, N in all
    """
    sizes = np.asarray(sizes, np.int64)
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    row = np.arange(ptr[-1]) - ptr[owner]
    key = np.frombuffer(hashlib.blake2b(f"{seed}|{purpose}".encode(), digest_size=8).digest(), np.uint64)
    of_client = mixed_words(key + np.asarray(numbers, np.int64).astype(np.uint64), FIRST)
    bits = mixed_words(of_client[owner] + row.astype(np.uint64), FIRST)
    place = np.empty(len(owner), np.int64)
    place[np.lexsort((bits, owner))] = row
    return place


def folds(seed: int, purpose: str, numbers: np.ndarray, sizes: np.ndarray, count: int = FOLDS) -> np.ndarray:
    """(N,) int64 in 0 .. count - 1: every client's rows dealt to folds whose sizes differ by at most one."""
    return random_order(seed, purpose, numbers, sizes) % count


def held_out(seed: int, purpose: str, numbers: np.ndarray, sizes: np.ndarray, share: float = SHARE) -> np.ndarray:
    """(N,) bool: the nearest whole number of rows to the share, and at least one row, of every client that has two."""
    sizes = np.asarray(sizes, np.int64)
    kept = np.where(sizes >= 2, np.maximum(np.rint(share * sizes).astype(np.int64), 1), 0)
    return random_order(seed, purpose, numbers, sizes) < np.repeat(kept, sizes)
