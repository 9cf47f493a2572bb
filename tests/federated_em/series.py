"""Series of private federated EM runs in memory, and the tables of them in docs/notes/privacy-federated-em.md.

    FEDCORE_DATA=... python -m tests.federated_em.series touching|apart|changed|gvhd|letter RHO [SEEDS]

Noise is rounded normal. Every run starts from the one before it: with all that this one leaves ("pooled"), or with its
parameters alone, as runs did before statistics were pooled ("parameters alone"). Losses are those of held-out rows,
less that of EM without noise from the same start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig, FederatedEMState, models
from fedcore.methods.federated_em.series import SERIES_NAMES
from fedcore.methods.federated_em.start import public_model
from fedcore.methods.mixture_models.initialisation import cluster_sums, lloyd_step, parameters_from_clusters
from fedcore.population.blocks import RowsBlock
from tests.federated_em.run_in_memory import block_of, facts, no_noise, rounded_normal, run
from tests.federated_em.varied import Varied

RUNS, SEEDS, CHANGE_AFTER = 10, 3, 5


@dataclass(frozen=True)
class People:
    """block: of all clients. held_out: (N, d) rows of others. start: public, from a few rows of others again."""

    block: RowsBlock
    held_out: np.ndarray
    start: dict[str, np.ndarray]


def series(
    block_of_run: Callable[[int], RowsBlock],
    start: dict[str, np.ndarray],
    config: FederatedEMConfig,
    rho: float,
    runs: int,
    seed: int,
    *,
    pooled: bool = True,
) -> list[FederatedEMState]:
    """The states that equal runs 1 .. `runs` end with, each but the first started from the one before it."""
    method, noise, states = FederatedEM(config), rounded_normal(np.random.default_rng(seed)), []
    arrays = start
    for number in range(1, runs + 1):
        block = block_of_run(number)
        public = facts(block, start=arrays, rho=rho, nominal=block.clients, seed=number)
        states.append(run(config, block, public, noise=noise).state)
        left = method.warm_start_of(states[-1])
        arrays = {name: value for name, value in left.items() if pooled or name not in SERIES_NAMES}
    return states


def loss(config: FederatedEMConfig, state: FederatedEMState, rows: np.ndarray) -> float:
    """Mean negative log-likelihood of standardised rows, nats."""
    model, scaling = models.model_of(config, state.scaling()), state.scaling()
    return -float(model.log_likelihood(state.parameters(), (rows - scaling.centre) / scaling.scale).mean())


def without_noise(config: FederatedEMConfig, people: People, rounds: int = 80) -> float:
    """The loss that EM ends with."""
    exact = config.model_copy(update={"rounds": rounds, "gamma": 1.0})
    public = facts(people.block, start=people.start, rho=1.0, nominal=people.block.clients)
    return loss(config, run(exact, people.block, public, noise=no_noise).state, people.held_out)


# --- populations ----------------------------------------------------------------------------------------------------


def start_from(rows: np.ndarray, config: FederatedEMConfig, seed: int) -> dict[str, np.ndarray]:
    """Parameters from five steps of k-means on a few rows, and their mean and standard deviation."""
    centre, scale = rows.mean(axis=0), rows.std(axis=0)
    y, d = (rows - centre) / scale, rows.shape[1]
    picked = [y[np.random.default_rng(seed).integers(len(y))]]
    while len(picked) < config.model.components:
        picked.append(y[np.min([((y - one) ** 2).sum(axis=1) for one in picked], axis=0).argmax()])
    centres = np.stack(picked)
    for _ in range(5):
        centres = lloyd_step(centres, cluster_sums(y, centres))
    public = facts(block_of([y]), start={"centre": centre, "scale": scale})
    sums = cluster_sums(y, centres)
    theta = parameters_from_clusters(public_model(config, public), centres, sums, np.zeros(d), np.ones(d))
    return {**theta, "centre": centre, "scale": scale}


def gaussians(config: FederatedEMConfig, apart: float, seed: int, moved: bool = False, clients: int = 5000) -> People:
    """Clients of three rows from four Gaussians in four columns, each with shares of its own. apart: the least distance
    of two means, in units of a usual standard deviation. moved: every second client is one of another law, whose means
    lie .7 standard deviations from the first law's in every column, with other shares."""
    generator = np.random.default_rng(seed)
    first = _law(generator, config.model.components, apart)
    other = (first[0] + 0.7 * generator.normal(size=first[0].shape), first[1], generator.permutation(first[2]))
    few = _rows(np.random.default_rng([seed, 1]), first, 100)
    laws = (first, other if moved else first)
    parts = [_rows(np.random.default_rng([seed, 2, half]), law, clients // 2) for half, law in enumerate(laws)]
    held_out = [_rows(np.random.default_rng([seed, 3, half]), law, 1000) for half, law in enumerate(laws)]
    return People(
        block_of([*np.concatenate(parts)]),
        np.vstack([*np.concatenate(held_out)]),
        start_from(np.vstack([*few]), config, seed),
    )


def _law(generator: np.random.Generator, components: int, apart: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means (G, 4), factors of the covariances (G, 4, 4), shares (G,)."""
    means = generator.normal(size=(components, 4))
    distances = np.linalg.norm(means[:, None] - means[None], axis=2)
    means *= apart / distances[np.triu_indices(components, 1)].min()
    roots = generator.normal(size=(components, 4, 4))
    factors = np.linalg.cholesky(roots @ roots.transpose(0, 2, 1) / 8 + np.eye(4) / 2)
    return means, factors, generator.dirichlet(np.full(components, 5.0))


def _rows(generator: np.random.Generator, law: tuple[np.ndarray, np.ndarray, np.ndarray], clients: int) -> np.ndarray:
    """(clients, 3, 4)."""
    means, factors, shares = law
    own = generator.dirichlet(2 * len(shares) * shares, size=clients).cumsum(axis=1)
    which = (generator.random((clients, 3, 1)) > own[:, None]).sum(axis=2).clip(0, len(shares) - 1)
    return means[which] + np.einsum("cnij,cnj->cni", factors[which], generator.normal(size=(clients, 3, 4)))


def table_rows(folder: str, name: str, clients: int, config: FederatedEMConfig, seed: int) -> People:
    """Clients of one row each; 300 other rows make the start, the rest is held out."""
    rows = np.load(Path(folder) / "tabular" / f"{name}.npz")["x"].astype(np.float64)
    rows = rows[np.random.default_rng(seed).permutation(len(rows))]
    block = RowsBlock(0, 0, np.arange(clients + 1, dtype=np.int64), rows[:clients])
    return People(block, rows[clients + 300 :], start_from(rows[clients : clients + 300], config, seed))


# --- tables ---------------------------------------------------------------------------------------------------------


def _line(what: str, excess: list[list[float]]) -> str:
    return f"| {what} | " + " | ".join(f"{value:.3f}" for value in np.mean(excess, axis=0)) + " |"


def table(name: str, people_of: Callable[[int], People], config: FederatedEMConfig, rho: float, seeds: int) -> None:
    people = [people_of(seed) for seed in range(seeds)]
    exact = [without_noise(config, one) for one in people]
    for pooled in (True, False):
        excess = []
        for seed, one in enumerate(people):
            states = series(lambda number, one=one: one.block, one.start, config, rho, RUNS, seed, pooled=pooled)
            excess.append([loss(config, state, one.held_out) - exact[seed] for state in states])
        print(_line(f"{name}, rho {rho}: {'pooled' if pooled else 'parameters alone'}", excess), flush=True)


def table_of_change(config: FederatedEMConfig, rho: float, seeds: int) -> None:
    """After run CHANGE_AFTER half of the clients are others; the fresh series has them from the start."""
    cases = {"pooled": [], "parameters alone": [], "fresh, pooled": [], "fresh, parameters alone": []}
    for seed in range(seeds):
        before, after = (gaussians(config, 3.0, seed, moved) for moved in (False, True))
        exact = [without_noise(config, before)] * CHANGE_AFTER + [without_noise(config, after)] * (RUNS - CHANGE_AFTER)
        for case, excess in cases.items():
            fresh, pooled = case.startswith("fresh"), not case.endswith("alone")
            first = CHANGE_AFTER + 1 if fresh else 1

            def people(number: int, first: int = first, before: People = before, after: People = after) -> People:
                return before if number + first - 1 <= CHANGE_AFTER else after

            runs = RUNS - first + 1
            states = series(lambda number: people(number).block, before.start, config, rho, runs, seed, pooled=pooled)
            excess.append(
                [
                    loss(config, state, people(number).held_out) - exact[number + first - 2]
                    for number, state in enumerate(states, 1)
                ]
            )
    for case, excess in cases.items():
        print(_line(f"half changed, rho {rho}: {case}", excess), flush=True)


def main(which: str, rho: float, seeds: int = SEEDS) -> None:
    full = Varied(algorithm="private", components=4)
    diagonal = Varied(algorithm="private", components=8, covariance="diag")
    data = os.environ.get("FEDCORE_DATA", "")
    if which == "changed":
        return table_of_change(full, rho, seeds)
    people: dict[str, tuple[FederatedEMConfig, Callable[[int], People]]] = {
        "touching": (full, lambda seed: gaussians(full, 3.0, seed)),
        "apart": (full, lambda seed: gaussians(full, 6.0, seed)),
        "gvhd": (full, lambda seed: table_rows(data, "gvhd_flow", 12_000, full, seed)),
        "letter": (diagonal, lambda seed: table_rows(data, "letter", 16_000, diagonal, seed)),
    }
    config, people_of = people[which]
    table(which, people_of, config, rho, seeds)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:]))
