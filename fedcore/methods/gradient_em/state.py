"""The server's state: what the next round needs. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


def zeros(*shape: int) -> Any:  # a field, which type checkers take for its value
    return field(default_factory=lambda: np.zeros(shape))


@dataclass(frozen=True, slots=True)
class GradientEMState:
    """State after a round. R: components; p: numbers of a centre; d: columns; K: clients of the population.

    Units are those of `fedcore.methods.gradient_em.coordinates`.

    phase:      "moments", "start", "candidates", "rounds", "done"
    round:      rounds of Algorithm 1 that are finished
    seed:       of the streams of simulation randomness
    population: K
    clients, rows, largest: clients that have rows, their rows, rows of the largest client
    mean, scale: (d,) by which rows are standardised; (0,) if they are not, or if each client has its own
    covariance: (d, d) of rows within a component, standardised units; (R, d, d) if components have their own; (1, 1)
                noise variance of a regression; (0, 0) for the identity
    centres:    (R, p) the common centres v_r, standardised units; (0, p) before there are any
    weights:    (R,) common weights: the centre of shared ones; (0,) if there are none
    orders:     (K, R) order of the components of every client's start, until round 1 has used it; (0, R) if clients
                align themselves to the centres
    penalty:    lambda of the last central update
    spread:     (R,) variance between clients: of their centres around the common one, per coordinate, model's units
    sums:       (R, p + 1) the two sums of the central update, fading over the rounds if clients are sampled
    spread_sums: (R, 3) the sums of the variance between clients, fading in the same way
    scores:     (320,) of `apart.counts_of_largest`, fading in the same way; (0,) before the first round
    moved:      by how much the last round moved the common centres, in their standard errors: the most of a component,
                root mean square over its coordinates
    fit, change: log-likelihood before the last round, nats a row, standardised units; less that of the round before,
                None in round 1
    weight_sums: (R + 1,) the sums of shared weights, fading in the same way; (0,) if they are not shared
    candidates: (F, R + R d + R d d) mixtures of all rows that are tried as starts; (0, 0) when there are none
    candidate_rounds: of theirs that are finished
    regularisation: of their covariances
    gain:       of the chosen one over the first, nats a held-out row
    """

    phase: str
    round: int
    seed: int
    population: int
    clients: float = 0.0
    rows: float = 0.0
    largest: int = 0
    mean: np.ndarray = zeros(0)
    scale: np.ndarray = zeros(0)
    covariance: np.ndarray = zeros(0, 0)
    centres: np.ndarray = zeros(0, 0)
    weights: np.ndarray = zeros(0)
    orders: np.ndarray = zeros(0, 0)
    penalty: float = 0.0
    spread: np.ndarray = zeros(0)
    sums: np.ndarray = zeros(0, 0)
    spread_sums: np.ndarray = zeros(0, 0)
    scores: np.ndarray = zeros(0)
    moved: float = 0.0
    fit: float = 0.0
    change: float | None = None
    weight_sums: np.ndarray = zeros(0)
    candidates: np.ndarray = zeros(0, 0)
    candidate_rounds: int = 0
    regularisation: float = 0.0
    gain: float = 0.0
