"""Starts of private federated EM, and the table of them in docs/notes/federated-em.md.

    python -m tests.federated_em.starts CELL CLIENTS EPSILON [--shares S ...] [--clips C ...] [--brief]

    public      k-means on 300 rows of other people, then private EM with the whole budget
    mixture     `private_mixture` with a share of the budget (of the squares that add up), or with all of it
    started     private EM with the rest, from what that run leaves
    unknown     the same, without being told how precise that is, with the first of the clips
    no noise    exact EM from the public start, not private

The last two are left out by --brief.

CELL is touching, apart or wide. Clients have 20 to 50 rows and shares of their own. Noise is simulated at the planned
scale, and nothing here is private. Nats are those of a row of other people, above the truth.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np
from fedcore.papers.private_mixture.data import Truth, mixture

from fedcore.errors import ConfigError
from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig, FederatedEMState, models
from fedcore.methods.mixture_models.released import NATS_OF_NOISE
from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig, PrivateMixtureState
from fedcore.population.blocks import RowsBlock
from fedcore.privacy.gdp import mu_max
from tests.federated_em.run_in_memory import facts, no_noise, rounded_normal, run
from tests.federated_em.series import start_from
from tests.federated_em.varied import Varied
from tests.private_mixture import worlds
from tests.private_mixture.worlds import DELTA, adjusted_rand

CELLS = {"touching": (2, 2, 2.0), "apart": (5, 3, 3.0), "wide": (10, 4, 4.0)}  # columns, components, separation
FEWEST, MOST = 20, 50  # rows of a client
CONCENTRATION = 2.0  # times components: of the Dirichlet law of a client's own shares
HELD_OUT, OTHERS = 4000, 300
Start = dict[str, np.ndarray]


@dataclass(frozen=True)
class People:
    """truth: of all rows together. held_out, labels: rows of others. few: rows of others again, for a public start."""

    truth: Truth
    block: RowsBlock
    held_out: np.ndarray
    labels: np.ndarray
    few: np.ndarray

    @property
    def components(self) -> int:
        return len(self.truth.weights)

    def scores(self, log_density: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Nats above the truth, and adjusted Rand index."""
        best = np.logaddexp.reduce(self.truth.log_joint(self.held_out), axis=1)
        return float((best - log_density).mean()), adjusted_rand(self.labels, labels)


def people(cell: str, clients: int, seed: int) -> People:
    d, k, separation = CELLS[cell]
    truth = mixture(d, k, separation, np.random.default_rng([seed, d, k, 91]))
    generator = np.random.default_rng([seed, d, k, clients])
    sizes = generator.integers(FEWEST, MOST + 1, clients)
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    own = np.repeat(generator.dirichlet(CONCENTRATION * k * truth.weights, clients).cumsum(axis=1), sizes, axis=0)
    which = (generator.random((len(own), 1)) > own).sum(axis=1).clip(0, k - 1)
    x = np.empty((len(own), d))
    for j in range(k):
        mine = which == j
        x[mine] = (
            truth.means[j] + generator.normal(size=(int(mine.sum()), d)) @ np.linalg.cholesky(truth.covariances[j]).T
        )
    held_out, labels = truth.sample(HELD_OUT, generator)
    return People(truth, RowsBlock(0, 0, ptr, x), held_out, labels, truth.sample(OTHERS, generator)[0])


def config_of(components: int, clip: float = 3.0, **settings) -> FederatedEMConfig:
    return Varied(algorithm="private", components=components, clip=clip, **settings)


