"""Anderson acceleration of EM's map of statistics, with the guard that keeps it as safe as EM.

One step of EM takes a statistic S to M(S), the expected statistic at T(S). With F = M(S) - S, and the differences dS
and dF of the last MEMORY points, the next point is

    S+ = M(S) - (dS + dF) gamma,    gamma = argmin |F - dF gamma|^2 + RIDGE trace(dF'dF) |gamma|^2

with the statistics of component g of a mixture divided by sqrt(pi_g), so that small components count. The step is
refused, and M(S) taken, where S+ is outside the model's domain or a weight falls below LEAST_SHARE of what it was. A
point whose objective is worse than the best so far leads back to M of that best point, and the points before it are
forgotten: EM never raises the objective, so that M of the best point is never worse than the best point.

Source: Walker and Ni, "Anderson Acceleration for Fixed-Point Iterations" (2011); the guard is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from fedcore.methods.mixture_models.contract import CurvedEM, Theta
from fedcore.methods.mixture_models.mixture import Mixture

MEMORY = 6
RIDGE = 1e-10
LEAST_SHARE = 0.2
MARGIN = 1e-9  # by which an extrapolated statistic is inside the domain of its model
RISE = 1e-9  # nats a row: more than that is no rounding


@dataclass(frozen=True, slots=True)
class Trail:
    """What an accelerated run knows of its last points.

    points, fields: (m, q) the last m <= MEMORY statistics S and fields F, oldest first
    best: (q,) M of the point with the lowest objective so far; (0,) before the first
    objective: of that point, nats a row
    gain: by how much the last point lowered it; None before the second point, and after one that was worse
    """

    points: np.ndarray
    fields: np.ndarray
    best: np.ndarray
    objective: float = np.inf
    gain: float | None = None


def empty_trail(q: int) -> Trail:
    return Trail(np.zeros((0, q)), np.zeros((0, q)), np.zeros(0))


def accelerated(
    model: CurvedEM, theta: Theta, mapped: Callable[[Theta], tuple[np.ndarray, float]], steps: int, gain: float
) -> Trail:
    """The trail after at most this many steps from theta, less where a step gains less.

    mapped: theta -> (M (q,), the objective at theta, nats a row)
    """
    trail, s = empty_trail(model.q), model.statistic_of(theta)
    for _ in range(steps):
        s, trail = advanced(model, trail, theta, s, *mapped(theta))
        if trail.gain is not None and trail.gain < gain:
            break
        theta = model.maximise(s, start=theta, rough=True)
    return trail


def advanced(
    model: CurvedEM, trail: Trail, theta: Theta, s: np.ndarray, mapped: np.ndarray, objective: float
) -> tuple[np.ndarray, Trail]:
    """The next statistic (q,), and the trail with this point.

    theta: T(s). mapped: (q,) M(s). objective: at theta, nats a row, with the model's penalty
    """
    if objective > trail.objective + RISE:
        return trail.best, replace(empty_trail(len(s)), best=trail.best, objective=trail.objective)
    gain = trail.objective - objective if len(trail.best) else None
    points = np.vstack([trail.points, s])[-MEMORY - 1 :]
    fields = np.vstack([trail.fields, mapped - s])[-MEMORY - 1 :]
    known = Trail(points, fields, mapped, objective, gain)
    further = _extrapolated(model, known, theta)
    return (mapped if further is None else further), known


def _extrapolated(model: CurvedEM, trail: Trail, theta: Theta) -> np.ndarray | None:
    if len(trail.points) < 2:
        return None
    scale = np.ones(model.q)
    if "weights" in theta:
        weights = np.maximum(theta["weights"], np.finfo(float).tiny)
        scale = cast(Mixture, model).layout.of_components(1.0 / np.sqrt(weights), 1.0)
    field, moves, turns = trail.fields[-1], np.diff(trail.points, axis=0), np.diff(trail.fields, axis=0)
    scaled = turns * scale
    square = scaled @ scaled.T
    square[np.diag_indices(len(square))] += RIDGE * np.trace(square)
    try:
        gamma = np.linalg.solve(square, scaled @ (field * scale))
    except np.linalg.LinAlgError:
        return None
    s = trail.best - gamma @ (moves + turns)
    if not np.isfinite(s).all() or not model.admissible(s, MARGIN):
        return None
    if "weights" not in theta:
        return s
    return s if np.min(model.maximise(s)["weights"] / theta["weights"]) >= LEAST_SHARE else None
