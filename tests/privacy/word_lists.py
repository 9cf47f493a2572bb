"""Clients with words as plain Python values, and what they list, in Python integers: slow, and worked out anew."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np

from fedcore.population.words import WORD, WordsBlock

Client = dict[bytes, int]  # word -> count
LONGEST_LIST = 300
WHOLE = 2**32


def block_of(clients: list[Client]) -> WordsBlock:
    words = sorted({word for client in clients for word in client})
    place = {word: number for number, word in enumerate(words)}
    pairs = [sorted((place[word], count) for word, count in client.items()) for client in clients]
    flat = np.array([pair for client in pairs for pair in client], np.int64).reshape(-1, 2)
    ptr = np.concatenate([[0], np.cumsum([len(client) for client in pairs])]).astype(np.int64)
    return WordsBlock(0, ptr, flat[:, 0].astype(np.int32), flat[:, 1], np.array(words, WORD))


def weights_of(client: Client, known: set[bytes] = frozenset()) -> Client:
    """word -> weight: the largest whole number whose square is at most 2^32 over the length of the list."""
    able = [(-count, word) for word, count in client.items() if word and word not in known]
    taken = [word for _, word in sorted(able)[:LONGEST_LIST]]
    return {word: math.isqrt(math.floor(Fraction(WHOLE, len(taken)))) for word in taken}


def sums_of(clients: list[Client], known: set[bytes] = frozenset()) -> Counter[bytes]:
    total: Counter[bytes] = Counter()
    for client in clients:
        total.update(weights_of(client, known))
    return total


def some_client(rng: random.Random) -> Client:
    """Many equal counts, tokens that are no words, and now and then more words than a list may hold."""
    number = rng.choice((0, 1, 2, 5, 40, 299, 300, 301, 450))
    words = [f"w{word}".encode() for word in rng.sample(range(600), number)] + [b""] * rng.randrange(2)
    return {word: rng.choice((1, 1, 2, 3, 10**12)) for word in words}
