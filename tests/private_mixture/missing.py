"""Density where numbers are missing: gaps filled by draws, as a run does it, against rows with gaps left out."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from fedcore.papers.private_mixture.data import SETS, mixture, split_of

from fedcore.methods.private_mixture import PrivateMixtureConfig
from tests.private_mixture.worlds import records, run

ROWS, HELD_OUT = 8000, 2000
GENERATED = {"generated, 5 columns": (5, 3, 4.0, 6000), "generated, 10 columns": (10, 4, 3.0, 8000)}
RATES = (0.02, 0.05, 0.1, 0.2)


def gapped(x: np.ndarray, rate: float, by_value: bool, generator: np.random.Generator) -> np.ndarray:
    """x with this share of its numbers missing, at random; by_value: large numbers more often, of all as many."""
    chance = np.full(x.shape, rate)
    if by_value:
        chance = 2 * rate * x.argsort(axis=0).argsort(axis=0) / len(x)
    return np.where(generator.random(x.shape) < chance, np.nan, x)


def rows_of(name: str, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows to train, rows held out, and components, in standard deviations of the columns."""
    generator = np.random.default_rng([seed, *name.encode()])
    if name in GENERATED:
        d, k, separation, n = GENERATED[name]
        truth = mixture(d, k, separation, generator)
        x, test = truth.sample(n, generator)[0], truth.sample(HELD_OUT, generator)[0]
    else:
        k, split = SETS[name].components, split_of(name)
        x, test = split.train[generator.permutation(len(split.train))[:ROWS]], split.test[:HELD_OUT]
    sd = x.std(axis=0)
    return x / sd, test / sd, k


def table(seeds: range, epsilons: list[float], names: list[str], rates: Sequence[float]) -> None:
    print("set | missing | complete rows | by epsilon: nats a held-out complete row, dropped / filled, mean over seeds")
    for name in names or [*GENERATED, *SETS]:
        for by_value in (False, True):
            for rate in rates:
                found, complete, seconds = [], [], 0.0
                for epsilon in epsilons:
                    losses = []
                    for seed in seeds:
                        x, test, k = rows_of(name, seed)
                        x = gapped(x, rate, by_value, np.random.default_rng([seed, 5]))
                        whole = ~np.isnan(x).any(axis=1)
                        complete.append(whole.mean())
                        config = PrivateMixtureConfig(components=k, nominal_records=len(x))
                        both = []
                        for rows in (x[whole], x):
                            begin = time.process_time()
                            method, state = run(records(rows), config, epsilon, seed)
                            seconds = time.process_time() - begin
                            both.append(-float(method.model(state).log_likelihood(test).mean()))
                        losses.append(both)
                    dropped, filled = np.mean(losses, axis=0)
                    found.append(f"{dropped:.2f} / {filled:.2f}")
                how = "by value" if by_value else "at random"
                share = f"{100 * np.mean(complete):.0f} %"
                print(f"{name} | {100 * rate:g} % {how} | {share} | {' | '.join(found)} | {seconds:.1f} s", flush=True)
