"""Tables on which a mixture of normal distributions alone has no useful density, and small groups far out."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from fedcore.methods.private_mixture import PrivateMixtureConfig, PrivateMixtureModel
from tests.private_mixture.worlds import records, run

ROWS, HELD_OUT, COMPONENTS = 8000, 2000, 8
ZERO = 0.05  # standard deviations of a column: the width that a zero counts as, where it has a probability
GROUPS = ((2, 8, 5000), (2, 16, 5000), (3, 8, 5000), (10, 8, 5000))  # columns, distance, rows


def _mostly_zeros(n, generator):
    return np.where(generator.random((n, 9)) < 0.02, np.exp(3 + generator.normal(size=(n, 9))), 0.0)


def _some_zeros(n, generator):
    x = generator.normal(size=(n, 6)) + 2 * (generator.random((n, 1)) < 0.5)
    x[:, :2] = np.where(generator.random((n, 2)) < 0.6, 0.0, np.exp(x[:, :2]))
    return x


def _amounts(n, generator):
    x = np.round(np.exp(5 + 1.5 * generator.normal(size=(n, 4))), 2)
    return np.where(generator.random((n, 4)) < [0.3, 0.5, 0.1, 0.7], 0.0, x)


def _censored(n, generator):
    return np.maximum(generator.normal(size=(n, 4)) @ np.linalg.qr(generator.normal(size=(4, 4)))[0] + 0.3, 0.0)


def _rare(n, generator):
    x = generator.normal(size=(n, 8))
    return np.where(generator.random((n, 8)) < 0.005, 1000 * generator.normal(size=(n, 8)), x)


def _far(n, generator):
    x = generator.normal(size=(n, 6))
    x[generator.random(n) < 0.01, 0] *= 1e4
    return x


TABLES: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "9 columns, 98 % zeros": _mostly_zeros,
    "6 columns, 2 of them 60 % zeros": _some_zeros,
    "4 columns of amounts, 10 to 70 % zeros": _amounts,
    "4 columns, cut off at zero": _censored,
    "8 columns, 0.5 % of the numbers 1000 times as large": _rare,
    "6 columns, 1 % of one 10,000 times as large": _far,
}


def loss(model: PrivateMixtureModel, x: np.ndarray, sd: np.ndarray) -> float:
    """Negative log density in nats a row, in standard deviations (d,) of the columns. A zero that has a probability
    counts as a width of ZERO, a number of a column with steps as the step."""
    layout = model.layout
    found = model.log_likelihood(x) + np.log(sd).sum()
    zeros = (x == 0) & ((layout.atoms > 0) | layout.alone)
    found -= (zeros * np.log(ZERO * sd)).sum(axis=1)
    return -float(found.mean() - np.log(layout.steps[layout.steps > 0]).sum())


def one_normal(x: np.ndarray, test: np.ndarray, sd: np.ndarray) -> float:
    """The same of one normal distribution, without privacy."""
    mean, lower = x.mean(axis=0), np.linalg.cholesky(np.cov((x / sd).T))
    z = np.linalg.solve(lower, ((test - mean) / sd).T)
    return float(0.5 * (z**2).sum(axis=0).mean() + np.log(np.diag(lower)).sum() + 0.5 * len(sd) * np.log(2 * np.pi))


def tables(seeds: range, epsilons: list[float]) -> None:
    print("table | one normal | nats a held-out row, median, by epsilon")
    for name, make in TABLES.items():
        x = make(ROWS + HELD_OUT, np.random.default_rng([*name.encode()]))
        train, test = x[:ROWS], x[ROWS:]
        sd, found = train.std(axis=0), []
        for epsilon in epsilons:
            losses = []
            for seed in seeds:
                method, state = run(records(train), PrivateMixtureConfig(components=COMPONENTS), epsilon, seed)
                losses.append(loss(method.model(state), test, sd))
            found.append(f"{np.median(losses):.1f}")
        print(f"{name} | {one_normal(train, test, sd):.1f} | {', '.join(found)}", flush=True)


def small_group(d: int, distance: float, n: int, seed: int) -> np.ndarray:
    """5 % of the rows lie so many standard deviations from the others."""
    generator = np.random.default_rng([seed, d, int(distance)])
    x, direction = generator.normal(size=(n, d)), generator.normal(size=d)
    x[generator.random(n) < 0.05] += distance * direction / np.linalg.norm(direction)
    return x


def small_groups(seeds: range, epsilons: list[float]) -> None:
    print("columns, distance, rows, epsilon | runs with exactly 2 groups")
    for (d, distance, n), epsilon in itertools.product(GROUPS, epsilons):
        found = 0
        for seed in seeds:
            x = small_group(d, distance, n, seed)
            method, state = run(records(x), PrivateMixtureConfig(components=4), epsilon, seed)
            found += len(set(method.model(state).group.tolist())) == 2
        print(f"{d}, {distance}, {n}, {epsilon} | {found} of {len(seeds)}", flush=True)
