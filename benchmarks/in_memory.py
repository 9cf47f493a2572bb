"""A method's own functions in the engine's order, on leaves in memory: a round without anything around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedcore.population.blocks import ClientBlock, RowsBlock, leaves
from fedcore.rounds.method import Method, PublicFacts
from fedcore.rounds.statistics import merge, values

CLIENTS_PER_LEAF = 1024


def block_of(rows: Sequence[np.ndarray]) -> RowsBlock:
    """rows: (m, d) of each client."""
    ptr = np.concatenate([[0], np.cumsum([len(own) for own in rows])]).astype(np.int64)
    return RowsBlock(0, 0, ptr, np.concatenate(rows))


class InMemory:
    """A training of a method that is not private. start: public arrays that it begins with."""

    def __init__(self, method: Method, block: ClientBlock, start: Mapping[str, np.ndarray] | None = None):
        self.method, self.memory = method, None
        self.parts = list(leaves(block, CLIENTS_PER_LEAF))
        self.state = method.init(
            PublicFacts(method.kind, block.features, CLIENTS_PER_LEAF, None, block.clients, None, 0, warm_start=start)
        )

    def step(self) -> bool:
        """One round. False: finished."""
        message = self.method.message(self.state)
        if message is None:
            return False
        total, kept = None, []
        for leaf in self.parts:
            mine = None
            if self.memory is not None:
                mine = {k: value[leaf.first : leaf.first + leaf.clients] for k, value in self.memory.items()}
            statistics, new = self.method.client_update(message, leaf, mine)
            total = merge(total, statistics)
            kept.append(new or {})
        self.memory = {name: np.concatenate([part[name] for part in kept]) for name in kept[0]} or None
        self.state, _ = self.method.server_update(self.state, values(total))
        return True
