"""A component from the background: rows far out of all starts are held by it alone, and may be a small group.

Starts and whitening are cut to the nearest 95 % of the rows, so a group of few rows far out gets no start. The
background holds it. Its sums give the mean of its rows. Where that is away from the centre of all rows by more than
noise, a round puts a component there, with most of the background's weight.
"""

from __future__ import annotations

import math

import numpy as np

from fedcore.methods.mixture_models.noisy_matrices import covariance_of
from fedcore.methods.mixture_models.whole_rows import ONE, matrix_of_products
from fedcore.methods.private_mixture.em import FLOOR, SURE, Components, Sums, bounded
from fedcore.methods.private_mixture.groups import Nodes
from fedcore.methods.private_mixture.whitening import diagonal_noise

LEAST_SHARE = 0.01  # of all units, in the background
AWAY, BY_NOISE = 0.25, 6.0  # of the squared distance of its mean, in its own units; deviations of its noise
GIVEN = 0.75  # of the background's weight
OVERLAP = 2.0  # of (c_i - c_j)' (S_i + S_j)^-1 (c_i - c_j), within which the lighter of two components gives way
LEAST_VARIANCE = 1e-3  # of the new component, in units of the background


def promoted(components: Components, sums: Sums, clip: float, count: float, most: int, broad: float) -> Components:
    """The components with one from the background, if its sums say that there is one; else as they were.

    sums: of the round, the background's last. clip: what rows were cut to in own units. count: of units, released or
    declared. most: components at most. broad: covariance of the background, in that of all rows.
    """
    d = components.means.shape[1]
    held, sd = float(sums.p[-1]) / ONE, sums.noise["p"] / ONE
    if held < max(SURE * sd, LEAST_SHARE * count):
        return components
    unit = clip / ONE / held
    delta, noise = sums.pv[-1] * unit, (sums.noise["pv"] * unit) ** 2
    if float(delta @ delta) <= d * noise + BY_NOISE * math.sqrt(2 * d) * noise + AWAY:
        return components
    weights, slot = components.weights, _slot(components, held / max(count, 1.0), most)
    if slot is None:
        return components
    covariance, known = _shape(sums, clip, held, delta)
    found = Components(
        np.array([GIVEN * weights[-1], (1 - GIVEN) * weights[-1]]),
        math.sqrt(broad) * delta[None],
        bounded(broad * covariance[None]),
        known[None],
    )
    return _joined(components, found, slot)


def _shape(sums: Sums, clip: float, held: float, delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The covariance (d, d) in units of the background, and the variances of the noise in the component's own units
    (`series.Pool.known`). A round later they are known better."""
    d, unit = len(delta), clip**2 / ONE / held
    size = max((float(sums.pvv[-1]) * unit - float(delta @ delta)) / d, LEAST_VARIANCE)
    covariance, sd = size * np.eye(d), sums.noise["pvv"] * unit / d
    if sums.own is not None:
        sd = diagonal_noise(sums.noise["own"]) * unit
        values, vectors = covariance_of(matrix_of_products(sums.own[-1], d) * unit - np.outer(delta, delta), sd, FLOOR)
        covariance = (vectors * np.maximum(values, LEAST_VARIANCE)) @ vectors.T
        size = max(float(np.trace(covariance)) / d, LEAST_VARIANCE)
    moved = (sums.noise["pv"] * clip / ONE / held) ** 2 / size
    share = (sums.noise["p"] / ONE / held) ** 2
    return covariance, np.array([share, moved, (sums.noise["pvv"] * unit / d / size) ** 2, (sd / size) ** 2])


def _slot(components: Components, share: float, most: int) -> int | None:
    """The place of the new component: a free one, that of the lighter of the two that overlap the most, or that of the
    lightest if it holds less than half of what the background does; None if there is none."""
    weights = components.weights[:-1]
    k = len(weights)
    if k < most:
        return k
    if k > 1:
        distances = Nodes(weights, components.means, components.covariances).distances() + np.diag(np.full(k, np.inf))
        i, j = np.unravel_index(int(distances.argmin()), distances.shape)
        if distances[i, j] <= OVERLAP:
            return int(i if weights[i] < weights[j] else j)
    lightest = int(weights.argmin())
    return lightest if weights[lightest] < share / 2 else None


def _joined(components: Components, found: Components, slot: int) -> Components:
    """With the new component in its place, and the background's weight lowered. Weights sum to one."""
    keep = np.arange(len(components.means)) != slot
    weights = np.concatenate([components.weights[:-1][keep], found.weights])
    return Components(
        weights / weights.sum(),
        np.concatenate([components.means[keep], found.means]),
        np.concatenate([components.covariances[keep], found.covariances]),
        np.concatenate([components.known[keep], found.known]),
    )
