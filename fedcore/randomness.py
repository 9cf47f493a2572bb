"""Named random streams for simulation: `(seed, purpose, round, client)`, never "the next draw".

A retry, another block size or another number of workers changes nothing, because a stream's content is a
function of its name. Nothing here protects anybody: noise that does comes from `fedcore.privacy.mechanisms`.
"""

from __future__ import annotations

import hashlib

import numpy as np

DRAWS_PER_COUNTER = 4  # a Philox counter yields four 64-bit words


def _key(seed: int, purpose: str, round: int) -> np.ndarray:
    digest = hashlib.blake2b(f"{seed}|{purpose}|{round}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, np.uint64)


def stream(seed: int, purpose: str, round: int = 0, client: int | None = None) -> np.random.Generator:
    """The generator of this name. Ask again for the same name and it starts from its beginning.

    >>> stream(7, "start").random() == stream(7, "start").random()
    True
    """
    name = purpose if client is None else f"{purpose}|{client}"
    return np.random.Generator(np.random.Philox(key=_key(seed, name, round)))


def client_uniforms(seed: int, purpose: str, round: int, first: int, clients: int, draws: int = 1) -> np.ndarray:
    """Uniforms on the open interval (0, 1) for clients first .. first + clients - 1.

    Returns (clients, draws) float64. Row i depends on (seed, purpose, round, first + i) only, so any cut of the
    clients into blocks sees the same numbers.
    """
    counters = -(-draws // DRAWS_PER_COUNTER)
    generator = np.random.Generator(np.random.Philox(key=_key(seed, purpose, round), counter=first * counters))
    bits = generator.integers(0, 2**53, size=(clients, counters * DRAWS_PER_COUNTER), dtype=np.int64)
    return (bits[:, :draws] + 0.5) * 2.0**-53
