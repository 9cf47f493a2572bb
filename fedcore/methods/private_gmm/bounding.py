"""What the server makes of the first passes of a level: centre, radius and principal directions of every node."""

from __future__ import annotations

import math

import numpy as np

from fedcore.methods.private_gmm.sensitivities import DIAGONAL
from fedcore.methods.private_gmm.tree import Tree
from fedcore.methods.private_gmm.whole import BASIS_BITS, ONE

TAIL, TAIL_NOISE = 0.02, 2.0  # of t, and in standard deviations: rows that a radius may leave out
MOST_HIDDEN = 0.25  # of the rows


def moved(tree: Tree, nodes: np.ndarray, sums: np.ndarray) -> Tree:
    """Centres after a pass of means. sums: (s, d) published."""
    counts = np.maximum(tree.count[nodes], 1.0)
    step = tree.radius[nodes] / ONE
    return tree.changed(nodes, centre=tree.centre[nodes] + sums * (step / counts)[:, None])


def tightened(tree: Tree, nodes: np.ndarray, radii: np.ndarray, edges: np.ndarray, noise: float, needed: float) -> Tree:
    """Radii after a pass of histograms. radii: (s, cells) in units; edges: (cells,) upper; noise: of a cell.

    The smallest radius beyond which no more lies than a few rows and the noise of so many cells. The rounding of rows
    to the steps of the old ball is added. A radius never grows.
    """
    found = [radius_of(row, edges, noise, n, TAIL * needed) for row, n in zip(radii, tree.count[nodes], strict=True)]
    rounding = 0.5 * math.sqrt(tree.centre.shape[1]) * tree.radius[nodes] / ONE
    return tree.changed(nodes, radius=np.minimum(np.array(found) + rounding, tree.radius[nodes]))


def radius_of(counts: np.ndarray, edges: np.ndarray, noise: float, total: float, least: float) -> float:
    """The smallest edge beyond which no more lies than max(least, what noise may hide), and a quarter at most.

    A tail is the mean of two estimates, weighted by their precision: the sum of its cells, and the total less the other
    cells. Noise may hide two standard deviations of it.

    counts: (cells,) noised; total: their noised number. The quarter keeps the radius where noise hides most of the
    rows.
    """
    above, below = np.arange(len(counts))[::-1], np.arange(len(counts)) + 2  # terms; the total is one
    tails = (np.cumsum(counts[::-1])[::-1] - counts) * below + (total - np.cumsum(counts)) * above
    tails /= above + below
    hidden = np.minimum(TAIL_NOISE * noise * np.sqrt(above * below / (above + below)), MOST_HIDDEN * max(total, 0.0))
    inside = tails <= np.maximum(least, hidden)
    return float(edges[int(np.argmax(inside))])


def second_moment(triangle: np.ndarray, d: int) -> np.ndarray:
    """(d, d) symmetric, in squared steps. triangle: (d (d + 1) / 2,) published, its diagonal scaled."""
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = triangle
    matrix += np.triu(matrix, 1).T
    matrix[np.diag_indices(d)] *= DIAGONAL[1] / DIAGONAL[0]
    return matrix


def basis_of(triangle: np.ndarray, d: int, q: int) -> np.ndarray:
    """(d, q) whole numbers in steps of 2**-14: the leading eigenvectors of a published second moment."""
    vectors = np.linalg.eigh(second_moment(triangle, d))[1]
    return np.rint(vectors[:, ::-1][:, :q] * 2.0**BASIS_BITS)


def whole_space(d: int) -> np.ndarray:
    """(d, d) the identity, where there is nothing to project."""
    return np.eye(d) * 2.0**BASIS_BITS
