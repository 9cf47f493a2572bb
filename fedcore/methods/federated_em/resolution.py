"""How fine messages in natural units are: the step D of the codec, from what the server has seen.

n messages of q numbers, each rounded with an error of variance D^2 / 12, give a mean whose error has the squared norm
q D^2 / (12 n) in natural units; half of it is the likelihood that it costs. D is chosen for an error that is a share of
the field H itself, so that messages become finer as the run converges, and cost about as much in all rounds.
"""

from __future__ import annotations

import math

import numpy as np

from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.mixture_models.natural_units import Units

# (share of the field's norm, smallest D): in general, and for one covariance for all, where coarser ones bring rises
USUAL, FINE = (0.25, 0.01), (0.15, 0.005)
FIRST = 1.0
LARGEST_LOSS = 0.25  # nats a row: of the errors of a first round


def first_resolution(q: int, clients: float) -> float:
    """D of the first round, before a field is known: 1, and less for so few clients (p / sum w_i^2) that the errors of
    the round would cost more than a quarter of a nat."""
    return FIRST * min(1.0, math.sqrt(24 * LARGEST_LOSS * clients / q))


def next_resolution(config: FederatedEMConfig, units: Units, field: np.ndarray, clients: float) -> float:
    """D of the next round. field: H, (q,), of the round before, in whose units the messages were."""
    q, p = len(field), config.participation
    share, smallest = FINE if config.covariance == "tied" else USUAL
    size = float(np.linalg.norm(units.forward(field[None])))
    return max(smallest * first_resolution(q, clients * p), share * math.sqrt(12 * clients * p / q) * size)
