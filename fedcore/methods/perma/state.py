"""What the next round needs. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
