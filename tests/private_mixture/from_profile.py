"""Runs that start from a profile which has a tenth of the budget, beside runs alone with the other nine tenths."""

from __future__ import annotations

import numpy as np
from fedcore.papers.private_mixture.data import SETS, split_of

from fedcore.errors import ConfigError
from fedcore.methods.private_mixture import PrivateMixtureConfig
from fedcore.methods.profile.config import ProfileConfig
from fedcore.methods.profile.method import Profile
from fedcore.rounds.method import PublicFacts
from tests.private_mixture.worlds import DELTA, mixture, mu_max, records, run

CELLS = ((5, 3, 600), (10, 5, 600), (10, 5, 2000), (20, 5, 2000), (10, 5, 8000), (10, 5, 30_000))
PART = 0.1  # of the budget, for the profile
BESIDE = 1.0  # of the range of a column, by which declared bounds lie beyond it on either side


def bounds_of(x: np.ndarray, beside: float = BESIDE) -> tuple[tuple[float, float], ...]:
    """Of each column, as somebody would declare them who does not know the data well."""
    low, high = x.min(axis=0), x.max(axis=0)
    more = beside * np.maximum(high - low, 1e-3)
    return tuple(zip((low - more).tolist(), (high + more).tolist(), strict=True))


def profile_start(x: np.ndarray, bounds, rho: float, seed: int) -> dict[str, np.ndarray]:
    """What a profile of records x (n, d) with noise of the planned scale leaves."""
    method = Profile(ProfileConfig(bounds=bounds))
    public = PublicFacts("rows", x.shape[1], 1024, len(x), None, rho, seed, "add_or_remove_one", None, "record")
    (planned,), state = method.plan(public), method.init(public)
    message = method.message(state)
    assert message is not None
    exact = method.release_values(message, method.client_update(message, records(x), None)[0])[planned.name]
    noise = np.random.default_rng([seed, 78]).normal(0, planned.scale, exact.shape)
    state, _ = method.server_update(state, {planned.name: exact + np.rint(noise).astype(np.int64)})
    return method.warm_start_of(state)


def beside(x: np.ndarray, test: np.ndarray, k: int, epsilon: float, seed: int) -> tuple[float, float] | None:
    """Held-out log density of a run alone and of one that starts from a profile, in nats a row; None if the profile
    does not know the range of every column, so that no run starts from it."""
    rho, config = mu_max(epsilon, DELTA) ** 2 / 2, PrivateMixtureConfig(components=k)
    found = []
    try:
        for start in (profile_start(x, bounds_of(x), PART * rho, seed), None):
            method, state = run(records(x), config, seed=seed, start=start, rho=(1 - PART) * rho)
            found.append(float(method.model(state).log_likelihood(test).mean()))
    except ConfigError:
        return None
    return found[1], found[0]


def table(seeds: range, epsilons: list[float], names: list[str]) -> None:
    print(
        "data | epsilon | profiles that know all ranges | nats a row alone, median | gain by a profile, median | mean"
    )

    def row(what: str, x: np.ndarray, test: np.ndarray, k: int) -> None:
        for epsilon in epsilons:
            made = [both for seed in seeds if (both := beside(x, test, k, epsilon, seed)) is not None]
            shown = "profiles say too little"
            if made:
                alone, started = np.array(made).T
                gain = started - alone
                error = gain.std() / np.sqrt(len(gain))
                shown = f"{np.median(alone):.2f} | {np.median(gain):+.2f} | {gain.mean():+.2f} +- {error:.2f}"
            print(f"{what} | {epsilon:g} | {len(made)} of {len(seeds)} | {shown}", flush=True)

    for d, k, n in CELLS:
        generator = np.random.default_rng([d, k, n])
        truth = mixture(d, k, 4, generator)
        row(
            f"{d} columns, {k} components, {n} rows", truth.sample(n, generator)[0], truth.sample(4000, generator)[0], k
        )
    for name in names or [*SETS]:
        found = split_of(name)
        row(f"{name}, {len(found.train)} rows", found.train, found.test, PrivateMixtureConfig().components)
