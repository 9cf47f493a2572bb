"""Random numbers of single rows: functions of names and numbers alone, whatever blocks or pieces the rows come in.

A word of random bits belongs to a client, of its named stream or of a key; a finaliser of bits turns it into one number
for each of the client's rows.

Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", for the mixing (SplitMix64).
"""

from __future__ import annotations

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
