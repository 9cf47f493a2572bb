"""The tree of the recursive partition, and the node to which a row belongs.

A node is a set of rows, known by the path that leads to it. Its rows are cut to a ball (centre, radius) and projected
on a basis. When it is split, every child is a part of the projected rows:

    VORONOI    rows whose distance to the child's own ball, relative to that ball's radius, is the least of all children
    BALL       the same, and within sqrt(c) radii
    REST       rows of the node in none of the balls

Nodes that are not split are the *cells* of the partition; each becomes a component of the mixture. All of it is public:
published values made it. A row is in at most one node of a level, because its path is a function of the row and of the
tree alone.

Projection on noisy principal directions (Algorithm 3, step 5).

The noise is that of Analyze Gauss (Dwork, Talwar, Thakurta, Zhang 2014): it is added to the second moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from fedcore.methods.mixture_models.whole_rows import DIAGONAL, matrix_of
from fedcore.methods.private_gmm.integer_rows import BASIS_BITS, ONE, clipped, projected, squared_distances
from fedcore.rounds.messages import between

# --- projection -------------------------------------------------------------------------------------------------------


def triangle_of(matrix: np.ndarray) -> np.ndarray:
    """(d (d + 1) / 2,) as a second moment is released: the inverse of `matrix_of`."""
    scaled = matrix.copy()
    scaled[np.diag_indices(len(matrix))] *= DIAGONAL[0] / DIAGONAL[1]
    return scaled[np.triu_indices(len(matrix))]


def basis_of(triangle: np.ndarray, d: int, q: int) -> np.ndarray:
    """(d, q) whole numbers in steps of 2**-14: the leading eigenvectors of a published second moment."""
    vectors = np.linalg.eigh(matrix_of(triangle, d))[1]
    return np.rint(vectors[:, ::-1][:, :q] * 2.0**BASIS_BITS)


def basis_through(points: np.ndarray, q: int) -> np.ndarray:
    """(d, q) whole numbers in steps of 2**-14: orthonormal directions in which k <= q + 1 points differ; zeros."""
    vectors = np.linalg.qr((points[1:] - points[0]).T)[0]
    basis = np.zeros((points.shape[1], q))
    basis[:, : vectors.shape[1]] = np.rint(vectors * 2.0**BASIS_BITS)
    return basis


def whole_space(d: int) -> np.ndarray:
    """(d, d) the identity, where there is nothing to project."""
    return np.eye(d) * 2.0**BASIS_BITS


VORONOI, BALL, REST = 0, 1, 2  # kind
OPEN, SPLIT, CLOSED = 0, 1, 2  # status: may be split, is split, will not be split
MOST_LEVELS = 4  # below the root; the limit of the setting depth
BASIS = between(-(2.0 ** (BASIS_BITS + 1)), 2.0 ** (BASIS_BITS + 1))  # twice the entries of an orthonormal one
GAP = 1.3  # c: a ball of radius r is empty up to c r


@dataclass(frozen=True, slots=True)
class Tree:
    """N nodes, the root first.

    centre: (N, d), radius: (N,) of the ball that rows are cut to, in the units of the data; frozen when a node is
    split. basis: (N, d, q) whole numbers in steps of 2**-14. parent, level, kind, status: (N,) int64. ball: (N, q)
    whole numbers and ball_radius: (N,), the ball by which rows of the parent come here, in steps of the parent's ball
    and coordinates of its basis. count: (N,) noisy, of units.
    """

    centre: np.ndarray
    radius: np.ndarray
    basis: np.ndarray = field(metadata=BASIS)
    parent: np.ndarray
    level: np.ndarray = field(metadata=between(0, MOST_LEVELS))
    kind: np.ndarray
    status: np.ndarray
    ball: np.ndarray
    ball_radius: np.ndarray
    count: np.ndarray

    @property
    def d(self) -> int:
        return self.centre.shape[1]

    @property
    def q(self) -> int:
        return self.basis.shape[2]

    def at(self, level: int) -> np.ndarray:
        """Nodes of this level."""
        return np.flatnonzero(self.level == level)

    def cells(self) -> np.ndarray:
        """Nodes that are not split."""
        return np.flatnonzero(self.status != SPLIT)

    def changed(self, nodes: np.ndarray | Sequence[int], **columns: Any) -> Tree:
        """These columns of these nodes set."""
        values = {}
        for name, value in columns.items():
            values[name] = getattr(self, name).copy()
            values[name][nodes] = value
        return replace(self, **values)

    def with_children(
        self,
        parent: int,
        kinds: Sequence[int],
        balls: np.ndarray,
        radii: np.ndarray,
        counts: np.ndarray,
        centres: np.ndarray,
    ) -> Tree:
        """The node split into m children, each first cut to its parent's radius about its own centre.

        kinds: (m,); balls: (m, q), radii: (m,) in steps of the parent; counts: (m,) noisy; centres: (m, d) in the
        units of the data.
        """
        m = len(kinds)
        new = {
            "centre": np.asarray(centres, np.float64).reshape(m, self.d),
            "radius": np.full(m, self.radius[parent]),
            "basis": np.zeros((m, self.d, self.q)),
            "parent": np.full(m, parent),
            "level": np.full(m, self.level[parent] + 1),
            "kind": np.asarray(kinds),
            "status": np.full(m, OPEN),
            "ball": np.asarray(balls, np.float64),
            "ball_radius": np.asarray(radii, np.float64),
            "count": np.asarray(counts, np.float64),
        }
        grown = {
            name: np.concatenate([getattr(self, name), value.astype(getattr(self, name).dtype)])
            for name, value in new.items()
        }
        return Tree(**grown).changed([parent], status=SPLIT)


def root(features: int, q: int, radius: float) -> Tree:
    """One node: all rows, cut to the public ball about the origin."""
    zero = np.zeros(1, np.int64)
    return Tree(
        np.zeros((1, features)),
        np.array([radius]),
        np.zeros((1, features, q)),
        zero - 1,
        zero,
        zero,
        zero,
        np.zeros((1, q)),
        np.zeros(1),
        np.zeros(1),
    )


def cells_about(means: np.ndarray, scales: np.ndarray, q: int) -> Tree:
    """A root that is split into the rows about each of m means, (m, d), by distances in units of scales, (m,).

    Rows are separated in the directions in which the means differ. They are cut to a ball twice as large as one that
    holds nearly all rows, so that a moved component can be seen.
    """
    m, d = means.shape
    centre = means.mean(axis=0)
    radius = 2.0 * float((np.linalg.norm(means - centre, axis=1) + math.sqrt(d) * scales).max())
    basis = whole_space(d) if q == d else basis_through(means, q)
    whole = root(d, q, radius).changed([0], centre=centre, basis=basis)
    balls = projected(clipped(means, centre, radius)[0], basis)
    return whole.with_children(0, [VORONOI] * m, balls, scales * (ONE / radius), np.zeros(m), means)


COLUMNS = tuple(field.name for field in fields(Tree))


def node_of(tree: Tree, x: np.ndarray, level: int | None = None) -> np.ndarray:
    """(n,) int64, the node in which each row ends; -1 where it left the tree. x: (n, d) float64, finite.

    level: go down to this level at most; None: to the cells.
    """
    at = np.zeros(len(x), np.int64)
    deepest = int(tree.level.max()) if level is None else level
    for depth in range(deepest):
        for node in np.flatnonzero((tree.level == depth) & (tree.status == SPLIT)):
            rows = np.flatnonzero(at == node)
            if len(rows):
                at[rows] = _child_of(tree, int(node), x[rows])
    return at


def _child_of(tree: Tree, node: int, x: np.ndarray) -> np.ndarray:
    children = np.flatnonzero(tree.parent == node)
    balls = children[tree.kind[children] != REST]
    rest = children[tree.kind[children] == REST]
    y = projected(clipped(x, tree.centre[node], float(tree.radius[node]))[0], tree.basis[node])
    ratios = squared_distances(y, tree.ball[balls]) / tree.ball_radius[balls] ** 2
    nearest = ratios.argmin(axis=1)
    child = balls[nearest]
    if tree.kind[balls[0]] == BALL:
        outside = np.take_along_axis(ratios, nearest[:, None], axis=1)[:, 0] > GAP
        child[outside] = rest[0] if len(rest) else -1
    return child
