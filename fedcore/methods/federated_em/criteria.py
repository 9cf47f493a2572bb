"""Information criteria of a mixture on its training rows, in addition to the loss of held-out rows.

    BIC = 2 L + k ln N                    L: the loss of the N training rows, k: free parameters (Schwarz 1978)
    ICL = BIC + 2 sum_j entropy(r_j)      r_j: responsibilities of row j (Biernacki, Celeux, Govaert 2000)

Smaller is better. Both are in the units of the data. They assume that rows are independent, which rows of one client
seldom are. Held-out losses assume less. If rows have weights, N is the sum of the weights, and a row counts in L and in
the sum of entropies as if it occurred as often as its weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from fedcore.methods.federated_em.config import FederatedEMConfig
from fedcore.methods.federated_em.leaf_rows import LeafRows
from fedcore.methods.federated_em.state import FederatedEMState
from fedcore.methods.federated_em.weighted_sums import total_of
from fedcore.methods.mixture_models.contract import CurvedEM, Theta
from fedcore.methods.mixture_models.student import DEGREES

RESPONSIBILITIES = "responsibilities"


def wanted(config: FederatedEMConfig) -> bool:
    """Whether the criteria are needed; only then is the pass over the responsibilities made. The objective must be a
    sum over rows, not over clients."""
    return config.algorithm.validation > 0 and config.by_rows and config.mixture


def entropy(model: CurvedEM, theta: Theta, leaf: LeafRows) -> float:
    """The sum over the rows of the entropies of their responsibilities, by the rows' weights, nats."""
    total = 0.0
    for observations, y in leaf.pieces():
        shares, own = model.personalise(theta, y)[RESPONSIBILITIES], leaf.weights_at(observations)
        terms = scipy.special.xlogy(shares, shares)
        total -= total_of(terms if own is None else terms.sum(axis=1), own)
    return total


def free_parameters(config: FederatedEMConfig, theta: Theta) -> int:
    """Of a mixture: weights that add up to 1, what each component has, and degrees of freedom that the run chose."""
    components = len(theta["weights"])
    count = components - 1
    for name, array in theta.items():
        if name == "weights":
            continue
        if name == "covariances" and config.model.covariance in ("full", "tied"):
            d = array.shape[-1]
            count += array.size // d**2 * (d * (d + 1) // 2)
        elif name == "covariances" and config.model.covariance == "known":
            continue
        elif name == DEGREES and config.tails != "auto":
            continue
        else:
            count += array.size - (components if config.model.name == "multinomial" else 0)
    return count


def criteria(config: FederatedEMConfig, state: FederatedEMState, result: Mapping[str, Any]) -> dict[str, float]:
    """bic and icl from the last pass; nothing if they are not needed."""
    if "entropy" not in result:
        return {}
    loss = float(result["loss"]) * state.rows
    if len(state.scale):
        logs = state.seen * np.log(state.scale)
        loss += float(logs[-1] if config.model.name == "regression" else logs.sum())
    bic = 2.0 * loss + free_parameters(config, state.parameters()) * math.log(state.rows)
    return {"bic": bic, "icl": bic + 2.0 * float(result["entropy"])}
