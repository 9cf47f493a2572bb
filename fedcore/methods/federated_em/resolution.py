"""How fine messages in natural units are: the step D of the codec, from what the server has seen.

n messages of q numbers, each rounded with an error of variance D^2 / 12, give a mean whose error has the squared norm
q D^2 / (12 n) in natural units; half of it is the likelihood that it costs. D is chosen for an error that is a share of
the field H itself, so that messages become finer as the run converges, and cost about as much in all rounds.

An error of D costs a component of weight pi_g as much likelihood as any other, but its covariance more in proportion:
the largest eigenvalue of the error is about 2 D sqrt(d / (12 n pi_g)) of it. So the step of a component is at most that
for which this is COMPONENT_ERROR.
"""

from __future__ import annotations

import math

from fedcore.methods.federated_em.config import FederatedEMConfig

# (share of the field's norm, smallest D): in general, and for one covariance for all, where coarser ones bring rises
USUAL, FINE = (0.25, 0.01), (0.15, 0.005)
OF_EM = (0.3, 0.003)  # of runs that follow EM, where each component has a step
AXES = 2  # in place of the columns d, where variances are of one column each
COMPONENT_ERROR = 0.03  # of a covariance, relative
SETTLED = 0.05  # nats a row that a step gains, to first order: below it a run may go beyond EM's steps, and sample
FIRST = 1.0
LARGEST_LOSS = 0.25  # nats a row: of the errors of a first round


def first_resolution(q: int, clients: float) -> float:
    """D of the first round, before a field is known: 1, and less for so few clients (p / sum w_i^2) that the errors of
    the round would cost more than a quarter of a nat."""
    return FIRST * min(1.0, math.sqrt(24 * LARGEST_LOSS * clients / q))


def component_step(features: int, answers: float) -> float:
    """The largest step of a component of weight 1. answers: clients who answer (p / sum w_i^2)."""
    return COMPONENT_ERROR * math.sqrt(12 * answers / (4 * features))


def next_resolution(config: FederatedEMConfig, size: float, q: int, clients: float, p: float) -> float:
    """D of the next round, in which a share p of the clients answers. size: |A H| in natural units, of the round
    before, in whose units the messages were."""
    share, smallest = FINE if config.model.covariance == "tied" else OF_EM if config.follows_em else USUAL
    return max(smallest * first_resolution(q, clients * p), share * math.sqrt(12 * clients * p / q) * size)
