"""Components of clients who fitted their mixtures alone come in any order; alignment gives all clients one order.

score(orders) = sum over components and ordered pairs of clients of the distance between their centres; lower is
better. An order is (R,): centres[order] are the aligned ones. Clients that are outliers need no particular order.

    exhaustive   the least score of all (R!)^(K - 1); for tests and very small problems
    stepwise     client after client, each against those before it; a step is one assignment problem
    shuffled     stepwise in several random orders; the least score, or each client's most frequent order
    by_centres   all clients against common centres, which are their spatial medians; for many clients

Source: Tian, Weng, Feng 2024, Appendix C. A stepwise step as an assignment problem, the vote and `by_centres` are ours.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import Literal

import numpy as np
import scipy  # its parts load at their first use: `scipy.optimize` takes longer than the rest of a small run's start

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.spatial_median import spatial_median
from fedcore.population.blocks import ClientBlock

MOST_EXHAUSTIVE = 200_000  # candidates
SWEEPS, RESTARTS = 20, 10
SHUFFLED_CLIENTS = 200  # up to which "auto" compares all pairs of clients
Rule = Literal["score", "majority"]


def pair_distances(centres: np.ndarray) -> np.ndarray:
    """(K, K, R, R): D[j, k, r, s] = |centres_j[r] - centres_k[s]|. centres: (K, R, p)."""
    clients, components, p = centres.shape
    flat = centres.reshape(clients * components, p)
    squares = np.einsum("ip,ip->i", flat, flat)
    found = np.sqrt(np.maximum(squares[:, None] + squares - 2.0 * flat @ flat.T, 0.0))
    return found.reshape(clients, components, clients, components).transpose(0, 2, 1, 3)


def _score(distances: np.ndarray, orders: np.ndarray) -> float:
    """Of orders (K, R), from the distances of all pairs (`pair_distances`)."""
    clients, components = orders.shape
    at = np.arange(clients)
    return float(sum(distances[at[:, None], at, orders[:, r][:, None], orders[:, r]].sum() for r in range(components)))


def exhaustive(centres: np.ndarray) -> np.ndarray:
    """(K, R). The first client keeps its order. Raises ConfigError if there are too many candidates."""
    clients, components, _ = centres.shape
    choices = list(permutations(range(components)))
    if len(choices) ** (clients - 1) > MOST_EXHAUSTIVE:
        raise ConfigError(
            f"{clients} clients with {components} components have too many alignments to try them all.",
            'Choose alignment = "shuffles".',
        )
    distances = pair_distances(centres)
    first = tuple(range(components))
    candidates = (np.array([first, *rest]) for rest in product(choices, repeat=clients - 1))
    return min(candidates, key=lambda orders: _score(distances, orders))


def stepwise(
    centres: np.ndarray, sequence: np.ndarray | None = None, distances: np.ndarray | None = None
) -> np.ndarray:
    """(K, R). sequence: (K,) the order in which clients are taken; the first keeps its order. distances: of
    `pair_distances`, if they are known."""
    clients, components, _ = centres.shape
    sequence = np.arange(clients) if sequence is None else np.asarray(sequence)
    distances = pair_distances(centres) if distances is None else distances
    orders = np.tile(np.arange(components), (clients, 1))
    for number in range(1, clients):
        before, client = sequence[:number], sequence[number]
        # cost[r, s]: of giving this client's centre s the place r, given all clients that are in order already
        cost = distances[before[:, None], client, orders[before]].sum(axis=0)
        orders[client] = scipy.optimize.linear_sum_assignment(cost)[1]
    return orders


def shuffled(centres: np.ndarray, shuffles: int, generator: np.random.Generator, rule: Rule = "score") -> np.ndarray:
    """(K, R), from `shuffles` random sequences.

    score: the result with the least score. majority: the most frequent order of every client, after each result is
    renamed so that one and the same client keeps its order; among equally frequent ones that of the result with the
    least score.
    """
    clients = len(centres)
    distances = pair_distances(centres)
    results = [stepwise(centres, generator.permutation(clients), distances) for _ in range(max(shuffles, 1))]
    results.sort(key=lambda orders: _score(distances, orders))
    if rule == "score":
        return results[0][:, np.argsort(results[0][0])]  # one name of many: the first client keeps its order
    # Names are those of a client near the others in the best result: an outlier's order is not the same in all.
    reference = _nearest_to_others(distances, results[0])
    renamed = np.array([orders[:, np.argsort(orders[reference])] for orders in results])
    return np.array([_most_frequent(renamed[:, client]) for client in range(clients)])


def _nearest_to_others(distances: np.ndarray, orders: np.ndarray) -> int:
    clients, components = orders.shape
    at = np.arange(clients)
    summed = sum(distances[at[:, None], at, orders[:, r][:, None], orders[:, r]] for r in range(components))
    return int(np.argmin(np.median(summed, axis=1)))


def _most_frequent(candidates: np.ndarray) -> np.ndarray:
    """The most frequent row of (B, R); the first of equally frequent ones."""
    found, first, counts = np.unique(candidates, axis=0, return_index=True, return_counts=True)
    return found[min(range(len(found)), key=lambda i: (-counts[i], first[i]))]


def to_centres(centres: np.ndarray, common: np.ndarray) -> np.ndarray:
    """(K, R) int64: every client's order of least summed distance to common (R, p); no order depends on another
    client's. Clients whose centres are nearest to different common ones need no assignment problem.
    """
    distances = np.sqrt(((common[None, :, None, :] - centres[:, None, :, :]) ** 2).sum(axis=3))
    orders = distances.argmin(axis=2)
    clash = (np.sort(orders, axis=1) != np.arange(orders.shape[1])).any(axis=1)
    for client in np.flatnonzero(clash):
        orders[client] = scipy.optimize.linear_sum_assignment(distances[client])[1]
    return orders


def by_centres(centres: np.ndarray, generator: np.random.Generator, restarts: int = RESTARTS) -> np.ndarray:
    """(K, R): of several first references the one with the least summed distance to the spatial medians."""
    best, least = np.zeros(centres.shape[:2], np.int64), np.inf
    for reference in generator.permutation(len(centres))[:restarts]:
        orders = to_centres(centres, centres[reference])
        common = spatial_median(reordered(centres, orders))
        for _ in range(SWEEPS - 1):
            new = to_centres(centres, common)
            if np.array_equal(new, orders):
                break
            orders = new
            common = spatial_median(reordered(centres, orders))
        distance = float(np.sqrt(((reordered(centres, orders) - common) ** 2).sum(axis=2)).sum())
        if distance < least:
            best, least = orders, distance
    return best


def by_rule(rule: str, shuffles: int, centres: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(K, R) orders of centres (K, R, p) by a rule of the settings."""
    if rule == "auto":
        rule = "shuffles" if len(centres) <= SHUFFLED_CLIENTS else "centres"
    match rule:
        case "exhaustive":
            return exhaustive(centres)
        case "stepwise":
            return stepwise(centres)
        case "shuffles":
            return shuffled(centres, shuffles, generator)
        case "majority":
            return shuffled(centres, shuffles, generator, "majority")
        case _:
            return by_centres(centres, generator)


