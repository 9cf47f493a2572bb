"""Synthetic clients who share some atoms, with their truth.

Source: Liang, Shi, Al Kontar, Fattahi 2023, Section 5.1. An orthonormal frame is cut in two: the first atoms are
everybody's, the others span the complement, which every client turns in its own way. Codes are Bernoulli times normal,
entries raised to a floor; zeros stay zero. Here samples, atoms and codes are rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.dictionary_learning.operators import random_atoms
from fedcore.randomness import stream

GARBAGE_DENSITY = 0.9


@dataclass(frozen=True, slots=True)
class SharedAtoms:
    """Samples and truth.

    samples: N arrays (n_i, d); common: (rg, d); local: N arrays (l_i, d), of a garbage client too, who does not use it
    garbage: (N,) bool, whose samples have nothing to do with the atoms
    """

    samples: tuple[np.ndarray, ...]
    common: np.ndarray
    local: tuple[np.ndarray, ...]
    garbage: np.ndarray

    def atoms(self, client: int) -> np.ndarray:
        """(rg + l_i, d) true dictionary of a client."""
        return np.concatenate([self.common, self.local[client]])


def shared_atoms(
    seed: int,
    clients: int = 10,
    features: int = 6,
    common: int = 3,
    local: int | Sequence[int] = 3,
    samples: int | Sequence[int] = 200,
    density: float = 0.2,
    floor: float = 0.3,
    garbage: int = 0,
    noise: float = 0.0,
) -> SharedAtoms:
    """Draw the population. local, samples: of all clients, or of each; the last `garbage` clients are garbage.

    Every client has a stream of its own, so that more clients or other sizes change nobody else's dictionary.
    noise: standard deviation added to every number. Raises ConfigError if so many orthonormal atoms do not fit.
    """
    own = [local] * clients if isinstance(local, int) else list(local)
    sizes = [samples] * clients if isinstance(samples, int) else list(samples)
    if len(own) != clients or len(sizes) != clients:
        raise ConfigError(
            f"{clients} clients, but {len(own)} numbers of local atoms and {len(sizes)} of samples.",
            "Give one number for all, or one for each client.",
        )
    if common + max(own, default=0) > features or min(common, *own, *sizes) < 0:
        raise ConfigError(
            f"{common} global and {max(own, default=0)} local orthonormal atoms do not fit into {features} dimensions.",
            "Ask for fewer atoms, or none below 0.",
        )
    frame = random_atoms(stream(seed, "dictionaries/frame"), features, features)
    drawn, locals_, bad = [], [], np.arange(clients) >= clients - garbage
    for client in range(clients):
        generator = stream(seed, "dictionaries/client", client=client)
        turn = random_atoms(generator, features - common, features - common)
        mine = turn[: own[client]] @ frame[common:]
        locals_.append(mine)
        atoms = np.concatenate([frame[:common], mine])
        drawn.append(_samples(generator, sizes[client], atoms, density, floor, noise, bool(bad[client])))
    return SharedAtoms(tuple(drawn), frame[:common], tuple(locals_), bad)


def _samples(
    generator, n: int, atoms: np.ndarray, density: float, floor: float, noise: float, garbage: bool
) -> np.ndarray:
    if garbage:
        mixing = generator.standard_normal((atoms.shape[1], atoms.shape[1])) / np.sqrt(atoms.shape[1])
        y = sparse_codes(generator, n, atoms.shape[1], GARBAGE_DENSITY, 0.0) @ mixing
    else:
        y = sparse_codes(generator, n, len(atoms), density, floor) @ atoms
    return y + noise * generator.standard_normal(y.shape) if noise else y


def sparse_codes(generator: np.random.Generator, n: int, r: int, density: float, floor: float) -> np.ndarray:
    """(n, r) codes: 0 with probability 1 - density, else standard normal, raised to the floor in size."""
    there, normal = generator.random((n, r)) < density, generator.standard_normal((n, r))
    raised = np.where(np.abs(normal) < floor, np.copysign(floor, normal), normal)
    return np.where(there, raised, 0.0)
