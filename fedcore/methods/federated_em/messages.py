"""What the server says in each phase of a run. Frozen; arrays and scalars only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedcore.methods.mixture_models.contract import Theta
from fedcore.methods.mixture_models.hidden_cells import HiddenCells
from fedcore.methods.mixture_models.validation import Split
from fedcore.rounds.messages import POSITIVE

BITS_PER_NUMBER = 64  # of what is not compressed
HEADER_BITS = 64  # the number of the round

Oracle = Literal["full", "batch", "recursive"]


def bits_to_client(q: int, parameters: int) -> float:
    """Bits of a server's message: the number of the round, S_k (q numbers) and T(S_k). Not compressed, as in the
    paper. In natural units clients need the step D, and that of components where there is one, in place of S_k; for
    regressions they need it too."""
    return float(HEADER_BITS + BITS_PER_NUMBER * (q + parameters))


@dataclass(frozen=True, slots=True)
class Scaling:
    """How rows are standardised before the model sees them, (x - centre) / scale, and the pooled moments that the
    model's penalty and its initialisation rest on.

    centre, scale: (d,) float64, in the units of the data; (0,) if rows are left as they are
    variance, mean: (d,) float64 of the standardised columns; mean is (0,) where it is not known
    seen: (d,) float64, how many entries of each column are not missing; (0,) where that is not known
    split: which rows (of tables, cells) of the clients take no part; None: all take part
    penalty_share: the model's penalty as a share of the data; None where the settings alone say it
    chosen: the number that the run chose for a setting of its model; 0 before, and where there is none
    degrees: of freedom of the components; None: they are normal

    For tables variance, mean and seen are those of the J L cells.
    """

    centre: np.ndarray
    scale: np.ndarray
    variance: np.ndarray
    mean: np.ndarray
    seen: np.ndarray
    penalty_share: float | None = None
    split: Split | HiddenCells | None = None
    chosen: float = 0.0
    degrees: float | None = None


def plain_scaling(width: int) -> Scaling:
    """Rows as they are; moments are not known, and variances are taken to be 1."""
    none = np.zeros(0)
    return Scaling(none, none, np.ones(width), none, none)


@dataclass(frozen=True, slots=True)
class MomentsMessage:
    """Asks for the clients' numbers of rows and the moments of the columns, and for a sample of the rows. The rows are
    checked on the way.

    split: which rows take no part; None: all take part
    sample: expected share of the rows in the sample, every row by its own uniform; 0: no sample
    seed: of these uniforms
    """

    split: Split | HiddenCells | None = None
    sample: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SeedMessage:
    """Asks for one more seed, a row of the population, for each of R initialisations.

    chosen: (R, j, d) float64, the seeds so far, standardised
    by_distance: a row is drawn with a probability proportional to its squared distance from the nearest seed
        (k-means++); else all rows that are no seed yet are equally likely
    """

    chosen: np.ndarray
    by_distance: bool
    scaling: Scaling
    seed: int


@dataclass(frozen=True, slots=True)
class ClusterMessage:
    """Asks for the sums of the clusters around the centres of R initialisations, (R, G, d) float64, standardised.

    gaps: whether some entries of the population are missing, so that the entries of each column are counted
    component_step: of the codec for sums in natural units, as in a round; 0: they are not coded
    number: of the pass, which names its random streams, with the seed. rows: of the population
    """

    centres: np.ndarray
    scaling: Scaling
    gaps: bool = False
    component_step: float = 0.0
    number: int = 0
    seed: int = 0
    rows: float = 0.0


@dataclass(frozen=True, slots=True)
class TrialMessage:
    """Asks for one exact EM step of each initialisation: sums of statistics, and objectives; if some rows take no part,
    also for the losses of these.

    thetas: one set of parameters for each. clients, rows: totals of the population, from which the weights w_i follow
    (also in the messages below).
    """

    thetas: tuple[Theta, ...]
    scaling: Scaling
    clients: float
    rows: float


@dataclass(frozen=True, slots=True)
class InitialMemoryMessage:
    """Asks for V_{0,i} = h_i(S_0), uncompressed: the memories with which the theorems begin.

    theta: T(S_0). s: (q,) S_0.
    """

    theta: Theta
    s: np.ndarray
    scaling: Scaling
    clients: float
    rows: float


@dataclass(frozen=True, slots=True)
class RoundMessage:
    """One round of Algorithm 1 or 2.

    number:    names the round's random streams, from 1 (VR-FedEM: counts all inner rounds)
    theta:     T(S_k). previous: T(S_{k-1}) in an inner round of VR-FedEM, else None
    oracle:    how s_i is found: from all rows ("full"), from a batch, or by a correction from the same batch at theta
               and at previous ("recursive")
    s:         (q,) S_k; (0,) in natural units of other models than regressions
    threshold: a client takes part if its uniform is at most this
    batch:     rows that a client draws; 0 if the oracle is "full"
    monitor:   whether the objective and the exact mean field are asked for
    audit:     whether the sum of the clients' memories is asked for
    resolution: step D of the codec in natural units; 0 for other codecs
    everything: whether clients send all parts of their statistics in natural units
    component_step: in natural units, step of a component of weight 1; infinite where D is for all
    won:       in the first round after several starts, the number of the start whose memories clients keep; else -1
    """

    number: int
    seed: int
    theta: Theta
    previous: Theta | None
    oracle: Oracle
    s: np.ndarray
    scaling: Scaling
    threshold: float
    batch: int
    clients: float
    rows: float
    monitor: bool
    audit: bool
    resolution: float = 0.0
    everything: bool = False
    component_step: float = math.inf
    won: int = -1


@dataclass(frozen=True, slots=True)
class StartsMessage:
    """One round of each of several starts, side by side."""

    rounds: tuple[RoundMessage, ...]
    scaling: Scaling


@dataclass(frozen=True, slots=True)
class ObjectiveMessage:
    """Asks for the objective at the final parameters."""

    theta: Theta
    scaling: Scaling
    clients: float
    rows: float


@dataclass(frozen=True, slots=True)
class ReleaseMessage:
    """Private runs: asks for the sum over the clients of clip_C(D^-1 (s_i - S_k)), in whole grid steps.

    release: its planned name. s: (q,) S_k. part_scales: (q,) diagonal of D. clip: C. bound: rows are scaled down to
    this L2 norm.
    """

    release: str
    theta: Theta
    s: np.ndarray
    scaling: Scaling
    part_scales: np.ndarray
    clip: float = field(metadata=POSITIVE)
    bound: float = field(metadata=POSITIVE)


Message = (
    MomentsMessage
    | SeedMessage
    | ClusterMessage
    | TrialMessage
    | InitialMemoryMessage
    | RoundMessage
    | StartsMessage
    | ObjectiveMessage
    | ReleaseMessage
)
