"""What the next round needs, and what the server says. Frozen; arrays and scalars only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def _none(*shape: int):
    return field(default_factory=lambda: np.zeros(shape))


@dataclass(frozen=True, slots=True)
class GradientEMState:
    """State after a round. R: components; p: numbers of a centre; d: columns; K: clients.

    phase:      "moments", "start", "totals", "rounds", "done"
    round:      rounds of Algorithm 1 (or of the baseline) finished
    seed:       of the streams of simulation randomness
    population: clients of the population
    clients, rows, largest: clients that have rows, their rows, rows of the largest
    mean, scale: (d,) what rows are standardised by; (0,) if they are not, or by each client's own
    covariance: (d, d) of rows within a component, after that; (1, 1) noise variance; (0, 0) for the identity
    centres:    (R, p) v_r, in standardised units; (0, p) before the start
    weights:    (R,) common weights: centre of shared ones, or of pooled rows; (0,) if there are none
    variances:  (R,) of a pooled mixture of regressions; (0,) otherwise. pooled_covariance: (p, p) of pooled
                Gaussians, model's units; (0, 0) otherwise
    orders:     (K, R) of the components of every client's start, until round 1 has used them; (0, R) if clients
                align themselves to the centres
    penalty:    lambda of the last central update; spread: (R,) variance per coordinate of the clients' centres around
                the common one, model's units
    sums:       (R, p + 1) the two sums of the central update, averaged over rounds if clients are sampled
    weight_sums: (R + 1,) the same for shared weights; (0,) otherwise. spread_sums: (R, 3) the same for the spread
    totals:     (R, p) sum of all aligned starts (tgmm), else (0, p); sources: how many they are
    covariate_means, covariate_covariance: (A, p), (p, p) of fedgmm
    """

    phase: str
    round: int
    seed: int
    population: int
    clients: float = 0.0
    rows: float = 0.0
    largest: int = 0
    mean: np.ndarray = _none(0)
    scale: np.ndarray = _none(0)
    covariance: np.ndarray = _none(0, 0)
    centres: np.ndarray = _none(0, 0)
    weights: np.ndarray = _none(0)
    variances: np.ndarray = _none(0)
    pooled_covariance: np.ndarray = _none(0, 0)
    orders: np.ndarray = _none(0, 0)
    penalty: float = 0.0
    spread: np.ndarray = _none(0)
    sums: np.ndarray = _none(0, 0)
    spread_sums: np.ndarray = _none(0, 0)
    weight_sums: np.ndarray = _none(0)
    totals: np.ndarray = _none(0, 0)
    sources: float = 0.0
    covariate_means: np.ndarray = _none(0, 0)
    covariate_covariance: np.ndarray = _none(0, 0)


@dataclass(frozen=True, slots=True)
class Frame:
    """How rows become what the model sees: standardised by the columns' mean and scale, (0,) if not; then components
    of unit covariance. covariance: as in the state."""

    mean: np.ndarray
    scale: np.ndarray
    covariance: np.ndarray


@dataclass(frozen=True, slots=True)
class MomentsMessage:
    """Asks for number, sum and sum of squares of every column."""


@dataclass(frozen=True, slots=True)
class StartMessage:
    """Asks every client for its own fit, and some for their centres.

    threshold: a client sends its centres if its uniform is at most this.
    """

    frame: Frame
    threshold: float
    seed: int


@dataclass(frozen=True, slots=True)
class TotalsMessage:
    """Asks for the sum of all aligned starts. orders, centres: as in `RoundMessage`."""

    orders: np.ndarray
    centres: np.ndarray
    frame: Frame


@dataclass(frozen=True, slots=True)
class RoundMessage:
    """One round of a client.

    number:    from 1
    centres:   (R, p) v, in standardised units. weights: (R,) or (0,)
    prox:      lambda of the update that made these centres; 0 in round 1: clients begin at their own starts
    penalty:   lambda that a_k is computed with
    spread:    (R,) as in the state, of the update that made these centres. shrink_before: `shrink` of that round
    weight_prox, weight_penalty: the same for shared weights
    orders:    (K, R) in round 1, if all starts were compared; else (0, R)
    threshold: a client takes part if its uniform is at most this
    shrink:    factor on step sizes, below 1 with batches
    curvature: whether the caps of step sizes are computed anew
    """

    number: int
    seed: int
    centres: np.ndarray
    weights: np.ndarray
    variances: np.ndarray
    pooled_covariance: np.ndarray
    prox: float
    penalty: float
    weight_prox: float
    weight_penalty: float
    orders: np.ndarray
    frame: Frame
    threshold: float
    shrink: float
    spread: np.ndarray
    shrink_before: float
    curvature: bool
    totals: np.ndarray
    sources: float
    covariate_means: np.ndarray
    covariate_covariance: np.ndarray
