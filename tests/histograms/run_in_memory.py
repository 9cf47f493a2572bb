"""Runs a histograms method on one block in this process, with the engine's order of steps and seeded test noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedcore.methods.histograms import Histograms, HistogramsState
from fedcore.population.blocks import CountsBlock, leaves
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts, RoundInfo
from fedcore.rounds.statistics import merge, values

Noise = Callable[[PlannedRelease, np.ndarray], np.ndarray]


def facts(features: int, *, rho: float | None = None, nominal: int | None = None, seed: int = 0) -> PublicFacts:
    return PublicFacts("counts", features, 1024, nominal, None, rho, seed)


def rounded_normal(generator: np.random.Generator) -> Noise:
    """Rounded normal noise of the planned scale: for tests of accuracy, not of privacy."""
    return lambda planned, grid: grid + np.rint(generator.normal(0.0, planned.scale, grid.shape)).astype(np.int64)


def no_noise(planned: PlannedRelease, grid: np.ndarray) -> np.ndarray:
    return grid


def answer(method: Histograms, message, block: CountsBlock, clients_per_leaf: int):
    total = None
    for leaf in leaves(block, clients_per_leaf):
        statistics, memory = method.client_update(message, leaf, None)
        assert memory is None
        total = merge(total, statistics)
    return total


def run(
    method: Histograms, block: CountsBlock, public: PublicFacts, noise: Noise = no_noise, clients_per_leaf: int = 1024
) -> tuple[HistogramsState, list[RoundInfo]]:
    """The last state and what every round told; fails if a release is not exactly as planned."""
    plan = {(planned.round, planned.name): planned for planned in method.plan(public)}
    state, infos = method.init(public), []
    while (message := method.message(state)) is not None:
        number = len(infos) + 1
        statistics = answer(method, message, block, clients_per_leaf)
        if method.private:
            result = {}
            for name, grid in method.release_values(message, statistics).items():
                planned = plan.pop((number, name))
                assert grid.dtype == np.int64 and grid.shape == planned.shape
                result[name] = noise(planned, grid)
        else:
            result = values(statistics)
        state, info = method.server_update(state, result)
        infos.append(info)
    assert not plan, f"planned and never made: {sorted(plan)}"
    return state, infos
