"""A client's memory between rounds, and what follows from it.

theta:    (C, R, p) its last estimate, as it was before the central update; standardised units
w:        (C, R) its weights
started:  (C,) 1 if it has its own start; until round 1
step:     (C, R) its step sizes, if they are those of its start (`Variant.step_of_start`)
cap:      (C, R) the largest step of a regression
halvings: (C, R) how often a step was halved because its end diverged
out:      (C, R) positive for components of too few rows, which take the common centre; see `left_out`
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.messages import RoundMessage
from fedcore.methods.gradient_em.shrinkage import Penalty
from fedcore.methods.mixture_models.alignment import in_common_order
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory

MOST_TIMES = 100
WEIGHT_FLOOR = 1e-3  # least weight that a step is divided by


def at_first_round(config: GradientEMConfig, message: RoundMessage, block: RowsBlock, memory: Memory) -> Memory:
    """The memory of round 1: components in the common order, and what later rounds of FedGrEM keep."""
    memory = in_common_order(memory, message.orders, message.centres, block)
    memory["halvings"] = np.zeros(memory["w"].shape, np.int8)
    memory["out"] = np.zeros(memory["w"].shape, np.int8)
    if config.variant.step_of_start:
        memory["step"] = config.variant.step_size / np.maximum(memory["w"], WEIGHT_FLOOR)
    if config.model == "regression":
        memory["cap"] = np.full(memory["w"].shape, np.inf)
    return memory


def left_out(config: GradientEMConfig, n: np.ndarray, w: np.ndarray, before: np.ndarray) -> np.ndarray:
    """(C, R) int8: how often a component had too few rows, negative while it has enough.

    A component that was left out comes back only with more rows, and with more each time. Otherwise it could come and
    go without end, because it may gain rows at the common centre and lose them at its own.
    """
    times = np.abs(before).astype(np.int64)
    least = config.variant.smallest_cluster * np.where(before > 0, 1.0 + times, 1.0)
    rows = n[:, None] * w
    few = (rows < least) | (rows <= 0)
    times = np.minimum(times + (few & (before <= 0)), MOST_TIMES)
    return np.where(few, np.maximum(times, 1), -times).astype(np.int8)


def effective_rows(n: np.ndarray, out: np.ndarray) -> np.ndarray:
    """(C, R) the rows by which a client counts in the central update of a component; 0 if it is left out."""
    return np.where(out > 0, 0.0, np.broadcast_to(n[:, None], out.shape))


def step_sizes(config: GradientEMConfig, w: np.ndarray, n: np.ndarray, memory: Memory) -> np.ndarray:
    """(C, R) eta: C / w, capped by the curvature of a regression, halved where it diverged."""
    if "step" in memory:
        eta = memory["step"]
    else:
        floor = np.maximum(WEIGHT_FLOOR, 1.0 / np.maximum(n, 1.0))[:, None]
        eta = config.variant.step_size / np.maximum(w, floor)
    if "cap" in memory:
        eta = np.minimum(eta, memory["cap"])
    return eta * 0.5 ** memory["halvings"]


def m_step_fraction(config: GradientEMConfig, w: np.ndarray, n: np.ndarray, memory: Memory) -> np.ndarray:
    """(C, R) how far the gradient step of a round went towards the full M-step."""
    return step_sizes(config, w, n, memory) * w


def last_penalty(
    config: GradientEMConfig, memory: Memory, n: np.ndarray, p: int, *, strength: float, between: np.ndarray
) -> Penalty:
    """The penalty that stands between the estimates in the memory and the centres that were made of them.

    strength: lambda of that central update; between: (R,) variance between clients that came of it.
    """
    w = memory["w"]
    counts = effective_rows(n, memory["out"])
    fraction = m_step_fraction(config, w, n, memory)
    return config.variant.penalty_of(counts, w, p, strength=strength, between=between, fraction=fraction)
