"""How often intervals of 1.96 standard errors hold the mean over whole runs on the same rows with other noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedcore.methods.private_mixture import PrivateMixtureConfig
from fedcore.methods.private_mixture.errors import errors_of
from fedcore.methods.private_mixture.result import model_of
from fedcore.methods.private_mixture.state import PrivateMixtureState
from tests.private_mixture.missing import gapped
from tests.private_mixture.mixed import mixed
from tests.private_mixture.worlds import mixture, records, run

KINDS = ("shares", "means", "deviations", "answers")


@dataclass(frozen=True)
class Coverage:
    """runs: that had the usual number of components, all with errors; of so many. inside: of all intervals, by kind;
    ratio: spread over runs / mean error, in the median over numbers, by kind."""

    runs: int
    of: int
    inside: dict[str, float]
    ratio: dict[str, float]
    all_inside: float


def _rows(name: str) -> tuple[np.ndarray, PrivateMixtureConfig, int]:
    """Rows, settings, and how many runs of a series there are."""
    generator = np.random.default_rng(1)
    if name == "normal":
        x = generator.normal(size=(3000, 5)) @ generator.normal(size=(5, 5))
        return x, PrivateMixtureConfig(components=4), 1
    if name == "categories":
        truth = mixed(3, 2, 6.0, (3, 4), generator)
        config = PrivateMixtureConfig(components=2, categories=truth.categories)
        return truth.sample(4000, generator)[0], config, 1
    d, k, distance, n, runs = {
        "two": (4, 2, 6.0, 3000, 1),
        "gaps": (4, 2, 6.0, 3000, 1),
        "three": (2, 3, 8.0, 5000, 1),
        "series": (5, 3, 4.0, 4000, 3),
    }[name]
    x = mixture(d, k, distance, generator).sample(n, generator)[0]
    if name == "gaps":
        x = gapped(x, 0.2, False, np.random.default_rng(9))
    return x, PrivateMixtureConfig(components=k), runs


FAMILIES = ("two", "three", "categories", "normal", "series")


def _last(x: np.ndarray, config: PrivateMixtureConfig, runs: int, seed: int) -> PrivateMixtureState:
    start = None
    for number in range(runs):
        method, state = run(records(x), config, 1.0, seed=1000 * number + seed, start=start)
        start = method.warm_start_of(state) if number + 1 < runs else None
    return state


def coverage(name: str, seeds: range) -> Coverage:
    x, config, runs = _rows(name)
    values: list[list[np.ndarray]] = []
    errors: list[list[np.ndarray]] = []
    first = None
    for seed in seeds:
        state = _last(x, config, runs, seed)
        model = model_of(config, state)
        means = model.means_of_data()
        found = errors_of(config, state, model)
        if first is None:
            first = means
        if len(means) != len(first) or not np.isfinite(found.means).all():
            continue
        deviations = np.sqrt(np.diagonal(model.covariances_of_data(), axis1=1, axis2=2))
        away = (((first[:, None] - means) / deviations.mean(axis=0)) ** 2).sum(axis=2)
        order = linear_sum_assignment(away)[1]
        parts = np.append(order, len(order))
        answers = np.zeros((len(parts), 0)) if model.probabilities is None else model.probabilities
        shown = (model.weights[parts], means[order], deviations[order], answers[parts])
        own = (found.weights[parts], found.means[order], found.deviations[order], found.probabilities[parts])
        values.append([each.ravel() for each in shown])
        errors.append([each.ravel() for each in own])
    inside, ratio, every = {}, {}, []
    for kind, shown_of_kind, own_of_kind in zip(
        KINDS, zip(*values, strict=True), zip(*errors, strict=True), strict=True
    ):
        shown_now, own_now = np.array(shown_of_kind), np.array(own_of_kind)
        has = np.isfinite(own_now)
        if has.any():
            near = np.abs(shown_now - shown_now.mean(axis=0)) <= 1.96 * own_now
            every.append(near[has])
            inside[kind] = float(near[has].mean())
            numbers = has.any(axis=0)
            spread = shown_now[:, numbers].std(axis=0, ddof=1)
            ratio[kind] = float(np.median(spread / np.nanmean(own_now[:, numbers], axis=0)))
    return Coverage(len(values), len(seeds), inside, ratio, float(np.concatenate(every).mean()))


def coverages(seeds: range) -> None:
    print("family | runs with errors | intervals that hold, all | by kind (spread over runs / error)")
    for name in (*FAMILIES, "gaps"):
        found = coverage(name, seeds)
        parts = ", ".join(f"{kind} {found.inside[kind]:.3f} ({found.ratio[kind]:.2f})" for kind in found.inside)
        print(f"{name} | {found.runs} of {found.of} | {found.all_inside:.3f} | {parts}", flush=True)
