"""What the server and the clients send one another, and what the next round needs. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from fedcore.methods.dictionary_learning.operators import to_compute_with


@dataclass(frozen=True, slots=True)
class InitialMessage:
    """Asks every client to learn a dictionary alone, and some to send it.

    seed:         of the streams of simulation randomness
    threshold:    a client sends its dictionary if its uniform number is at most this; below 0: no client does
    """

    seed: int
    threshold: float


@dataclass(frozen=True, slots=True)
class RoundMessage:
    """Asks the clients for their versions of the global atoms.

    number:      of the round, from 1
    seed:        of the streams of simulation randomness
    common:      (rg, d) the global dictionary
    matched, index: as in the state, in round 1 only
    learn_local: whether the robust learner learns local atoms, as it does in the last round only
    leave_out:   whether clients who stay far from the global atoms are left out of the aggregate
    """

    number: int
    seed: int
    common: np.ndarray
    matched: np.ndarray
    index: np.ndarray
    learn_local: bool
    leave_out: bool

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


Message = InitialMessage | RoundMessage


@dataclass(frozen=True, slots=True)
class PermaState:
    """State after a round. rg: global atoms; d: features.

    phase:      "start" until the matching, then "rounds", then "done"
    round:      number of rounds after it
    seed:       of the streams of simulation randomness
    features:   d
    population: clients of the population; clients, rows: those with samples, and their samples
    common:     (rg, d) the global dictionary G, one atom a row; (0, d) before the matching
    matched:    (P,) numbers of the clients that were matched, increasing; index: (P, rg) which of their atoms are the
                global ones, -1 for none; both are empty once round 1 has used them
    far:        share of the clients of the last round who were far from the global atoms
    """

    phase: str
    round: int
    seed: int
    features: int
    population: int
    common: np.ndarray
    matched: np.ndarray
    index: np.ndarray
    clients: float = 0.0
    rows: float = 0.0
    far: float = 0.0

    @property
    def begun(self) -> bool:
        """Whether there is a global dictionary of this run."""
        return self.phase != "start"
