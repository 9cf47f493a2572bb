"""IFCA for histograms, without privacy: a gradient step for every cluster where Algorithm 2 takes the mean.

    P_k <- P_k + eta (1/n) sum over u in cluster k of (q_u - P_k)

Source: Ghosh, Chung, Yin, Ramchandran 2020, as used in Setlur, Feldman, Talwar 2023, section 4. The sum over a cluster
is divided by the number of *all* clients, so a centre moves by eta times its cluster's share of them: one tenth as fast
with ten clusters as "a step of eta" sounds. Where a centre ends after T rounds depends on where it starts; from the
perturbed mean it has less far to go.

One departure: a step ends at the cluster's mean at the latest. A cluster with more than 1/eta of the clients would step
past it, and one with more than 2/eta of them farther away at every round; after a uniform start such clusters are
common.

The passes before the rounds (mean, covariance, start) are those of `before_rounds`; messages are those of Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from fedcore.papers.histograms import algorithm2, before_rounds
from fedcore.papers.histograms.config import IFCA

from fedcore.methods.histograms.reduction import lift, reduce_rows
from fedcore.methods.histograms.simplex import total_variation
from fedcore.methods.histograms.state import HistogramsState, Step
from fedcore.rounds.method import RoundInfo

init = before_rounds.init
total_rounds = algorithm2.total_rounds
message = algorithm2.message


def server_update(config: IFCA, state: HistogramsState, result: Mapping[str, Any]) -> Step:
    """result: finished statistics of the pass."""
    if state.phase != "rounds":
        return before_rounds.server_update(config, state, result)
    t, counts = state.round + 1, np.asarray(result["counts"], np.float64)
    before = reduce_rows(state.centres, state.kept)
    centres = gradient_step(before, result["sums"], counts, state.clients, config.learning_rate)
    info = RoundInfo(
        {
            "objective": algorithm2.objective(state, result),
            "movement": float(np.average(total_variation(before, centres), weights=counts)),
            "empty_clusters": float(np.sum(counts == 0)),
        }
    )
    phase = "done" if t == state.rounds else "rounds"
    return replace(state, phase=phase, round=t, centres=lift(centres, state.kept, state.mean), counts=counts), info


def gradient_step(centres: np.ndarray, sums: np.ndarray, counts: np.ndarray, clients: float, rate: float) -> np.ndarray:
    """(k, d): P_k + min(eta / n, 1 / N_k) (S_k - N_k P_k), where S_k and N_k are a cluster's sum and count.

    centres, sums: (k, d). counts: (k,). clients: n. rate: eta. Exact sums lead to a point between the centre and the
    cluster's mean; noised ones can lead off the simplex.
    """
    steps = np.minimum(rate / clients, 1.0 / np.maximum(counts, 1.0))
    return centres + steps[:, None] * (sums - counts[:, None] * centres)
