"""`private_gmm` on arrays in memory: the same plan, statistics and server steps as a run, with noise of your choice.

With `SecureNoise` a call costs what its plan says, and nobody keeps account of it: the ledger does, in runs. With any
other noise the result protects nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedcore.methods.private_gmm import PrivateGMM, PrivateGMMConfig, PrivateGMMState, PrivateMixture
from fedcore.population.blocks import RowsBlock, leaves
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.mechanisms import NoiseSource, SecureNoise
from fedcore.privacy.plan import Relation, Unit
from fedcore.rounds.method import PublicFacts, RoundInfo
from fedcore.rounds.statistics import merge_all


@dataclass(frozen=True, slots=True)
class Learned:
    """mixture: or the reason of a failure. state: the last. rho: spent, of rho_planned. infos: of the rounds."""

    mixture: PrivateMixture
    state: PrivateGMMState
    rho: float
    rho_planned: float
    infos: tuple[RoundInfo, ...]


def learn(
    x: np.ndarray,
    config: PrivateGMMConfig,
    *,
    epsilon: float,
    delta: float,
    unit: Unit = "record",
    ptr: np.ndarray | None = None,
    relation: Relation = "add_or_remove_one",
    noise: NoiseSource | None = None,
    seed: int = 0,
    clients_per_leaf: int | None = None,
    on_round: Callable[[PrivateGMMState, RoundInfo], None] | None = None,
) -> Learned:
    """Learn from rows (n, d), with all of (epsilon, delta) and no spares.

    unit: what is protected. ptr: (C + 1,) rows of the clients; None: every row is a client of its own. noise: secure by
    default. seed: of the public shifts of boxes. clients_per_leaf: None: all at once; the result does not depend on it.
    Raises ConfigError as `PrivateGMM.plan` does.
    """
    rho = make_budget(epsilon, delta).rho_max
    block = RowsBlock(0, 0, np.arange(len(x) + 1) if ptr is None else np.asarray(ptr, np.int64), np.asarray(x))
    method, noise = PrivateGMM(config), noise or SecureNoise()
    public = PublicFacts("rows", block.features, 1024, None, None, rho, seed, relation, None, unit)
    plan = list(method.plan(public))
    parts = [*leaves(block, clients_per_leaf or max(block.clients, 1))] or [block]
    state = method.init(public)
    infos: list[RoundInfo] = []
    spent: list[float] = []
    while (message := method.message(state)) is not None:
        statistics = merge_all(method.client_update(message, part, None)[0] for part in parts)
        grid = method.release_values(message, statistics or {})
        planned = [release for release in plan if release.round == len(infos) + 1]
        state, info = method.server_update(state, {p.name: noise.draw(p, "learn", grid[p.name]) for p in planned})
        spent += [release.rho for release in planned]
        infos.append(info)
        if on_round is not None:
            on_round(state, info)
    return Learned(method.mixture(state), state, float(sum(spent)), float(sum(p.rho for p in plan)), tuple(infos))
