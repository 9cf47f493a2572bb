"""Groups of components: between which neighbours a calibrated test found a density dip."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.methods.mixture_models.valleys import connected, spanning_tree, valley_of
from fedcore.methods.mixture_models.whole_rows import ONE, STEP, WholeMap, cut_coordinates, whole_map
from fedcore.methods.private_mixture.clients import PLACE_STEPS
from fedcore.randomness import stream

FAR = 12.0  # of (c_i - c_j)' (S_i + S_j)^-1 (c_i - c_j): five standard deviations between equal components
BESIDE = 2.0
NEAR = 2.0  # two standard deviations between equal components, which have one peak together


@dataclass(frozen=True, slots=True)
class Nodes:
    """What edges join: components, where overlapping ones are one node. weights (m,), means (m, d), covariances
    (m, d, d)."""

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray

    def distances(self) -> np.ndarray:
        """(m, m) (c_i - c_j)' (S_i + S_j)^-1 (c_i - c_j)."""
        m = len(self.means)
        found = np.zeros((m, m))
        for i in range(m):
            for j in range(i + 1, m):
                gap = self.means[j] - self.means[i]
                found[i, j] = found[j, i] = gap @ np.linalg.solve(self.covariances[i] + self.covariances[j], gap)
        return found


def nodes_of(node: np.ndarray, weights: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> Nodes:
    """Weights, means and covariances of all rows of each node's components. node: (k,) int64, every number below m."""
    belongs = (node == np.arange(int(node.max()) + 1)[:, None]) * weights
    total = belongs.sum(axis=1)
    share = belongs / total[:, None]
    centres = share @ means
    away = means - centres[node]
    spread = covariances + away[:, :, None] * away[:, None, :]
    return Nodes(total, centres, np.einsum("mk,kde->mde", share, spread))


def near(weights: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """(k,) int64: the node of each component, in order of the lowest component.

    Two components that overlap share the rows between them and a third one. An edge from one of them would miss those
    of the other, which looks like a density dip. So the nearest are joined while all pairs of a node are nearer than
    NEAR.
    """
    distances = Nodes(weights, means, covariances).distances()
    parts = [[j] for j in range(len(means))]
    while len(parts) > 1:
        furthest = {
            (a, b): float(distances[np.ix_(parts[a], parts[b])].max())
            for a in range(len(parts))
            for b in range(a + 1, len(parts))
        }
        a, b = min(furthest, key=lambda pair: furthest[pair])
        if furthest[a, b] > NEAR:
            break
        parts[a] += parts.pop(b)
    node = np.zeros(len(means), np.int64)
    for number, part in enumerate(sorted(parts, key=min)):
        node[part] = number
    return node


def edges_of(nodes: Nodes) -> np.ndarray:
    """(e, 2) int64: a spanning tree of nodes. The density half way between two of equal covariance is that of their
    weights' sum times exp(-distance / 4)."""
    distances, mass = nodes.distances(), nodes.weights
    saddles = np.log(mass[:, None] + mass) - distances / 4
    return np.array(spanning_tree(distances, saddles, mass, FAR, BESIDE), np.int64).reshape(-1, 2)


def along(edges: np.ndarray, nodes: Nodes) -> tuple[WholeMap, np.ndarray]:
    """From the coordinates of the components to the Fisher direction of each edge, and the middles of the edges there,
    (e,) whole numbers; a node is PLACE_STEPS from the middle."""
    means, covariances = nodes.means, nodes.covariances
    d, e = means.shape[1], len(edges)
    directions, middle = np.zeros((d, e)), np.zeros(e)
    for column, (i, j) in enumerate(edges):
        gap = means[j] - means[i]
        fisher = np.linalg.solve(covariances[i] + covariances[j], gap)
        directions[:, column] = fisher * (2.0 / max(float(gap @ fisher), 1e-12))
        middle[column] = directions[:, column] @ (means[i] + means[j]) / 2
    return whole_map(np.zeros(d), directions * (PLACE_STEPS * STEP)), cut_coordinates(middle * PLACE_STEPS)


def tested(histograms: np.ndarray, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """mass, depth and p, (e,) each. histograms: (e, cells) published, in steps, ends included; noise: of a cell."""
    counts, sd = histograms / ONE, noise / ONE
    found = [valley_of(row[1:-1], sd, stream(seed, "valley", number)) for number, row in enumerate(counts)]
    mass = counts.sum(axis=1)
    return mass, np.array([each.depth for each in found]), np.array([each.p for each in found])


def groups_of(
    node: np.ndarray, edges: np.ndarray, depth: np.ndarray, p: np.ndarray, alpha: float, deepest: float
) -> np.ndarray:
    """(k,) int64: components whose nodes stay connected after the edges with a density dip were cut."""
    cut = (p <= alpha / max(len(edges), 1)) & (depth <= deepest)
    return connected(int(node.max()) + 1, [(int(i), int(j)) for i, j in edges[~cut]])[node]
