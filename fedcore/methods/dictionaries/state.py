"""What the next round needs, and what the server says. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def _none(*shape: int):
    return field(default_factory=lambda: np.zeros(shape))


@dataclass(frozen=True, slots=True)
class DictionariesState:
    """State after a round. r: atoms of a client; rg: global ones; d: features.

    phase:      "start", "rounds", "done"
    round:      rounds after the matching finished
    seed:       of the streams of simulation randomness
    features:   d
    population: clients of the population; clients, rows: those with samples, and their samples
    common:     (rg, d) the global dictionary G, one atom a row; (0, d) before the matching
    matched:    (P,) numbers of the clients that were matched, increasing; index: (P, rg) which of their atoms are the
                global ones, -1 for none; both until round 1 has used them
    far:        share of the clients of the last round who were far from the global atoms
    xx, xy:     (rg, rg), (rg, d) sums of codes and samples, fading over rounds if clients are sampled; learner
                "statistics" only, else (0, 0)
    """

    phase: str
    round: int
    seed: int
    features: int
    population: int
    clients: float = 0.0
    rows: float = 0.0
    common: np.ndarray = _none(0, 0)
    matched: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    index: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    far: float = 0.0
    xx: np.ndarray = _none(0, 0)
    xy: np.ndarray = _none(0, 0)


@dataclass(frozen=True, slots=True)
class StartMessage:
    """Asks every client for a dictionary of its own, and some to send it.

    threshold: a client sends it if its uniform is at most this; below 0: nobody does
    least: atoms that every client has at least
    """

    seed: int
    threshold: float
    least: int


@dataclass(frozen=True, slots=True)
class RoundMessage:
    """One round of a client. number: from 1; common: (rg, d) in the precision of messages; matched, index: as in the
    state, in round 1 only.

    threshold: a client takes part if its uniform is at most this
    learn_local: learner "statistics": whether local atoms are updated
    leave_out:  whether clients who stay far are left out of the centre
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
        """(rg, d) float64, to compute with: a copy, because what came over a wire may lie at any address, and products
        of matrices that are not aligned take another path, with other last bits."""
        return np.array(self.common, np.float64, order="C")
