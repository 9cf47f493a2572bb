"""Rounds of a run that goes its whole way, driven by the exact sums of a structured population that is nobody's.

Sensitivities are about *any* public message. So tests take messages from here, and put small populations under them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedcore.methods.private_gmm import PrivateGMM, PrivateGMMConfig, PrivateGMMState
from fedcore.methods.private_gmm.series import arrays_of, of_run
from fedcore.methods.private_gmm.tree import triangle_of
from fedcore.population.blocks import RowsBlock, leaves
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.statistics import merge

D = 4
RELATIONS = ("add_or_remove_one", "replace_one")
# Two scales, so that there are two levels.
CENTRES = np.array([[30.0, 0.0, 0.0, 1.0], [-30.0, 3.0, 0.0, -1.0], [-30.0, -3.0, 0.5, 0.0]])


@dataclass(frozen=True)
class Round:
    """A message, and the releases of its round."""

    message: object
    planned: tuple[PlannedRelease, ...]


def config(**settings) -> PrivateGMMConfig:
    return PrivateGMMConfig(**{"components": 2, "radius": 60.0, "sigma_min": 0.1, "least_weight": 0.2, **settings})


TWO_LEVELS = config(components=3, depth=2, covariance="full")
ONE_LEVEL = config(covariance="diag")
CASES = {
    "two levels": TWO_LEVELS,
    "variances": ONE_LEVEL,
    "sphere": config(covariance="spherical"),
    "nothing projected": config(components=4, up_to=True, depth=2, covariance="spherical"),
    "no search": config(components=3, covariance="full"),
}


def structured(seed: int = 0, rows: int = 600) -> RowsBlock:
    generator = np.random.default_rng(seed)
    x = np.concatenate([CENTRES[i % 3] + 0.3 * generator.normal(size=(1, D)) for i in range(rows)])
    return block_of([row[None] for row in x])


def block_of(clients: list[np.ndarray]) -> RowsBlock:
    """One block from the rows of each client."""
    ptr = np.concatenate([[0], np.cumsum([len(own) for own in clients])]).astype(np.int64)
    return RowsBlock(0, 0, ptr, np.concatenate([np.zeros((0, D)), *clients]))


def facts(
    unit: str = "client",
    relation: str = RELATIONS[0],
    rho: float | None = 0.5,
    seed: int = 0,
    features: int = D,
    nominal: int | None = None,
    case: str = "",
) -> PublicFacts:
    return PublicFacts("rows", features, 1024, nominal, None, rho, seed, relation, start_of(case), unit)


def start_of(case: str) -> dict[str, np.ndarray] | None:
    """What the series knows, if the run is one that does not search."""
    if case != "no search":
        return None
    moments = np.stack([triangle_of(0.09 * np.eye(D))] * 3)
    return arrays_of(of_run(np.full(3, 1 / 3), CENTRES + 0.02, moments, np.full((3, 3), 0.05)))


def sums(method: PrivateGMM, message, block: RowsBlock, clients_per_leaf: int = 1024) -> dict[str, np.ndarray]:
    """The exact sums that the engine would add noise to, by planned name."""
    total = None
    for leaf in leaves(block, clients_per_leaf):
        total = merge(total, method.client_update(message, leaf, None)[0])
    return method.release_values(message, total)


def run_without_noise(method: PrivateGMM, public: PublicFacts, block: RowsBlock) -> PrivateGMMState:
    """The end of a run in which the exact sums are published."""
    state = method.init(public)
    while (message := method.message(state)) is not None:
        state, _ = method.server_update(state, sums(method, message, block))
    return state


def wild(generator: np.random.Generator, grid: np.ndarray) -> np.ndarray:
    """Values that no noise gives."""
    return generator.integers(-(2**45), 2**45, grid.shape)


@lru_cache(maxsize=64)
def rounds_of(
    case: str, unit: str = "client", relation: str = RELATIONS[0], absurd: int | None = None, rho: float = 200.0
) -> tuple[Round, ...]:
    """All rounds of a run on `structured` without noise: releases of the levels, and of the leaves.

    absurd: from this round on the server sees absurd published values, until it gives up or is through.
    """
    method, public, block = PrivateGMM(CASES[case]), facts(unit, relation, rho, case=case), structured()
    plan, state, found = list(method.plan(public)), method.init(public), []
    generator = np.random.default_rng(absurd or 0)
    while (message := method.message(state)) is not None:
        planned = tuple(release for release in plan if release.round == len(found) + 1)
        found.append(Round(message, planned))
        grid = sums(method, message, block)
        assert {name: array.shape for name, array in grid.items()} == {p.name: p.shape for p in planned}
        if absurd is not None and len(found) > absurd:
            grid = {name: wild(generator, array) for name, array in grid.items()}
        state, info = method.server_update(state, grid)
        assert all(np.isfinite(list(info.scalars.values())))
    if absurd is None:
        assert isinstance(state, PrivateGMMState) and state.found and len(found) == len({p.round for p in plan})
    return tuple(found)
