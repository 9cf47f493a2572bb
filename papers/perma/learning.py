"""What the experiments of dictionary learning share: trainings with what their clients ended with.

`start`, `learn` and `alone` run PerMA on many small problems at once, for failure rates: the functions of the method,
on stacks of clients in memory. A run of the method writes memories and states; for problems of six dimensions that
takes longer than the arithmetic. A test holds these rounds against runs of the method.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fedcore.papers.perma.truth import SharedAtoms
from fedcore.papers.simulation import simulate
from fedcore.papers.table import Place

from fedcore.methods.dictionary_learning.distances import d12
from fedcore.methods.perma import learners
from fedcore.methods.perma.initialisation import Schedule, best_of_starts, starting_dictionaries
from fedcore.methods.perma.learners import Coder
from fedcore.methods.perma.matching import aggregate, align, divide, matched_atoms, path, star
from fedcore.population.blocks import leaves
from fedcore.population.store import Population
from fedcore.randomness import stream
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


# --- many small problems at once --------------------------------------------------------------------------------------


FAR, FAR_ROUNDS = 0.7, 3  # as the method leaves clients out


@dataclass(frozen=True, slots=True)
class Started:
    """S problems of N clients each. samples: (S N, n, d), filled up with zeros; atoms: (S N, r, d) after the start."""

    problems: Sequence[SharedAtoms]
    samples: np.ndarray
    atoms: np.ndarray
    coder: Coder

    @property
    def clients(self) -> int:
        return len(self.problems[0].samples)

    def tiles(self):
        yield self.samples

    def dictionaries(self, problem: int) -> list[np.ndarray]:
        return list(self.atoms[problem * self.clients : (problem + 1) * self.clients])


def start(
    problems: Sequence[SharedAtoms],
    seeds: Sequence[int],
    starts: int,
    density: float | None = None,
    threshold: float = 0.15,
) -> Started:
    """Every client's own square dictionary. seeds: of the problems, for their starts; density: see `Schedule`."""
    n = max(len(own) for problem in problems for own in problem.samples)
    clients, d = len(problems[0].samples), problems[0].common.shape[1]
    samples = np.zeros((len(problems) * clients, n, d))
    for i, own in enumerate(own for problem in problems for own in problem.samples):
        samples[i, : len(own)] = own
    unit = np.broadcast_to(np.eye(d), (clients, d, d))
    first = np.concatenate([starting_dictionaries(d, d, starts, seed, np.arange(clients), unit) for seed in seeds])
    coder = Coder("threshold", threshold)
    sizes = np.array([len(own) for problem in problems for own in problem.samples], np.float64)
    schedule = Schedule(density=density)
    atoms, _ = best_of_starts("orthogonal", lambda: iter([samples]), sizes, first, coder, schedule)
    return Started(problems, samples, atoms, coder)


@dataclass(frozen=True, slots=True)
class Learnt:
    """errors: (T + 1, S) d_{1,2} of global atoms after each round; common: S of (rg, d); local: (S, N, r - rg, d)."""

    errors: np.ndarray
    common: list[np.ndarray]
    local: np.ndarray


def learn(started: Started, rounds: int, matcher: str, how: str, norm: str = "unit", rule: str = "lsa") -> Learnt:
    """Matching, then rounds with the orthogonal learner, as the method makes them. how: "mean" or "median" of the
    clients' versions; rule: of the alignment."""
    problems, n = started.problems, started.clients
    common, local = [], []
    for s, problem in enumerate(problems):
        own, wanted = started.dictionaries(s), len(problem.common)
        found = star(own, wanted, stream(0, "dictionaries/anchors")) if matcher == "star" else path(own, wanted)
        common.append(aggregate(matched_atoms(own, found), how, norm).atoms)
        local.append(divide(np.stack(own), found.index)[1])
    mine = np.concatenate(local)
    errors = [[d12(g, p.common) for g, p in zip(common, problems, strict=True)]]
    far = np.zeros(len(mine), np.int64)
    for _ in range(rounds):
        shared = np.repeat(np.stack(common), n, axis=0)
        atoms, _ = learners.step(
            "orthogonal", started.tiles, np.concatenate([shared, mine], axis=1), started.coder, loss=False
        )
        aligned = align(shared, atoms, rule)
        mine = aligned.local
        far = np.where(aligned.distances.mean(1) > FAR, far + 1, 0)
        for s in range(len(problems)):
            there = aligned.common[s * n : (s + 1) * n][far[s * n : (s + 1) * n] < FAR_ROUNDS]
            if len(there):
                common[s] = aggregate(there, how, norm, common[s]).atoms
        errors.append([d12(g, p.common) for g, p in zip(common, problems, strict=True)])
    return Learnt(np.array(errors), common, mine.reshape(len(problems), n, *mine.shape[1:]))


def alone(started: Started, rounds: int, every_round: bool = False) -> np.ndarray:
    """(T + 1, S, N) error of the atoms matched to the true global ones, of clients who go on by themselves.

    every_round: otherwise the last one only, shape (1, S, N). The truth does the matching, so this is for evaluation.
    """
    atoms, errors = started.atoms, []
    for t in range(rounds + 1):
        if every_round or t == rounds:
            errors.append(
                [
                    [d12(p.common, atoms[s * started.clients + i]) for i in range(started.clients)]
                    for s, p in enumerate(started.problems)
                ]
            )
        if t < rounds:
            atoms, _ = learners.step("orthogonal", started.tiles, atoms, started.coder, loss=False)
    return np.array(errors)
