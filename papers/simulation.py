"""A training as a simulation: the same method, engine and noise distribution, but no ledger and no promise.

Noise is pseudo-random (`TestNoise`), so that a table can be computed again to the same numbers. What comes out is not
private, whatever the method's configuration says.

`ran` runs a private method on arrays in memory: the same plan, statistics and server steps as a run, with noise of your
choice. With `SecureNoise` a call costs what its plan states, and no ledger counts it. With any other noise the result
protects nobody.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from fedcore.papers.table import Place

from fedcore.errors import ConfigError
from fedcore.methods.registry import make_method
from fedcore.population.blocks import RowsBlock, leaves
from fedcore.population.store import Population
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.mechanisms import NoiseSource, TestNoise
from fedcore.privacy.plan import PlannedRelease
from fedcore.rounds.clients import Source
from fedcore.rounds.engine import Training
from fedcore.rounds.method import Method, PrivateMethod, PublicFacts, RoundInfo, State
from fedcore.rounds.statistics import Statistics, merge_all, values
from fedcore.runs.store import Run
from fedcore.training.budget import fit_plan


class SimulatedPublisher:
    """Draws test noise and charges nothing; a `Publisher` of the engine for simulations only."""

    def __init__(self, key: str):
        self.noise = TestNoise(key)

    def published(self, planned: PlannedRelease) -> np.ndarray | None:
        return None

    def release_round(
        self, planned: Sequence[PlannedRelease], grids: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray]:
        return {release.name: self.noise.draw(release, "", grids[release.name]) for release in planned}

    def ending(self, status: str) -> None:
        """There is no account."""

    def head(self) -> dict[str, Any]:
        return {}


class SimulatedRun(Run):
    """A run that keeps no states and no metrics, only the clients' memories that the next round needs.

    A simulation that was interrupted starts again, and durable rounds would take longer than small experiments compute.
    """

    def commit(
        self,
        round: int,
        state: Any,
        rows: Sequence[Mapping[str, Any]] = (),
        *,
        memories: Mapping[str, str] | None = None,
        **head: Any,
    ) -> None:
        before = self.round
        self.head = {**self.head, **head, "round": round, "memories": self.memory_folder(round).is_dir()}
        self._prune({before, round})


def simulate(
    place: Place,
    key: str,
    name: str,
    settings: Mapping[str, Any],
    population: Population,
    *,
    seed: int,
    budget: tuple[float, float] | None = None,
    warm_start: Mapping[str, np.ndarray] | None = None,
    on_round: Callable[[State, RoundInfo], None] | None = None,
) -> tuple[Method, State]:
    """Train a method to its end. Returns (method, last state).

    key: of the run's folder, made afresh. budget: (epsilon, delta) of a private configuration, all of it for this
    run. warm_start: public arrays.
    on_round: called with the state after every round, and its `RoundInfo`.
    """
    method = make_method(name, settings)

    def facts(rho: float | None) -> PublicFacts:
        return PublicFacts(
            population.kind,
            population.features,
            population.clients_per_leaf,
            population.manifest.nominal_clients or population.n_clients,
            None if method.private else population.n_clients,
            rho,
            seed,
            warm_start=warm_start,
            image=population.manifest.image,
        )

    plan: tuple[PlannedRelease, ...] = ()
    public = facts(None)
    if method.private:
        if budget is None:
            raise ConfigError(f"this configuration of {name} is private, and the simulation has no budget.")
        epsilon, delta = budget
        plan, public = fit_plan(method, facts, make_budget(epsilon, delta).rho_max)
    shutil.rmtree(place.folder / "runs" / key, ignore_errors=True)  # of an attempt that was interrupted
    about = {"run_id": key, "method": name, "config": method.config.model_dump(), "private": False, "simulation": True}
    run = SimulatedRun.create(place.folder / "runs", about)
    try:
        state = method.init(public)
        run.commit(0, state)
        where = (population.location, population.version)
        source = Source(*where, cache_bytes=place.cache_bytes, manifest=population.checksum)
        publisher = SimulatedPublisher(f"{key}|{seed}") if method.private else None
        training = Training(
            method,
            run,
            state,
            source,
            range(len(population.blocks)),
            place.backend,
            plan,
            publisher,
            population.sizes(),
        )
        while (info := training.step()) is not None:
            if on_round is not None:
                on_round(training.state, info)
        return method, training.state
    finally:
        run.unlock()


def score_heldout_block(
    function: Callable[[Any, Any], Statistics], path: str, version: int, message: Any, index: int
) -> Statistics:
    """function(message, leaf with its held-out part), merged over the leaves of a block."""
    population = Population.open(path, version=version)
    block = population.read(index, heldout=True)
    total = merge_all(function(message, leaf) for leaf in leaves(block, population.clients_per_leaf))
    assert total is not None  # a block has a leaf
    return total


def over_heldout(
    place: Place, population: Population, function: Callable[[Any, Any], Statistics], message: Any
) -> dict[str, Any]:
    """Finished statistics of function(message, leaf) over all leaves of blocks that have held-out data."""
    blocks = [i for i, entry in enumerate(population.blocks) if entry.heldout is not None]
    mapped = partial(score_heldout_block, function, population.location, population.version)
    return values(place.backend.map_blocks(mapped, message, blocks) or {})


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