def reordered(values: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """values (K, R, ...) with every client's components in its order."""
    return np.take_along_axis(values, orders.reshape(*orders.shape, *[1] * (values.ndim - 2)), axis=1)


def in_common_order(
    memory: dict[str, np.ndarray], orders: np.ndarray, centres: np.ndarray, block: ClientBlock
) -> dict[str, np.ndarray]:
    """The clients' memory of their fits, with the components in the common order.

    memory: theta (C, R, p), w (C, R) and started (C,), 1 for clients that have a fit; the others take the common
    centres (R, p). orders: (K, R) of all clients of the population, or (0, R) if each aligns itself to the centres.
    """
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


def matching(locations: np.ndarray, reference: np.ndarray, scale: np.ndarray | float = 1.0) -> np.ndarray:
    """(G,) order such that locations[order] is nearest to reference: least sum of squared distances (Hungarian method).

    locations, reference: (G, ...); both are divided by scale, which is broadcast against one location. Raises
    ValueError for different G.
    """
    if locations.shape != reference.shape:
        raise ValueError(f"cannot match components of shapes {locations.shape} and {reference.shape}")
    a, b = ((np.asarray(x, np.float64) / scale).reshape(len(x), -1) for x in (locations, reference))
    cost = ((b[:, None, :] - a[None, :, :]) ** 2).sum(axis=2)
    return scipy.optimize.linear_sum_assignment(cost)[1]
