"""Fewer rounds of EM where D is nearly singular: extrapolation of the server's own steps; clients notice nothing.

EM leaves a small eigenvalue of D, and whatever the data hardly tell apart, by ever smaller steps. Three points in a
row, x0, x1 = F(x0), x2 = F(x1), tell how they shrink:

    r = x1 - x0,  v = (x2 - x1) - r,  a = |r| / |v|,      x = x0 + 2 a r + a^2 v

from which the next three follow. A point is m, the symmetric root of D, and log s2, in units of the standard deviations
of clients' coefficients at x0, so that any x stands for a proper D. a is at least 1 (then x = x2) and at most
`longest`, which doubles each time. The next round measures x: if its own step is more than `WORST` times the one
before, or the likelihood falls where it is what is maximised, the server goes back to F(x2) and `longest` falls.

Source: Varadhan, Roland 2008, squared iterative methods with steplength S3; the units and the measure are ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedcore.methods.mixed_effects.regression import Common

FIRST_LONGEST, LEAST_LONGEST = 4.0, 2.0
WORST = 10.0
FALL = 1e-6  # of a likelihood, relative
LARGEST_LOG = 600.0


class Trail(NamedTuple):
    """What the server remembers of its last steps.

    points:  (0 to 2, q) the present cycle, each m, D and s2 in a row
    safe:    (1, q) where to go if the present point is poor, or (0, q)
    step, fit: of the round before the present point: the length of its step, and its log-likelihood
    longest: of a
    """

    points: np.ndarray
    safe: np.ndarray
    step: float
    fit: float
    longest: float


def no_trail(p: int) -> Trail:
    empty = np.zeros((0, p + p * p + 1))
    return Trail(empty, empty, 0.0, 0.0, FIRST_LONGEST)


def next_point(trail: Trail, before: Common, after: Common, fit: float, *, likelihood: bool) -> tuple[Common, Trail]:
    """Where the next round starts, and the trail. after: F(before); fit: log-likelihood at before; likelihood: whether
    it is what is maximised."""
    step = _step_between(before, after)
    if len(trail.safe):  # before was extrapolated
        fell = likelihood and fit < trail.fit - FALL * abs(trail.fit)
        none = no_trail(len(before.mean))._replace(longest=trail.longest)
        if fell or not step <= WORST * trail.step:
            shorter = max(trail.longest / 4.0, LEAST_LONGEST)
            return Common.of_row(trail.safe[0], len(before.mean), before.smallest), none._replace(longest=shorter)
        return after, none._replace(points=after.row()[None], longest=2.0 * trail.longest)
    points = trail.points if len(trail.points) else before.row()[None]
    if len(points) < 2:
        return after, trail._replace(points=np.vstack([points, after.row()]))
    first = Common.of_row(points[0], len(before.mean), before.smallest)
    units = _units(first)
    x0, x1, x2 = (_coordinates(point, units) for point in (first, before, after))
    r = x1 - x0
    v = (x2 - x1) - r
    length = np.linalg.norm(v)
    a = min(max(float(np.linalg.norm(r) / length), 1.0), trail.longest) if length > 0 else 1.0
    found = _of_coordinates(x0 + 2.0 * a * r + a * a * v, units, before.smallest)
    return found, Trail(points[:0], after.row()[None], step, fit, trail.longest)


def _step_between(before: Common, after: Common) -> float:
    units = _units(before)
    return float(np.linalg.norm(_coordinates(after, units) - _coordinates(before, units)))


def _units(common: Common) -> np.ndarray:
    deviations = np.sqrt(np.maximum(np.diag(common.between), 0.0))
    return np.where(deviations > 0, deviations, 1.0)


def _coordinates(common: Common, units: np.ndarray) -> np.ndarray:
    """m, the upper triangle of the symmetric root of D with its norm kept, log s2."""
    values, vectors = np.linalg.eigh(common.between / np.outer(units, units))
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    at = np.triu_indices(len(units))
    return np.concatenate([common.mean / units, root[at] * _norms(at), [np.log(common.noise)]])


def _of_coordinates(x: np.ndarray, units: np.ndarray, smallest: float) -> Common:
    p = len(units)
    at = np.triu_indices(p)
    root = np.zeros((p, p))
    root[at] = root[at[1], at[0]] = x[p:-1] / _norms(at)
    noise = float(np.exp(np.clip(x[-1], -LARGEST_LOG, LARGEST_LOG)))
    return Common(x[:p] * units, (root @ root) * np.outer(units, units), max(noise, smallest), smallest)


def _norms(at: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return np.where(at[0] == at[1], 1.0, np.sqrt(2.0))
