"""Runs federated EM on one block in this process, with the engine's order of steps and the engine's client memories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig, FederatedEMState
from fedcore.population.blocks import RowsBlock, leaves
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts, RoundInfo
from fedcore.rounds.statistics import merge, values

Noise = Callable[[PlannedRelease, np.ndarray], np.ndarray]


@dataclass
class Ran:
    """The last state, what every round told, the clients' last memories, and the state after every pass."""

    state: FederatedEMState
    infos: list[RoundInfo]
    memory: dict[str, np.ndarray] | None
    states: list[FederatedEMState]

    def column(self, name: str) -> np.ndarray:
        return np.array([info.scalars[name] for info in self.infos if name in info.scalars])


def block_of(rows: list[np.ndarray]) -> RowsBlock:
    """One block from the rows of each client."""
    ptr = np.concatenate([[0], np.cumsum([len(own) for own in rows])]).astype(np.int64)
    return RowsBlock(0, 0, ptr, np.concatenate(rows))


def facts(
    block: RowsBlock, *, seed: int = 0, start=None, rho=None, nominal=None, leaf=1024, relation="add_or_remove_one"
) -> PublicFacts:
    clients = block.clients if rho is None else None
    return PublicFacts("rows", block.features, leaf, nominal, clients, rho, seed, relation, start)


def no_noise(planned: PlannedRelease, grid: np.ndarray) -> np.ndarray:
    return grid


def rounded_normal(generator: np.random.Generator) -> Noise:
    """Rounded normal noise of the planned scale: for tests of accuracy, not of privacy."""
    return lambda planned, grid: grid + np.rint(generator.normal(0.0, planned.scale, grid.shape)).astype(np.int64)


def answer(method, message, block, clients_per_leaf, memory, order=None):
    """Statistics and memories of a block, its leaves taken in any order."""
    parts = list(leaves(block, clients_per_leaf))
    total, kept = None, {}
    for number in range(len(parts)) if order is None else order(len(parts)):
        leaf = parts[number]
        at = slice(leaf.first - block.first, leaf.first - block.first + leaf.clients)
        mine = None if memory is None else {name: array[at] for name, array in memory.items()}
        statistics, new = method.client_update(message, leaf, mine)
        total = merge(total, statistics)
        if new is not None:
            kept[number] = new
    if not kept:
        return total, None
    assert len(kept) == len(parts), "either all leaves of a block remember, or none"
    return total, {name: np.concatenate([kept[n][name] for n in sorted(kept)]) for name in kept[0]}


def run(
    config: FederatedEMConfig,
    block: RowsBlock,
    public: PublicFacts,
    *,
    clients_per_leaf: int = 1024,
    noise: Noise = no_noise,
    order=None,
    state: FederatedEMState | None = None,
) -> Ran:
    """state: where a run without memories goes on; None: from its beginning.

    Fails if a private round releases anything that is not exactly as planned.
    """
    method = FederatedEM(config)
    plan = {(planned.round, planned.name): planned for planned in method.plan(public)}
    state, memory, infos = method.init(public) if state is None else state, None, []
    states = [state]
    while (message := method.message(state)) is not None:
        statistics, memory = answer(method, message, block, clients_per_leaf, memory, order)
        if method.private:
            result = {}
            for name, grid in method.release_values(message, statistics).items():
                planned = plan.pop((len(infos) + 1, name))
                assert grid.dtype == np.int64 and grid.shape == planned.shape
                result[name] = noise(planned, grid)
        else:
            result = values(statistics)
        state, info = method.server_update(state, result)
        assert all(np.isfinite(list(info.scalars.values())))
        infos.append(info)
        states.append(state)
    assert not plan, f"planned and never made: {sorted(plan)}"
    return Ran(state, infos, memory, states)
