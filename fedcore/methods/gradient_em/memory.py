"""What a client remembers, and the parameters that follow from it and what the server says.

theta: (C, R, p) its last estimate before the central update, standardised units; w: (C, R) its weights
started: (C,) 1 if it has a start of its own, until round 1. step: (C, R) step sizes of mode "paper"
cap: (C, R) largest step of a regression. halvings: (C, R) of steps that diverged
out: (C, R) positive for components of too few rows, which take the common centre; see `left_out`
"""

from __future__ import annotations

import numpy as np

from fedcore.methods.gradient_em import central
from fedcore.methods.gradient_em.alignment import reordered, to_centres
from fedcore.methods.gradient_em.config import GradientEMConfig
from fedcore.methods.gradient_em.frame import inward
from fedcore.methods.gradient_em.state import Frame
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import Memory

MOST_TIMES = 100


def aligned(memory: Memory, orders: np.ndarray, centres: np.ndarray, block: RowsBlock) -> Memory:
    """The memory after the start, its components in the common order; clients without a start of their own take the
    common centres."""
    own = memory["started"].astype(bool)
    if len(orders):
        chosen = orders[block.first : block.first + block.clients].astype(np.int64)
    else:
        chosen = to_centres(memory["theta"], centres)
    memory = {
        name: reordered(value, chosen)
        if value.ndim > 1 and value.shape[1] == chosen.shape[1] and name in ("theta", "w", "variances")
        else value
        for name, value in memory.items()
        if name != "started"
    }
    memory["theta"] = np.where(own[:, None, None], memory["theta"], centres)
    return memory


def left_out(config: GradientEMConfig, n: np.ndarray, w: np.ndarray, before: np.ndarray) -> np.ndarray:
    """(C, R) int8: how often a component had too few rows, negative while it has enough. One that was left out comes
    back only with more rows, each time with more: otherwise it could go in and out for ever, because at the common
    centre it may gain rows and at its own lose them.
    """
    times = np.abs(before).astype(np.int64)
    smallest = 0.0 if config.estimated else config.smallest_cluster
    least = smallest * np.where(before > 0, 1.0 + times, 1.0)
    rows = n[:, None] * w
    few = (rows < least) | (rows <= 0)
    times = np.minimum(times + (few & (before <= 0)), MOST_TIMES)
    return np.where(few, np.maximum(times, 1), -times).astype(np.int8)


def effective_rows(config: GradientEMConfig, n: np.ndarray, w: np.ndarray, out: np.ndarray) -> np.ndarray:
    """(C, R) what a client counts in the central update of a component; 0 if it is left out."""
    counts = n[:, None] * w * w.shape[1] if config.by_component else np.broadcast_to(n[:, None], w.shape)
    return np.where(out > 0, 0.0, counts)


def step_sizes(config: GradientEMConfig, shrink: float, w: np.ndarray, n: np.ndarray, memory: Memory) -> np.ndarray:
    """(C, R) eta: C / w, capped by the curvature of a regression, halved where it diverged."""
    if "step" in memory:
        eta = memory["step"]
    else:
        floor = np.maximum(config.weight_floor, 1.0 / np.maximum(n, 1.0))[:, None]
        eta = config.step_size / np.maximum(w, floor)
    if "cap" in memory:
        eta = np.minimum(eta, memory["cap"])
    return shrink * eta * 0.5 ** memory["halvings"]


def share_of_full_step(
    config: GradientEMConfig, shrink: float, w: np.ndarray, n: np.ndarray, memory: Memory
) -> np.ndarray:
    """(C, R) how far the gradient steps of a round went towards the full M-step."""
    size = step_sizes(config, shrink, w, n, memory) * w
    return size if config.local_steps == 1 else 1.0 - (1.0 - size) ** config.local_steps


def after_central_update(
    config: GradientEMConfig, frame: Frame, memory: Memory, n: np.ndarray, centres: np.ndarray, penalty: float
) -> np.ndarray:
    """(C, R, p) theta_r^(k)[t], model's units, from the estimates that were sent (standardised units); shrinkage =
    "norm"."""
    v = inward(config, frame, centres)
    counts = effective_rows(config, n, memory["w"], memory["out"])
    found = central.pulled(inward(config, frame, memory["theta"]), v, central.thresholds(penalty, counts))
    return np.where(counts[:, :, None] > 0, found, v)


def shared_weights(common: np.ndarray, penalty: float, w: np.ndarray, n: np.ndarray) -> np.ndarray:
    """(C, R) weights pulled towards the common ones (R,); they stay on the simplex, between two points of it."""
    return central.pulled(w[:, None], common[None], central.thresholds(penalty, n[:, None]))[:, 0]
