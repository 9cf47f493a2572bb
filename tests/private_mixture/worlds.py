"""Runs in memory with noise of the planned scale, and the agreement of labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from fedcore.papers.private_mixture.data import mixture

from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig, PrivateMixtureState
from fedcore.population.blocks import RowsBlock, leaves
from fedcore.privacy.gdp import mu_max
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.statistics import merge

__all__ = ["adjusted_rand", "block_of", "facts", "mixture", "records", "run", "sums"]

DELTA = 1e-6


def block_of(clients: list[np.ndarray]) -> RowsBlock:
    """One block from the rows of each client."""
    ptr = np.concatenate([[0], np.cumsum([len(own) for own in clients])]).astype(np.int64)
    return RowsBlock(0, 0, ptr, np.concatenate(clients))


def records(x: np.ndarray) -> RowsBlock:
    """One row for each client."""
    return RowsBlock(0, 0, np.arange(len(x) + 1, dtype=np.int64), np.asarray(x, np.float64))


def facts(
    features: int, units: int, epsilon: float, unit: str = "record", relation: str = "add_or_remove_one", seed: int = 0
) -> PublicFacts:
    rho = mu_max(epsilon, DELTA) ** 2 / 2
    return PublicFacts("rows", features, 1024, units, None, rho, seed, relation, None, unit)


def sums(method: PrivateMixture, message, block: RowsBlock, clients_per_leaf: int = 2**20) -> dict[str, np.ndarray]:
    """The exact sums that the engine would add noise to, by planned name."""
    total = None
    for leaf in leaves(block, clients_per_leaf):
        total = merge(total, method.client_update(message, leaf, None)[0])
    return method.release_values(message, total)


def run(
    block: RowsBlock,
    config: PrivateMixtureConfig,
    epsilon: float | None = 1.0,
    seed: int = 0,
    unit: str = "record",
    relation: str = "add_or_remove_one",
    watch: Callable | None = None,
    start: dict[str, np.ndarray] | None = None,
    rho: float | None = None,
) -> tuple[PrivateMixture, PrivateMixtureState]:
    """A run with simulated noise of the planned scale. epsilon: None: exact sums. watch: sees each state. start: what
    the run before it left. rho: in place of that of epsilon."""
    units = max(block.x.shape[0] if unit == "record" else block.clients, 1)
    method = PrivateMixture(config)
    public = replace(facts(block.x.shape[1], units, epsilon or 1e4, unit, relation, seed), warm_start=start)
    public = public if rho is None else replace(public, rho=rho)
    scale = {planned.name: planned.scale for planned in method.plan(public)}
    generator = np.random.default_rng([seed, 77])
    state = method.init(public)
    while (message := method.message(state)) is not None:
        exact = sums(method, message, block)
        noised = {
            name: values + (0 if epsilon is None else np.rint(generator.normal(0, scale[name], values.shape)))
            for name, values in exact.items()
        }
        noised = {name: np.asarray(values).astype(np.int64) for name, values in noised.items()}
        state, _ = method.server_update(state, noised)
        if watch is not None:
            watch(message, state)
    return method, state


# --- labels ---------------------------------------------------------------------------------------------------------


def adjusted_rand(one: np.ndarray, other: np.ndarray) -> float:
    """The adjusted Rand index of two labellings."""
    table = np.zeros((int(one.max()) + 1, int(other.max()) + 1))
    np.add.at(table, (one, other), 1)

    def pairs(counts):
        return float((counts * (counts - 1) / 2).sum())

    together, rows, columns = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    expected = rows * columns / max(pairs(np.array([len(one)])), 1.0)
    largest = (rows + columns) / 2
    return 1.0 if largest == expected else (together - expected) / (largest - expected)
