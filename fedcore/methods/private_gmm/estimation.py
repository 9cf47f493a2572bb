"""The balls of nodes, from noisy means and noisy histograms of radii (Algorithm 3, step 2); and weights, means and
covariances of the components, one for each cell (Algorithm 4, steps 3 and 4)."""

from __future__ import annotations

import math

import numpy as np

from fedcore.methods.mixture_models.whole_rows import matrix_of
from fedcore.methods.private_gmm.config import Covariance
from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.tree import Tree

TAIL = 0.005  # of a cell: rows that its radius may leave out
NODE_TAIL, TAIL_NOISE = 0.02, 2.0  # of t, and in standard deviations: rows that the radius of a node may leave out
MOST_HIDDEN = 0.25  # of the rows
WIDER = 1.1  # the ratio of the grid of radii: one bin is added
LARGEST_NOISE = 0.25  # of the smallest eigenvalue: beyond, a full covariance is not reliable


def weights_of(counts: np.ndarray) -> np.ndarray:
    """(m,) shares, positive. counts: (m,) noisy."""
    kept = np.maximum(counts, 1e-9 * max(float(counts.max()), 1.0))
    return kept / kept.sum()


def reach_of(
    radii: np.ndarray, counts: np.ndarray, edges: np.ndarray, noise: float, step: np.ndarray, d: int
) -> np.ndarray:
    """(m,) radii that rows of the cells are cut to next.

    radii: (m, bins) of units, with upper edges (bins,); counts: (m,) of units; noise: of a bin; step: (m,) of the grid
    of rows.
    """
    found = [radius_of(row, edges, noise, n, TAIL * max(n, 0.0)) for row, n in zip(radii, counts, strict=True)]
    return WIDER * np.array(found) + 0.5 * math.sqrt(d) * step


def square_units(counts: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """(m,) change of a cell's second moment for one squared step in its sum, in the units of the data."""
    unit: np.ndarray = (reach / ONE) ** 2 / np.maximum(counts, 1.0)
    return unit


def covariances_of(
    moments: np.ndarray, unit: np.ndarray, d: int, form: Covariance, noise: np.ndarray, smallest: float
) -> tuple[np.ndarray, np.ndarray]:
    """(covariances, unreliable): (m,), (m, d) or (m, d, d), at least smallest**2 in every direction; and (m,) bool.

    moments: (m, width) as published, in the unit (m,); noise: (m,) its standard deviation, in that unit. If the
    noise of a full covariance is not small relative to its eigenvalues, its diagonal or a sphere replaces the matrix.
    """
    floor = smallest**2
    if form == "spherical":
        return np.maximum(moments[:, 0] * unit / d, floor), np.zeros(len(unit), bool)
    if form == "diag":
        return np.maximum(moments * unit[:, None], floor), np.zeros(len(unit), bool)
    made = [_full(row, scale, d, sd * scale, floor) for row, scale, sd in zip(moments, unit, noise, strict=True)]
    return np.stack([matrix for matrix, _ in made]), np.array([bad for _, bad in made])


def _full(triangle: np.ndarray, scale: float, d: int, noise: float, floor: float) -> tuple[np.ndarray, bool]:
    """noise: standard deviation of an entry off the diagonal; that of an eigenvalue is about 2 sqrt(d) times this."""
    matrix = matrix_of(triangle, d) * scale
    values, vectors = np.linalg.eigh(matrix)
    of_a_value = 2.0 * math.sqrt(d) * noise
    sphere = max(float(np.trace(matrix)) / d, floor)
    if of_a_value <= LARGEST_NOISE * sphere:
        # Eigenvalues below the noise are noise: the directions are kept, and the trace is not made larger by the floor.
        smallest = max(floor, min(of_a_value, sphere))
        return (vectors * np.maximum(values, smallest)) @ vectors.T, False
    variances = np.diagonal(matrix)
    if math.sqrt(2.0) * noise <= LARGEST_NOISE * sphere:
        return np.diag(np.maximum(variances, max(floor, 0.1 * sphere))), True
    return np.eye(d) * sphere, True


def recentred(tree: Tree, nodes: np.ndarray, sums: np.ndarray) -> Tree:
    """Centres after a pass of means. sums: (s, d) published sums of clipped rows, in steps."""
    counts = np.maximum(tree.count[nodes], 1.0)
    step = tree.radius[nodes] / ONE
    return tree.changed(nodes, centre=tree.centre[nodes] + sums * (step / counts)[:, None])


def tightened(tree: Tree, nodes: np.ndarray, radii: np.ndarray, edges: np.ndarray, noise: float, needed: float) -> Tree:
    """Radii after a pass of histograms. radii: (s, bins) of units; edges: (bins,) upper; noise: of a bin; needed: t.

    The smallest radius beyond which there is no more than a few rows and the noise of the bins. The rounding of rows
    to the steps of the old ball is added. A radius never grows.
    """
    found = [
        radius_of(row, edges, noise, n, NODE_TAIL * needed) for row, n in zip(radii, tree.count[nodes], strict=True)
    ]
    rounding = 0.5 * math.sqrt(tree.d) * tree.radius[nodes] / ONE
    return tree.changed(nodes, radius=np.minimum(np.array(found) + rounding, tree.radius[nodes]))


def radius_of(counts: np.ndarray, edges: np.ndarray, noise: float, total: float, least: float) -> float:
    """The smallest edge beyond which there is no more than max(least, what noise may hide), and a quarter at most.

    A tail is the mean of two estimates, weighted by their precision: the sum of its bins, and the total less the other
    bins. Noise may hide two standard deviations of it.

    counts: (bins,) noisy; total: their noisy number. The quarter keeps the radius where noise hides most of the rows.
    """
    above, below = np.arange(len(counts))[::-1], np.arange(len(counts)) + 2  # terms; the total is one
    tails = (np.cumsum(counts[::-1])[::-1] - counts) * below + (total - np.cumsum(counts)) * above
    tails /= above + below
    hidden = np.minimum(TAIL_NOISE * noise * np.sqrt(above * below / (above + below)), MOST_HIDDEN * max(total, 0.0))
    inside = tails <= np.maximum(least, hidden)
    return float(edges[int(np.argmax(inside))])
