"""What the server sends to the clients: one frozen dataclass for each kind of question.

`ReleaseMessage` and `WeightsMessage` are those of the private pipeline, and everything in them is published or public.
The others are those of the algorithms without privacy. log_centres are the logarithms of smoothed centres, transposed,
as `fedcore.methods.histograms.simplex.assignment_logs` makes them: (d, k) float32. `kept` holds the tokens of a reduced
problem (`fedcore.methods.histograms.reduction`), (r,) int64 ascending; if it is not empty, d stands for r + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedcore.rounds.messages import EVERY, POSITIVE, between

MOST_STEPS = 1000  # of a mixture; the limit of the setting


def all_tokens() -> np.ndarray:
    """The empty `kept`, which stands for the whole vocabulary."""
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class ReleaseMessage:
    """Asks for the clients' contributions to one release of the private pipeline.

    release:     its planned name
    cells:       k
    log_centres: (d, k); zeros if there is one cell
    whitening:   (d,) float64, 1 / sqrt(w)
    clip:        C, L2 bound of a client's whitened histogram
    kind:        sums of clipped histograms by cell, votes, or second moments
    half_weight: m_0 of the clients' weights m / (m + m_0); 0: all weigh the same
    norms:       planned name of the count of norms that is released beside the sums; empty: none is
    one_whole:   whether a client's counts are those of both halves of its documents
    """

    release: str
    cells: int
    log_centres: np.ndarray
    whitening: np.ndarray = field(metadata=between(0.0, EVERY[1]))  # second moments take whole numbers from 0
    clip: float = field(metadata=POSITIVE)
    kind: Literal["sums", "votes", "moment"] = "sums"
    kept: np.ndarray = field(default_factory=all_tokens)
    half_weight: float = 0.0
    norms: str = ""
    one_whole: bool = False


@dataclass(frozen=True, slots=True)
class WeightsMessage:
    """Asks what weights of the base serve the clients' second halves (`fedcore.methods.histograms.weights`).

    release:     its planned name
    rows:        (r, d) float64 positive: what bases are made of
    log_centres: (d, r) if a base is the nearest row; (0, 0) if it is a client's own mixture of all of them
    mixture_prior, mixture_steps: of that mixture
    """

    release: str
    rows: np.ndarray
    log_centres: np.ndarray
    mixture_prior: float
    mixture_steps: int = field(metadata=between(0, MOST_STEPS))


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


BaselineMessage = MeanMessage | CovarianceMessage | SeedingMessage | AssignMessage | WorstFitMessage | CentringMessage
