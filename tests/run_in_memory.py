"""Runs a method on one block of rows in this process, with the engine's order of steps and its client memories."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.population.blocks import RowsBlock, leaves
from fedcore.rounds.method import Method, PublicFacts, RoundInfo, State
from fedcore.rounds.statistics import merge, values


@dataclass
class Ran:
    method: Method
    state: State
    infos: list[RoundInfo]
    memory: dict[str, np.ndarray]
    block: RowsBlock

    def outputs(self) -> dict[str, np.ndarray]:
        return self.method.personalise(self.state, self.block, self.memory)

    def column(self, name: str) -> np.ndarray:
        return np.array([info.scalars[name] for info in self.infos if name in info.scalars])


def block_of(rows: list[np.ndarray]) -> RowsBlock:
    ptr = np.concatenate([[0], np.cumsum([len(own) for own in rows])]).astype(np.int64)
    return RowsBlock(0, 0, ptr, np.concatenate(rows))


def facts(block: RowsBlock, seed: int = 0, start=None, image: tuple[int, int] | None = None) -> PublicFacts:
    return PublicFacts(
        "rows", block.features, 1024, None, block.clients, None, seed, warm_start=start, rows=len(block.x), image=image
    )


def run_method(
    method: Method,
    block: RowsBlock,
    *,
    seed: int = 0,
    given=None,
    clients_per_leaf: int = 1024,
    change=None,
    image=None,
) -> Ran:
    """given: public arrays to start from. change: memory, number of the pass -> memory, to interfere with what clients
    remember."""
    state, memory, infos = method.init(facts(block, seed, given, image)), None, []
    while (message := method.message(state)) is not None:
        total, kept = None, []
        for leaf in leaves(block, clients_per_leaf):
            at = slice(leaf.first, leaf.first + leaf.clients)
            mine = None if memory is None else {name: value[at] for name, value in memory.items()}
            statistics, new = method.client_update(message, leaf, mine)
            total = merge(total, statistics)
            kept.append(new)
        memory = None if kept[0] is None else {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}
        if change is not None and memory is not None:
            memory = change(memory, len(infos))
        state, info = method.server_update(state, values(total))
        assert all(np.isfinite(list(info.scalars.values())))
        infos.append(info)
    return Ran(method, state, infos, memory, block)
