"""What the server sends to the clients: one frozen dataclass for each kind of question.

Everything in them is published or public. log_centres are the logarithms of smoothed centres, transposed,
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
    """Asks for the clients' contributions to one release.

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
