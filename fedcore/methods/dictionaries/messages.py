"""What the server and the clients send one another. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from fedcore.methods.dictionaries.config import DictionariesConfig


def in_message_precision(config: DictionariesConfig, atoms: np.ndarray) -> np.ndarray:
    """Atoms as they are sent, in the precision of messages."""
    return atoms.astype(config.precision, copy=False)


def to_compute_with(common: np.ndarray) -> np.ndarray:
    """The atoms of a message in float64: a copy, because what came over a wire may lie at any address, and products of
    matrices that are not aligned take another path, with other last bits."""
    return np.array(common, np.float64, order="C")


@dataclass(frozen=True, slots=True)
class InitialMessage:
    """Asks every client to learn a dictionary alone, and some to send it.

    seed:         of the streams of simulation randomness
    threshold:    a client sends its dictionary if its uniform number is at most this; below 0: nobody does
    fewest_atoms: that every client has
    """

    seed: int
    threshold: float
    fewest_atoms: int


@dataclass(frozen=True, slots=True)
class RoundMessage:
    """Asks the clients that take part for their versions of the global atoms.

    number:      of the round, from 1
    seed:        of the streams of simulation randomness
    common:      (rg, d) the global dictionary, in the precision of messages
    matched, index: as in the state, in round 1 only
    threshold:   a client takes part if its uniform number is at most this
    learn_local: whether local atoms are learnt, where only the last rounds learn them
    leave_out:   whether clients who stay far from the global atoms are left out of the aggregate
    """

    number: int
    seed: int
    common: np.ndarray
    matched: np.ndarray
    index: np.ndarray
    threshold: float
    learn_local: bool
    leave_out: bool

    @property
    def global_atoms(self) -> np.ndarray:
        """(rg, d) float64, to compute with."""
        return to_compute_with(self.common)


@dataclass(frozen=True, slots=True)
class FirstSumsMessage:
    """Asks every client for what the first atoms are made of (`shared_statistics`).

    seed: of the streams of simulation randomness; atoms: rg; sums: "moments", "signed", or "" where atoms are given
    seen: clients before this one are known from an earlier run
    """

    seed: int
    atoms: int
    sums: str
    seen: int


@dataclass(frozen=True, slots=True)
class SumsMessage:
    """Asks the clients that take part for their sums of codes and samples.

    number, seed, common, threshold: as in `RoundMessage`
    least, most: atoms of the codes of this round
    cap:         norm beyond which samples are scaled down (`shared_statistics.levelled`); 0 for none
    seen:        clients before this one are known from an earlier run, and do not answer
    """

    number: int
    seed: int
    common: np.ndarray
    threshold: float
    least: int
    most: int
    cap: float
    seen: int

    @property
    def global_atoms(self) -> np.ndarray:
        """(rg, d) float64, to compute with."""
        return to_compute_with(self.common)


@dataclass(frozen=True, slots=True)
class LocalAtomsMessage:
    """Asks every client to learn local atoms, and to keep them where they pay. seed, common: as in `RoundMessage`."""

    seed: int
    common: np.ndarray

    @property
    def global_atoms(self) -> np.ndarray:
        """(rg, d) float64, to compute with."""
        return to_compute_with(self.common)


@dataclass(slots=True)
class Counts:
    """Sums over the clients of a round; they are sent as one array, in this order.

    active_clients, samples: that took part; loss: summed over these samples; nonzero: codes; collisions: see
    `alignment`; unused_atoms: that no sample used; distance: mean matched distance of a client; left_out: of the
    aggregate; far: clients far from the global atoms; restarted: clients with new local atoms
    """

    active_clients: float = 0.0
    samples: float = 0.0
    loss: float = 0.0
    nonzero: float = 0.0
    collisions: float = 0.0
    unused_atoms: float = 0.0
    distance: float = 0.0
    left_out: float = 0.0
    far: float = 0.0
    restarted: float = 0.0

    @classmethod
    def from_array(cls, values: np.ndarray) -> Counts:
        return cls(*(float(value) for value in values))

    def to_array(self) -> np.ndarray:
        return np.array(astuple(self), np.float64)


Message = InitialMessage | RoundMessage | FirstSumsMessage | SumsMessage | LocalAtomsMessage
