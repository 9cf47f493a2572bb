"""A private method on arrays in memory: the same plan, statistics and server steps as a run, with noise of your choice.

With `SecureNoise` a call costs what its plan says, and nobody keeps account of it: the ledger does, in runs. With any
other noise the result protects nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcore.population.blocks import RowsBlock, leaves
from fedcore.privacy.mechanisms import NoiseSource
from fedcore.rounds.method import PrivateMethod, PublicFacts, RoundInfo
from fedcore.rounds.statistics import merge_all


@dataclass(frozen=True, slots=True)
class Ran:
    """state: the last. rho: spent, of rho_planned. infos: of the rounds."""

    state: Any
    rho: float
    rho_planned: float
    infos: tuple[RoundInfo, ...]


def ran(
    method: PrivateMethod[Any, Any],
    x: np.ndarray,
    public: PublicFacts,
    noise: NoiseSource,
    *,
    ptr: np.ndarray | None = None,
    clients_per_leaf: int | None = None,
    on_round: Callable[[Any, RoundInfo], None] | None = None,
) -> Ran:
    """All rounds of the method on rows (n, d).

    public: with the rho of the whole call. ptr: (C + 1,) rows of the clients; None: every row is a client of its own.
    clients_per_leaf: None: all at once; the result does not depend on it. Raises ConfigError as `method.plan` does.
    """
    block = RowsBlock(0, 0, np.arange(len(x) + 1) if ptr is None else np.asarray(ptr, np.int64), np.asarray(x))
    plan = list(method.plan(public))
    parts = [*leaves(block, clients_per_leaf or max(block.clients, 1))] or [block]
    state = method.init(public)
    infos: list[RoundInfo] = []
    spent: list[float] = []
    while (message := method.message(state)) is not None:
        statistics = merge_all(method.client_update(message, part, None)[0] for part in parts)
        grid = method.release_values(message, statistics or {})
        planned = [release for release in plan if release.round == len(infos) + 1]
        state, info = method.server_update(state, {p.name: noise.draw(p, "in memory", grid[p.name]) for p in planned})
        spent += [release.rho for release in planned]
        infos.append(info)
        if on_round is not None:
            on_round(state, info)
    return Ran(state, float(sum(spent)), float(sum(release.rho for release in plan)), tuple(infos))
