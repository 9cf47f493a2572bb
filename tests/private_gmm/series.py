"""Series of private_gmm runs in memory, and the tables of them in docs/notes/privacy-private-gmm.md.

    python -m tests.private_gmm.series                    all tables
    python -m tests.private_gmm.series equal NUMBER       a line of the table of equal runs, from 0
    python -m tests.private_gmm.series drift|appears|replaced
    FEDCORE_DATA=... python -m tests.private_gmm.series gvhd_flow|satellite EPSILON

Noise is pseudo-random of the same law. Every run starts from the one before it: with all that this one leaves, so that
it does not search where the series knows all components ("pooled"); with the same, but searching all the same ("pooled,
searching"); or from nothing ("alone"). Errors are the largest of a component's mean, in sigma.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from fedcore.papers.private_gmm import simulation
from fedcore.papers.private_gmm.runs import FINEST, LEAST, REAL, real_rows
from fedcore.papers.private_gmm.simulation import Truth

from fedcore.methods.private_gmm import PrivateGMM, PrivateGMMConfig, PrivateGMMState
from fedcore.population.blocks import RowsBlock
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.mechanisms import TestNoise
from fedcore.rounds.method import PublicFacts

RUNS, SERIES, CHANGE_AFTER = 10, 4, 5
POOLED, SEARCHING, ALONE = "pooled", "pooled, searching", "alone"
EQUAL = [  # columns, components, separation, rows, rho
    (10, 2, 8.0, 5000, 0.01),
    (20, 3, 10.0, 5000, 0.02),
    (20, 3, 10.0, 5000, 0.005),
    (20, 3, 6.0, 10_000, 0.01),
    (50, 5, 12.0, 10_000, 0.02),
    (20, 3, 10.0, 5000, 0.002),
    (20, 3, 10.0, 5000, 0.001),
]


@dataclass(frozen=True)
class Ended:
    """A run. state: the last one; method: its own."""

    method: PrivateGMM
    state: PrivateGMMState

    def error(self, truth: Truth) -> float | None:
        """The largest of a mean, in sigma; None if another number was found, or none."""
        if not self.state.found or len(self.state.means) != truth.components:
            return None
        return float(simulation.scores(truth, self.state.means).mean_errors.max())


def config_of(truth: Truth, **settings) -> PrivateGMMConfig:
    prior = simulation.prior(truth)
    known = {"radius": prior.radius, "sigma_min": prior.sigma_min, "least_weight": prior.least_weight}
    return PrivateGMMConfig(components=truth.components, covariance="spherical", **known).model_copy(update=settings)


def run(config: PrivateGMMConfig, x: np.ndarray, rho: float, key: str, start: dict | None = None) -> Ended:
    """Records are protected; all of rho is planned for."""
    method, block = PrivateGMM(config), RowsBlock(0, 0, np.arange(len(x) + 1), x)
    public = PublicFacts("rows", x.shape[1], 1024, len(x), None, rho, 0, "add_or_remove_one", start, "record")
    noise, plan, state, number = TestNoise(key), method.plan(public), method.init(public), 0
    while (message := method.message(state)) is not None:
        number += 1
        grid = method.release_values(message, method.client_update(message, block, None)[0])
        planned = [release for release in plan if release.round == number]
        state, _ = method.server_update(state, {p.name: noise.draw(p, key, grid[p.name]) for p in planned})
    return Ended(method, state)


def series(
    config: PrivateGMMConfig, rows_of: Callable[[int], np.ndarray], rho: float, key: str, how: str, runs: int = RUNS
) -> Iterator[Ended]:
    """Runs 1 .. `runs`, equal but for their rows."""
    start = None
    for number in range(1, runs + 1):
        ended = run(config, rows_of(number), rho, f"{key} {number}", None if how == ALONE else start)
        yield ended
        pool = ended.state.pool
        if not len(pool):
            continue
        start = ended.method.warm_start_of(ended.state)
        if how == SEARCHING:
            start |= {"pooled_lost": np.ones(1)}


# --- tables ---------------------------------------------------------------------------------------------------------


def of_series(truths: Callable[[int], Truth], config: PrivateGMMConfig, n: int, rho: float, seed: int, how: str):
    """(errors by run, NaN where the run found something else or nothing). The same rows as long as the truth is."""
    drawn = {}

    def rows(number: int) -> np.ndarray:
        truth = truths(number)
        if id(truth) not in drawn:
            drawn[id(truth)] = truth, simulation.sample(truth, n, seed)[0]
        return drawn[id(truth)][1]

    made = series(config, rows, rho, f"series {seed}", how)
    errors = [ended.error(truths(number)) for number, ended in enumerate(made, 1)]
    return np.array([np.nan if error is None else error for error in errors])


def line(what: str, errors: np.ndarray) -> None:
    """errors: (series, runs). Medians over those series whose run found all components, and the number of others."""
    with np.errstate(all="ignore"):
        cells = [
            f"{np.median(column[~np.isnan(column)]):.2f}" if (~np.isnan(column)).any() else "" for column in errors.T
        ]
    print(f"| {what} | {int(np.isnan(errors).sum())} of {errors.size} | " + " | ".join(cells) + " |", flush=True)


def equal(number: int) -> None:
    d, k, apart, n, rho = EQUAL[number]
    made: dict[str, list] = {POOLED: [], SEARCHING: [], ALONE: []}
    exact = []
    for seed in range(SERIES):
        truth = simulation.mixture(d, k, apart, seed)
        x, labels = simulation.sample(truth, n, seed)
        means = np.stack([x[labels == component].mean(axis=0) for component in range(k)])
        exact.append(simulation.scores(truth, means).mean_errors.max())
        for how, errors in made.items():
            errors.append(of_series(lambda _, truth=truth: truth, config_of(truth), n, rho, seed, how))
    for how, errors in made.items():
        line(f"{d}, {k}, {apart:g}; n = {n}, rho {rho:g} (no noise {np.median(exact):.2f}): {how}", np.array(errors))


def changing(which: str, n: int = 5000, rho: float = 0.02) -> None:
    made: dict[str, list] = {POOLED: [], SEARCHING: [], ALONE: []}
    for seed in range(SERIES):
        first, second = truths_of(which, seed)
        step = {}

        def truths(number: int, first=first, second=second, step=step) -> Truth:
            if which == "drift":
                return step.setdefault(number, replace(first, means=first.means + number * second.means))
            return first if number <= CHANGE_AFTER else second

        config = config_of(second if which == "appears" else first, up_to=which == "appears")
        for how, errors in made.items():
            errors.append(of_series(truths, config, n, rho, seed, how))
    for how, errors in made.items():
        line(f"{which}: {how}", np.array(errors))


def truths_of(which: str, seed: int) -> tuple[Truth, Truth]:
    """drift: the first truth, and by how much its means move in each run, .1 sigma; appears: three of four components,
    and all; replaced: three of four, and three of four again, two of which are the same."""
    if which == "drift":
        first = simulation.mixture(20, 3, 10.0, seed)
        moves = np.random.default_rng(seed).normal(size=first.means.shape)
        return first, replace(first, means=0.1 * moves / np.linalg.norm(moves, axis=1, keepdims=True))
    four = simulation.mixture(20, 4, 10.0, seed)
    three = chosen(four, [0, 1, 2])
    return three, four if which == "appears" else chosen(four, [0, 1, 3])


def chosen(truth: Truth, components: list[int]) -> Truth:
    weights = truth.weights[components]
    return Truth(weights / weights.sum(), truth.means[components], truth.roots[components])


def real(name: str, epsilon: float, runs: int = 8) -> None:
    """Up to two components of rows of a published set, as `fedcore reproduce private-gmm` asks for them: the negative
    log-likelihood of each run, means of two series; a run that found nothing gives none."""
    x, _ = real_rows(name)
    config = PrivateGMMConfig(components=2, up_to=True, radius=x.shape[1] ** 0.5, sigma_min=FINEST, least_weight=LEAST)
    for how in (POOLED, SEARCHING, ALONE):
        made = []
        for seed in range(2):
            ended = series(config, lambda _: x, make_budget(epsilon, 1e-6).rho_max, f"{name} {seed}", how, runs)
            mixtures = [one.method.mixture(one.state) for one in ended]
            made.append([-mixture.log_likelihood(x).mean() if mixture.found else np.nan for mixture in mixtures])
        line(f"{name}, epsilon {epsilon:g}: {how}", np.array(made))


def main(which: str = "", *numbers: str) -> None:
    if which in REAL:
        return real(which, float(numbers[0]))
    if which in ("", "equal"):
        for number in map(int, numbers) if numbers else range(len(EQUAL)):
            equal(number)
    for name in ("drift", "appears", "replaced"):
        if which in ("", name):
            changing(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
