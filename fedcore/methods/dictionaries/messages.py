"""What the server and the clients send one another. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.methods.dictionary_learning.operators import to_compute_with


@dataclass(frozen=True, slots=True)
class FirstSumsMessage:
    """Asks every client for what the first atoms are made of (`sums`).

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

    number:      of the round, from 1
    seed:        of the streams of simulation randomness
    common:      (rg, d) the atoms that code
    threshold:   a client takes part if its uniform number is at most this
    least, most: atoms of the codes of this round
    cap:         norm beyond which samples are scaled down (`sums.levelled`); 0 for none
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
    """Asks every client to learn local atoms, and to keep them where they pay. seed, common: as in `SumsMessage`."""

    seed: int
    common: np.ndarray

    @property
    def global_atoms(self) -> np.ndarray:
        """(rg, d) float64, to compute with."""
        return to_compute_with(self.common)


Message = FirstSumsMessage | SumsMessage | LocalAtomsMessage
