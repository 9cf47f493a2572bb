"""What the server says to the clients. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.methods.gradient_em.coordinates import Coordinates


@dataclass(frozen=True, slots=True)
class MomentsMessage:
    """Asks for number, sum and sum of squares of every column."""


@dataclass(frozen=True, slots=True)
class StartMessage:
    """Asks every client for its own fit, and some clients for the centres of theirs.

    compared: a client sends its centres if its uniform number is at most this
    """

    coordinates: Coordinates
    compared: float
    seed: int


@dataclass(frozen=True, slots=True)
class RoundMessage:
    """One round of a client. R: components; p: numbers of a centre; K: clients.

    number:     t, from 1
    seed:       of the streams of simulation randomness
    centres:    (R, p) the common centres v, in standardised units
    penalty:    lambda[t], by which the clients weigh their estimates in the next centres
    last_penalty: lambda of the central update that made these centres; 0 in round 1, when clients are at their starts
    between:    (R,) variance between clients, per coordinate, model's units
    orders:     (K, R) int32 order of every client's components, in round 1 if all starts were compared; else (0, R)
    participation: a client takes part if its uniform number is at most this
    curvature:  whether the caps of step sizes are computed again
    """

    number: int
    seed: int
    coordinates: Coordinates
    centres: np.ndarray
    penalty: float
    last_penalty: float
    between: np.ndarray
    orders: np.ndarray
    participation: float
    curvature: bool


@dataclass(frozen=True, slots=True)
class CandidatesMessage:
    """One round of mixtures of all rows (`fedcore.methods.gradient_em.start`), of F of them.

    candidates: (F, R + R d + R d d), standardised units; judged: whether they are judged by held-out rows
    """

    candidates: np.ndarray
    regularisation: float
    seed: int
    judged: bool
    coordinates: Coordinates


Message = MomentsMessage | StartMessage | RoundMessage | CandidatesMessage
