"""Bounding: the ball of every node, from noised means and noised histograms of radii (Algorithm 3, step 2)."""

from __future__ import annotations

import math

import numpy as np

from fedcore.methods.private_gmm.integer_rows import ONE
from fedcore.methods.private_gmm.tree import Tree

TAIL, TAIL_NOISE = 0.02, 2.0  # of t, and in standard deviations: rows that a radius may leave out
MOST_HIDDEN = 0.25  # of the rows


def recentred(tree: Tree, nodes: np.ndarray, sums: np.ndarray) -> Tree:
    """Centres after a pass of means. sums: (s, d) published sums of clipped rows, in steps."""
    counts = np.maximum(tree.count[nodes], 1.0)
    step = tree.radius[nodes] / ONE
    return tree.changed(nodes, centre=tree.centre[nodes] + sums * (step / counts)[:, None])


def tightened(tree: Tree, nodes: np.ndarray, radii: np.ndarray, edges: np.ndarray, noise: float, needed: float) -> Tree:
    """Radii after a pass of histograms. radii: (s, bins) of units; edges: (bins,) upper; noise: of a bin; needed: t.

    The smallest radius beyond which no more lies than a few rows and the noise of so many bins. The rounding of rows
    to the steps of the old ball is added. A radius never grows.
    """
    found = [radius_of(row, edges, noise, n, TAIL * needed) for row, n in zip(radii, tree.count[nodes], strict=True)]
    rounding = 0.5 * math.sqrt(tree.d) * tree.radius[nodes] / ONE
    return tree.changed(nodes, radius=np.minimum(np.array(found) + rounding, tree.radius[nodes]))


def radius_of(counts: np.ndarray, edges: np.ndarray, noise: float, total: float, least: float) -> float:
    """The smallest edge beyond which no more lies than max(least, what noise may hide), and a quarter at most.

    A tail is the mean of two estimates, weighted by their precision: the sum of its bins, and the total less the other
    bins. Noise may hide two standard deviations of it.

    counts: (bins,) noised; total: their noised number. The quarter keeps the radius where noise hides most of the
    rows.
    """
    above, below = np.arange(len(counts))[::-1], np.arange(len(counts)) + 2  # terms; the total is one
    tails = (np.cumsum(counts[::-1])[::-1] - counts) * below + (total - np.cumsum(counts)) * above
    tails /= above + below
    hidden = np.minimum(TAIL_NOISE * noise * np.sqrt(above * below / (above + below)), MOST_HIDDEN * max(total, 0.0))
    inside = tails <= np.maximum(least, hidden)
    return float(edges[int(np.argmax(inside))])
