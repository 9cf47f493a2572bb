"""What the server says in each phase of a run. Frozen; arrays and scalars only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Parameters = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Scaling:
    """How rows are standardised before the model sees them: (x - centre) / scale, each (d,) float64; and the pooled
    moments that the model's penalty and start may rest on, in the units after standardisation.

    centre and scale are (0,) if rows are left as they are; mean is (0,) where it is not known. seen: (d,) entries of
    each column that are not missing, (0,) where that is not known. In tables the last three are those of cells.
    """

    centre: np.ndarray
    scale: np.ndarray
    variance: np.ndarray
    mean: np.ndarray
    seen: np.ndarray


def plain_scaling(width: int) -> Scaling:
    """Rows as they are, and moments that are not known: variances of 1."""
    none = np.zeros(0)
    return Scaling(none, none, np.ones(width), none, none)


@dataclass(frozen=True, slots=True)
class MomentsMessage:
    """Asks for the sizes of the clients and the moments of the columns; rows are checked on the way."""


@dataclass(frozen=True, slots=True)
class PickMessage:
    """Asks for one more row for each start.

    chosen: (R, j, d) float64, the rows chosen so far for each of R starts, standardised.
    far:    probability proportional to the squared distance from the nearest chosen row; else the same for all others.
    """

    chosen: np.ndarray
    far: bool
    scaling: Scaling
    seed: int


@dataclass(frozen=True, slots=True)
class ClusterMessage:
    """Asks for the clusters around the centres of each start. centres: (R, G, d) float64, standardised."""

    centres: np.ndarray
    scaling: Scaling


@dataclass(frozen=True, slots=True)
class TrialMessage:
    """Asks for plain EM steps of several starts at once: sums of statistics and objectives.

    thetas: one set of parameters for each start. clients, rows: totals of the population, for the weights.
    """

    thetas: tuple[Parameters, ...]
    scaling: Scaling
    clients: float
    rows: float


@dataclass(frozen=True, slots=True)
class FieldMessage:
    """Asks for V_i = h_i(S_0), uncompressed (Algorithm 1's initialisation in theory)."""

    theta: Parameters
    s: np.ndarray
    scaling: Scaling
    clients: float
    rows: float


@dataclass(frozen=True, slots=True)
class RoundMessage:
    """One round of Algorithm 1 or 2.

    number:    names the round's streams, from 1 (VR-FedEM: of all inner rounds)
    theta:     T(S_k); previous: T(S_{k-1}), None unless this is an inner round of VR-FedEM
    oracle:    "full" pass; "batch" of rows; "recursive": the same batch at theta and at previous
    s:         S_k, (q,)
    threshold: a client takes part if its uniform is at most this
    batch:     rows that a client draws; 0 with "full"
    monitor:   whether the objective and the exact field are asked for
    audit:     whether the clients' memories are summed
    """

    number: int
    seed: int
    theta: Parameters
    previous: Parameters | None
    oracle: Literal["full", "batch", "recursive"]
    s: np.ndarray
    scaling: Scaling
    threshold: float
    batch: int
    clients: float
    rows: float
    monitor: bool
    audit: bool


@dataclass(frozen=True, slots=True)
class ObjectiveMessage:
    """Asks for the objective at the final parameters."""

    theta: Parameters
    scaling: Scaling
    clients: float
    rows: float


@dataclass(frozen=True, slots=True)
class ReleaseMessage:
    """DP-A: asks for the sum over the clients of clip_C(D^-1 (s_i - S_k)) on the grid.

    release: planned name. part_scales: (q,) diagonal of D. bound: rows are cut to this L2 norm.
    """

    release: str
    theta: Parameters
    s: np.ndarray
    scaling: Scaling
    part_scales: np.ndarray
    clip: float
    bound: float


Message = (
    MomentsMessage
    | PickMessage
    | ClusterMessage
    | TrialMessage
    | FieldMessage
    | RoundMessage
    | ObjectiveMessage
    | ReleaseMessage
)
