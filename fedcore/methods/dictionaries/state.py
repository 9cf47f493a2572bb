"""What the server and the clients send one another, and what the next round needs. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcore.methods.dictionary_learning.operators import to_compute_with


@dataclass(frozen=True, slots=True)
class FirstSumsMessage:
    """Asks every client for what the first atoms are made of (`sums`).

    seed: of the streams of simulation randomness; atoms: rg; sums: "moments", "signed", or "" where atoms are given
    seen: clients before this one are known from an earlier run
    rows: samples of a client, mean, for more than which none counts
    """

    seed: int
    atoms: int
    sums: str
    seen: int
    rows: float


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
    rows, left:  samples of the median client, and the share of its energy that codes leave (`sums.client_weights`)
    """

    number: int
    seed: int
    common: np.ndarray
    threshold: float
    least: int
    most: int
    cap: float
    seen: int
    rows: float
    left: float

    @property
    def global_atoms(self) -> np.ndarray:
        """(rg, d) float64, to compute with."""
        return to_compute_with(self.common)


@dataclass(frozen=True, slots=True)
class StructureMessage(SumsMessage):
    """Asks all clients for a step of the search for sizes (`structure`); with what a `SumsMessage` has.

    ask:      "look", "claims", "grow" or "held"
    longest:  atoms of the codes of held-out samples
    energies: (rg,) of the shared atoms' codes, for "claims"
    drop:     which of `structure.SHARES` decides what own atoms are dropped first; -1: none
    seeds:    samples that begin as own atoms of a client, at most
    width:    own atoms of a client at most, after this
    whole:    whether held-out samples are learnt from as well
    """

    ask: str
    longest: int
    energies: np.ndarray
    drop: int
    seeds: int
    width: int
    whole: bool


@dataclass(frozen=True, slots=True)
class LocalAtomsMessage:
    """Asks every client to learn local atoms, and to keep them where they improve the code. seed, common: as in
    `SumsMessage`.

    atoms: local ones at most; least, most: atoms of the shortest and of the longest codes; steps: of learning
    """

    seed: int
    common: np.ndarray
    atoms: int
    least: int
    most: int
    steps: int

    @property
    def global_atoms(self) -> np.ndarray:
        """(rg, d) float64, to compute with."""
        return to_compute_with(self.common)


Message = FirstSumsMessage | SumsMessage | LocalAtomsMessage


# --- state ------------------------------------------------------------------------------------------------------------


def _no_numbers() -> np.ndarray:
    return np.zeros((0, 0))


def _nothing() -> np.ndarray:
    return np.zeros(0)


def _no_atoms() -> np.ndarray:
    return np.zeros((0, 0, 0))


@dataclass(frozen=True, slots=True)
class DictionariesState:
    """State after a round. rg: global atoms; d: features.

    phase:      "start" until the matching or the first sums, then "rounds", then perhaps "local", then "done";
    round:      number of rounds after it
    seed:       of the streams of simulation randomness
    features:   d
    population: clients of the population; clients, rows: those with samples, and their samples (before the first sums:
                samples of the population)
    common:     (rg, d) the global dictionary G, one atom a row; (0, d) before the first sums
    xx, xy:     (rg, rg), (rg, d) sums of codes and samples, fading over rounds if clients are sampled
    previous:   (rg, d) the global dictionary of the round before; (0, 0) if there was none
    cap:        norm beyond which samples are scaled down, 0 for none
    typical, left: samples of the median client; share of its energy that codes left in the last round, 0 for unknown
    warm:       whether the run started from given atoms
    old_xx, old_xy: sums of earlier runs of a series, forgotten as far as they are; (0, 0) if there are none
    prints:     of all samples (`sums.prints`), by which a later run sees that they are the same
    seen, seen_rows, seen_prints: clients and samples that are in old_xx, old_xy; 0 if there are none

    Of runs that find sizes (`structure`), whose phases after the first rounds are "look", "claims", "grow", "held" and
    "last", until the search is refused, or the run is done:

    sparsity:   atoms of a code that samples ask for; 0 where the settings or the features say
    steps, passes: of growth that are done, and passes of the current one
    drop, width: as in `StructureMessage`
    energies:   (rg,) of the atoms' codes, before claims
    held:       (t + 1,) logarithms of the squared error of held-out samples with 0 .. t atoms; (0,) before
    kept:       (2, rg, d) atoms with which the run continues if the search is refused, and those of the round before

    Of private runs (`private`), whose phases are "scale", "moments", "rounds", "done"; clients is the public number:

    scales:     (releases,) of the noise, in grid steps
    step:       share of a full step that an atom makes at first, without noise
    scale:      typical mean energy of a client's rows; clip: norm of a client's steps
    energies, ladder, weight: (rg,) energies of codes, and the ladder of clients' norms: means over rounds that fade
    """

    phase: str
    round: int
    seed: int
    features: int
    population: int
    clients: float = 0.0
    rows: float = 0.0
    common: np.ndarray = field(default_factory=_no_numbers)
    xx: np.ndarray = field(default_factory=_no_numbers)
    xy: np.ndarray = field(default_factory=_no_numbers)
    previous: np.ndarray = field(default_factory=_no_numbers)
    cap: float = 0.0
    typical: float = 0.0
    left: float = 0.0
    warm: bool = False
    old_xx: np.ndarray = field(default_factory=_no_numbers)
    old_xy: np.ndarray = field(default_factory=_no_numbers)
    seen: int = 0
    seen_rows: int = 0
    prints: float = 0.0
    seen_prints: float = 0.0
    sparsity: int = 0
    steps: int = 0
    passes: int = 0
    drop: int = -1
    width: int = 0
    held: np.ndarray = field(default_factory=_nothing)
    kept: np.ndarray = field(default_factory=_no_atoms)

    scales: np.ndarray = field(default_factory=_nothing)
    step: float = 0.0
    scale: float = 0.0
    clip: float = 0.0
    energies: np.ndarray = field(default_factory=_nothing)
    ladder: np.ndarray = field(default_factory=_nothing)
    weight: float = 0.0

    @property
    def remembers(self) -> bool:
        """Whether sums of earlier runs stand for the clients that were there then."""
        return len(self.old_xx) > 0

    @property
    def structured(self) -> bool:
        """Whether the run found its sizes, so that own atoms are learnt together with the shared ones."""
        return self.sparsity > 0 and self.phase in ("grow", "held", "last", "done")

    @property
    def begun(self) -> bool:
        """Whether there is a global dictionary of this run."""
        return self.phase not in ("start", "scale", "moments")
