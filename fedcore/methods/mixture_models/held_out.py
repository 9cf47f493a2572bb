"""Which rows a client keeps back from its own training, to judge fits by: a function of names and numbers alone.

A row's place in a random order of its client's rows depends on (seed, purpose, number of the client, number of the
row) only, so that any cut of the clients into blocks, and any retry, keeps the same rows back.

Shares are rounded to whole rows of each client, and folds are of equal size; `validation` has shares of rows that are
streamed.
"""

from __future__ import annotations

import hashlib

import numpy as np

from fedcore.methods.mixture_models.row_draws import mixed_words

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
