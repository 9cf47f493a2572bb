"""`private_gmm` on arrays in memory; see `fedcore.papers.in_memory`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from fedcore.papers.in_memory import ran

from fedcore.methods.private_gmm import PrivateGMM, PrivateGMMConfig, PrivateGMMState, PrivateMixture
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.mechanisms import NoiseSource, SecureNoise
from fedcore.privacy.plan import Relation, Unit
from fedcore.rounds.method import PublicFacts, RoundInfo


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
    method = PrivateGMM(config)
    public = PublicFacts("rows", np.shape(x)[1], 1024, None, None, rho, seed, relation, None, unit)
    found = ran(
        method, x, public, noise or SecureNoise(), ptr=ptr, clients_per_leaf=clients_per_leaf, on_round=on_round
    )
    return Learned(method.mixture(found.state), found.state, found.rho, found.rho_planned, found.infos)
