"""What the server sends to the clients of `paper_histograms`: one frozen dataclass for each kind of question.

log_centres and kept are as in `fedcore.methods.histograms.messages`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedcore.methods.histograms.messages import all_tokens


@dataclass(frozen=True, slots=True)
class MeanMessage:
    """Asks for the sum of the clients' histograms.

    with_first_row: asks also for a client drawn uniformly, whose row is the first centre of Algorithm 1 (line 1)
    """

    with_first_row: bool
    seed: int


@dataclass(frozen=True, slots=True)
class CovarianceMessage:
    """Asks for the sum of q q^T."""


@dataclass(frozen=True, slots=True)
class SeedingMessage:
    """Asks for a client drawn with weight exp(tau D_u) (Algorithm 1, line 5).

    rows: (j, d) float64, the rows chosen so far. smoothing: e. temperature: tau.
    """

    rows: np.ndarray
    smoothing: float
    temperature: float
    seed: int
    kept: np.ndarray = field(default_factory=all_tokens)


@dataclass(frozen=True, slots=True)
class AssignMessage:
    """Asks for the sums of the clusters."""

    log_centres: np.ndarray
    kept: np.ndarray = field(default_factory=all_tokens)


@dataclass(frozen=True, slots=True)
class WorstFitMessage:
    """Asks for the client with the largest min_k KL(q_u || P_k)."""

    log_centres: np.ndarray
    kept: np.ndarray = field(default_factory=all_tokens)


@dataclass(frozen=True, slots=True)
class CentringMessage:
    """Asks for the clusters' sums of clipped deviations from b1 (Algorithm 3, line 5).

    first: (k, d) float64, b1. bound: c / sqrt(d), of every coordinate.
    """

    log_centres: np.ndarray
    first: np.ndarray
    bound: float
    kept: np.ndarray = field(default_factory=all_tokens)


PaperMessage = MeanMessage | CovarianceMessage | SeedingMessage | AssignMessage | WorstFitMessage | CentringMessage
