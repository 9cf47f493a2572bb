"""Named random streams for simulation: `(seed, purpose, round, client)`, never "the next draw".

A retry, another block size or another number of workers changes nothing, because a stream's content is a
function of its name. Nothing here gives privacy: noise that does comes from `fedcore.privacy.mechanisms`.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np

DRAWS_PER_COUNTER = 4  # a Philox counter yields four 64-bit words


def _key(seed: int, purpose: str, round: int) -> np.ndarray:
    digest = hashlib.blake2b(f"{seed}|{purpose}|{round}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, np.uint64)


def _philox(seed: int, purpose: str, round: int, counter: int = 0) -> np.random.Philox:
    return np.random.Philox(key=_key(seed, purpose, round), counter=counter)


def stream(seed: int, purpose: str, round: int = 0, client: int | None = None) -> np.random.Generator:
    """The generator of this name. Ask again for the same name and it starts from its beginning.

    >>> stream(7, "start").random() == stream(7, "start").random()
    True
    """
    name = purpose if client is None else f"{purpose}|{client}"
    return np.random.Generator(_philox(seed, name, round))


def client_uniforms(seed: int, purpose: str, round: int, first: int, clients: int, draws: int = 1) -> np.ndarray:
    """Uniforms on the open interval (0, 1) for clients first .. first + clients - 1.

    Returns (clients, draws) float64. Row i depends on (seed, purpose, round, first + i) only, so any cut of the
    clients into blocks sees the same numbers.
    """
    counters = -(-draws // DRAWS_PER_COUNTER)
    generator = np.random.Generator(_philox(seed, purpose, round, first * counters))
    bits = generator.integers(0, 2**53, size=(clients, counters * DRAWS_PER_COUNTER), dtype=np.int64)
    return (bits[:, :draws] + 0.5) * 2.0**-53


def client_dither(
    seed: int, purpose: str, round: int, first: int, clients: int, draws: int, order: Literal["C", "F"] = "C"
) -> np.ndarray:
    """As `client_uniforms`, several times as fast, for draws of which each has to be uniform but which need not be
    independent to the last bit: those that dither the numbers of one message.

    Each is u = (2^32 k + m + 1/2) 2^-48: k, 16 bits, is its own, and m, 32 bits, is shared by all draws of the client.
    So each u is uniform on 2^48 points, and an expectation that is over one of them at a time is what it would be with
    independent ones. Given m, u is uniform on 2^16 points; of two, the covariance is that of their last 32 bits,
    2^-32 / 12.

    order: layout of the array in memory.
    """
    return ClientDither(seed, purpose, round, first, draws, order).of_next(clients)


class ClientDither:
    """`client_dither` of client after client, from `first` on, so that one generator makes them all."""

    def __init__(
        self, seed: int, purpose: str, round: int, first: int, draws: int, order: Literal["C", "F"] = "C"
    ) -> None:
        self.draws, self.order = draws, order
        self.counters = -(-(draws + 2) // (4 * DRAWS_PER_COUNTER))  # of a client
        self.philox = _philox(seed, purpose, round, first * self.counters)

    def of_next(self, clients: int) -> np.ndarray:
        """(clients, draws) float64."""
        words = self.philox.random_raw(clients * self.counters * DRAWS_PER_COUNTER).astype("<u8", copy=False)
        bits = words.view("<u2").reshape(clients, 4 * self.counters * DRAWS_PER_COUNTER)
        shared = bits[:, :2].astype(np.float64) @ np.array([1.0, 2.0**16])
        u = bits[:, 2 : 2 + self.draws].astype(np.float64, order=self.order)
        u *= 2.0**-16
        u += ((shared + 0.5) * 2.0**-48)[:, None]
        return u
