"""What the experiments of dictionary learning share: trainings with what their clients ended with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from fedcore.papers.simulation import simulate
from fedcore.papers.table import Place

from fedcore.population.blocks import leaves
from fedcore.population.store import Population
from fedcore.rounds.clients import read_memory
from fedcore.rounds.method import AnyMethod, ClientOutputs, RoundInfo


@dataclass(frozen=True, slots=True)
class Trained:
    """common: (rg, d); local: (N, l, d) of each client, zeros beyond its rank; outputs: of `personalise`, all clients;
    infos: of every round, the start first; seconds: of the training alone, wall."""

    method: AnyMethod
    state: Any
    outputs: ClientOutputs
    infos: tuple[RoundInfo, ...]
    seconds: float

    @property
    def common(self) -> np.ndarray:
        common: np.ndarray = self.state.common
        return common

    @property
    def local(self) -> np.ndarray:
        return self.outputs["local"]

    def atoms(self, client: int) -> np.ndarray:
        """(r, d) dictionary [G | L_i]."""
        return np.concatenate([self.common, self.local[client]])


def train(
    place: Place,
    key: str,
    settings: Mapping,
    population: Population,
    seed: int,
    start: dict | None = None,
    on_round: Callable[[Any, RoundInfo], None] | None = None,
    method: str = "perma",
) -> Trained:
    """Train a method with these settings, and personalise for every client; see `simulate`."""
    infos: list[RoundInfo] = []

    def listen(state: Any, info: RoundInfo) -> None:
        infos.append(info)
        if on_round is not None:
            on_round(state, info)

    began = time.perf_counter()
    trained, state = simulate(
        place, key, method, dict(settings), population, seed=seed, warm_start=start, on_round=listen
    )
    seconds = time.perf_counter() - began
    memories = place.folder / "runs" / key / "memory"
    last = max(memories.iterdir()) if memories.is_dir() else None  # of the last round: names are numbers
    parts: list[ClientOutputs] = []
    for index in range(len(population.blocks)):
        block = population.read(index)
        kept = None if last is None else read_memory(last, index, block.clients, None)
        for leaf in leaves(block, population.clients_per_leaf):
            first = leaf.first - block.first
            at = slice(first, first + leaf.clients)
            mine = None if kept is None else {name: value[at] for name, value in kept.items()}
            parts.append(trained.personalise(state, leaf, mine))
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Trained(trained, state, outputs, tuple(infos), seconds)