def em(one: People, start: Start, rho: float | None, config: FederatedEMConfig, seed: int) -> tuple[float, float]:
    """Scores of a run of federated EM. rho: of a private one."""
    noise = no_noise if rho is None else rounded_normal(np.random.default_rng([seed, 5]))
    public = facts(one.block, start=start, rho=rho, nominal=one.block.clients, seed=seed)
    state: FederatedEMState = run(config, one.block, public, noise=noise).state
    scaling = state.scaling()
    y, model = (one.held_out - scaling.centre) / scaling.scale, models.model_of(config, scaling)
    shares = model.personalise(state.parameters(), y)["responsibilities"]
    log_density = model.log_likelihood(state.parameters(), y) - np.log(scaling.scale).sum()
    return one.scores(log_density, shares.argmax(axis=1))


def first_run(one: People, share: float, epsilon: float, seed: int) -> tuple[PrivateMixture, PrivateMixtureState]:
    """A run of `private_mixture` for clients with a share of the rho of epsilon."""
    rho = share * mu_max(epsilon, DELTA) ** 2 / 2
    config = PrivateMixtureConfig(components=one.components)
    return worlds.run(one.block, config, seed=seed, unit="client", rho=rho)


def start_of(method: PrivateMixture, state: PrivateMixtureState) -> tuple[FederatedEMConfig, Start] | None:
    """What federated EM is given, with as many components as were found; None if the run leaves nothing."""
    config = config_of(len(state.means))
    try:
        return config, FederatedEM(config).checked_warm_start(without_series(method, state), "it", len(state.centre))
    except ConfigError:
        return None


def without_series(method: PrivateMixture, state: PrivateMixtureState) -> Start:
    """As `fedcore.training.warm_start` hands it to another method on the same population."""
    taken = set(FederatedEM.series_arrays)
    dropped = set(method.series_arrays) - taken
    return {name: array for name, array in method.warm_start_of(state).items() if name not in dropped}


def table(
    cell: str, clients: int, epsilon: float, seeds: range, shares: list[float], clips: list[float], brief: bool
) -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    rho = mu_max(epsilon, DELTA) ** 2 / 2
    for seed in seeds:
        one = people(cell, clients, seed)

        def say(name: str, scores: tuple[float, float], seed: int = seed) -> None:
            found.setdefault(name, []).append(scores)
            print(f"  seed {seed}, {name}: {scores[0]:.3f}, {scores[1]:.2f}", flush=True)

        public = start_from(one.few, config_of(one.components), seed)
        exact = Varied(algorithm="em", components=one.components, start="given", rounds=30)
        if not brief:
            say("no noise", em(one, public, None, exact, seed))
        for clip in clips:
            say(f"public, clip {clip:g}", em(one, public, rho, config_of(one.components, clip), seed))
        for share in (*shares, 1.0):
            method, state = first_run(one, share, epsilon, seed)
            model = method.model(state)
            say(f"mixture {share:g}", one.scores(model.log_likelihood(one.held_out), model.labels(one.held_out)))
            left = start_of(method, state) if share < 1 else None
            for clip in clips if left else ():
                config, start = left[0].model_copy(update={"clip": clip}), left[1]
                say(f"started {share:g}, clip {clip:g}", em(one, start, (1 - share) * rho, config, seed))
                if clip == clips[0] and not brief:
                    bare = {name: array for name, array in start.items() if name != NATS_OF_NOISE}
                    say(f"unknown {share:g}, clip {clip:g}", em(one, bare, (1 - share) * rho, config, seed))
    print(f"{cell} {CELLS[cell]}, {clients} clients, epsilon {epsilon:g}: median nats (most), median ARI, runs")
    for name, rows in found.items():
        nats, index = np.array(rows).T
        print(f"{name} | {np.median(nats):.3f} ({nats.max():.3f}), {np.median(index):.2f}, {len(rows)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cell", choices=CELLS)
    parser.add_argument("clients", type=float)
    parser.add_argument("epsilon", type=float)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.5])
    parser.add_argument("--clips", type=float, nargs="*", default=[3.0])
    parser.add_argument("--brief", action="store_true")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    table(asked.cell, math.floor(asked.clients), asked.epsilon, seeds, asked.shares, asked.clips, asked.brief)


if __name__ == "__main__":
    main()
