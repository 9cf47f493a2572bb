"""Tables on which a mixture of normal distributions alone has no useful density, and small groups far out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import sklearn.datasets
from fedcore.papers.private_mixture.data import SETS, split_of

from fedcore.methods.private_mixture import PrivateMixtureConfig, PrivateMixtureModel
from fedcore.methods.private_mixture.feasibility import words_of
from fedcore.methods.private_mixture.layout import COPIES
from fedcore.methods.private_mixture.scores import normal_of
from tests.private_mixture.worlds import records, run

ROWS, HELD_OUT, COMPONENTS = 8000, 2000, 8
ZERO = 0.05  # standard deviations of a column: the width that a zero counts as, where it has a probability
# Columns, distance, rows, share of the group, its scale.
GROUPS = (
    (2, 8, 5000, 0.05, 1.0),
    (2, 16, 5000, 0.05, 1.0),
    (3, 8, 5000, 0.05, 1.0),
    (10, 8, 5000, 0.05, 1.0),
    (2, 8, 8000, 0.05, 1.0),
    (2, 8, 10_000, 0.05, 0.02),
    (2, 8, 10_000, 0.02, 1.0),
    (2, 8, 20_000, 0.02, 1.0),
    (2, 8, 10_000, 0.03, 1.0),
)


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


# --- one group, in tables that are harder than `fedcore.papers.private_mixture.data.FAMILIES` ------------------------


def _cut_off(n, d, generator):
    return np.maximum(generator.normal(size=(n, d)) + 0.3, 0.0)


def _with_zeros(n, d, generator):
    x = generator.normal(size=(n, d)) + 3.0
    x[generator.random(n) < 0.4, 0] = 0.0
    return x


NULLS = {
    "exponential": lambda n, d, generator: generator.exponential(size=(n, d)),
    "cut off at zero": _cut_off,
    "whole numbers": lambda n, d, generator: generator.poisson(1.0, (n, d)).astype(np.float64),
    "far rows": lambda n, d, generator: (
        generator.normal(size=(n, d)) * np.where(generator.random((n, 1)) < 0.01, 1e3, 1)
    ),
    "Pareto 2.5, products": lambda n, d, generator: generator.pareto(2.5, (n, d)),
    "a column with 40 % zeros": _with_zeros,
}

# --- density, next to one normal distribution that reads rows alike ---------------------------------------------------


def rival(model: PrivateMixtureModel, x: np.ndarray) -> PrivateMixtureModel:
    """One normal distribution without privacy, with the point masses and the tail of the model. x: training rows."""
    numbers = model.layout.numbers(x, COPIES if model.layout.moves else 1)
    centre, scale = np.median(numbers, axis=0), np.maximum(numbers.std(axis=0), 1e-12)
    z = (numbers - centre) / scale
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(z.T)))
    root = vectors / np.sqrt(np.maximum(values, 1e-9))
    return replace(normal_of(model), centre=centre, scale=scale, origin=z.mean(axis=0), linear=root)


def _of_scikit_learn() -> dict[str, np.ndarray]:
    known = ("iris", "wine", "breast_cancer", "diabetes")
    return {name: np.asarray(getattr(sklearn.datasets, f"load_{name}")().data, np.float64) for name in known}


def sets(seeds: range, epsilons: list[float], chosen: dict[str, tuple[np.ndarray, np.ndarray, int]]) -> None:
    """Nats a column that a run is behind one normal distribution with the same point masses, without privacy; below 0:
    ahead. With the word before the run, and after the first releases. chosen: as from `known_sets`."""
    print("set, rows x columns | at each epsilon: nats a column behind, median (words before > after), CPU s of a run")
    good = behind_at_all = far_behind = 0
    for name, (train, test, components) in chosen.items():
        found = []
        for epsilon in epsilons:
            behind, words, seconds = [], [], 0.0
            for seed in seeds:
                config = PrivateMixtureConfig(components=components)
                begin = time.process_time()
                method, state = run(records(train), config, epsilon, seed)
                model, seconds = method.model(state), seconds + time.process_time() - begin
                other = rival(model, train).log_likelihood(test).mean()
                behind.append(float(other - model.log_likelihood(test).mean()) / train.shape[1])
                words.append(" > ".join(words_of(config, state)))
                good += words[-1] == "good > good"
                behind_at_all += words[-1] == "good > good" and behind[-1] > 0
                far_behind += words[-1] == "good > good" and behind[-1] > 0.25
            said = ", ".join(sorted(set(words)))
            found.append(f"{np.median(behind):.2f} ({said}), {seconds / len(seeds):.1f} s")
        print(f"{name}, {train.shape[0]} x {train.shape[1]} | {'; '.join(found)}", flush=True)
    print(f"of {good} forecasts of good {behind_at_all} are behind, {far_behind} by more than 0.25 nats a column")


def known_sets() -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """Rows to train, rows held out, components; generated ones, those of scikit-learn, and published ones."""
    found = {}
    for name, make in TABLES.items():
        x = make(ROWS + HELD_OUT, np.random.default_rng([*name.encode()]))
        found[name] = (x[:ROWS], x[ROWS:], COMPONENTS)
    for name, x in _of_scikit_learn().items():
        x = x[np.random.default_rng(0).permutation(len(x))]
        found[name] = (x[: 4 * len(x) // 5], x[4 * len(x) // 5 :], 3)
    for name, known in SETS.items():
        split = split_of(name)
        train = split.train[np.random.default_rng(0).permutation(len(split.train))[:ROWS]]
        found[name] = (train, split.test[:HELD_OUT], known.components)
    return found


def small_group(d: int, distance: float, n: int, seed: int, share: float = 0.05, scale: float = 1.0) -> np.ndarray:
    """A share of the rows is so many standard deviations from the others, and is scaled."""
    generator = np.random.default_rng([seed, d, int(distance)])
    x, direction = generator.normal(size=(n, d)), generator.normal(size=d)
    inside = generator.random(n) < share
    x[inside] = scale * x[inside] + distance * direction / np.linalg.norm(direction)
    return x


def small_groups(seeds: range, epsilons: list[float], groups: list[int], rounds: int) -> None:
    print("columns, distance, rows, share, scale, epsilon | runs with exactly 2 groups")
    for number, epsilon in itertools.product(groups, epsilons):
        d, distance, n, share, scale = GROUPS[number]
        found = 0
        for seed in seeds:
            x = small_group(d, distance, n, seed, share, scale)
            method, state = run(records(x), PrivateMixtureConfig(components=4, rounds=rounds), epsilon, seed)
            found += len(set(method.model(state).group.tolist())) == 2
        print(f"{d}, {distance}, {n}, {share}, {scale}, {epsilon} | {found} of {len(seeds)}", flush=True)
