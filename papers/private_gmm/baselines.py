"""Baselines of the private mixtures: sample and aggregate (Section 6 of the paper), and EM without privacy.

Each function gives one cell's numbers as JSON. Data are simulated (`fedcore.papers.private_gmm.simulation`), and so
is the noise of the aggregation: privacy: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fedcore.papers.private_gmm.simulation import Scores, Truth, mixture, prior, sample, scores
from fedcore.papers.private_gmm.theory.aggregate import aggregate_boxes
from fedcore.papers.private_gmm.theory.blocks import Learner, spherical_em

from fedcore.errors import ConfigError
from fedcore.randomness import stream

DELTA = 1e-6
RIGHT_LABELS = 0.99  # share of rows that the nearest mean must label as their component
TEST_ROWS = 5000
SIZES = (4, 6, 8, 10, 12, 16, 20, 25, 30, 40, 50, 60, 80, 100, 120, 160)  # rows of a block that are tried
NUMBERS = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800)  # blocks that are tried
TILE = 1 << 22  # numbers of data held at a time


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell: d features, k components of equal weight and unit variance, separation."""

    features: int
    components: int
    separation: float

    def truth(self, seed: int) -> Truth:
        return mixture(self.features, self.components, self.separation, seed)


SETTINGS = (
    Setting(10, 2, 8.0),
    Setting(20, 3, 10.0),
    Setting(50, 5, 12.0),
    Setting(100, 5, 12.0),
    Setting(50, 10, 16.0),
)


def score_values(scored: Scores) -> dict[str, Any]:
    """{"mean_error": the largest of a component, in sigma; "accuracy", "weight_error", "trace_error"}."""
    return {
        "mean_error": float(scored.mean_errors.max()),
        "accuracy": scored.accuracy,
        "weight_error": scored.weight_error,
        "trace_error": scored.trace_error,
    }


def learnt_blocks(
    truth: Truth, size: int, blocks: int, seed: int, first: int = 0, learner: Learner = spherical_em
) -> tuple[np.ndarray, np.ndarray]:
    """Means (m, k, d) and weights (m, k) of blocks first .. first + blocks - 1, each of fresh rows of the truth. A
    block's numbers depend on (seed, size) and its tile of blocks, so first and blocks should stay multiples of one."""
    step = max(1, TILE // (size * truth.features))
    means: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for start in range(first, first + blocks, step):
        here = min(step, first + blocks - start)
        rows, _ = sample(truth, here * size, int(stream(seed, f"private_gmm/blocks/{size}", start).integers(2**62)))
        generator = stream(seed, f"private_gmm/learner/{size}", start)
        found = learner(rows.reshape(here, size, truth.features), truth.components, generator)
        means.append(found[0])
        weights.append(found[1])
    return np.concatenate(means), np.concatenate(weights)


def share_right(truth: Truth, means: np.ndarray) -> float:
    """Share of blocks all of whose means are nearer than half of the separation to their own true mean."""
    good = [
        bool(np.isfinite(found).all()) and scores(truth, found).mean_errors.max() < truth.separation / 2
        for found in means
    ]
    return float(np.mean(good))


def smallest_block(
    setting: Setting,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    blocks: int = 100,
    share: float = 0.9,
    sizes: Sequence[int] = SIZES,
    learner: Learner = spherical_em,
) -> int | None:
    """b: the first of the sizes at which the learner is right on this share of blocks, over all seeds; None if none."""
    for size in sizes:
        found = [
            share_right(setting.truth(seed), learnt_blocks(setting.truth(seed), size, blocks, seed, learner=learner)[0])
            for seed in seeds
        ]
        if np.mean(found) >= share:
            return size
    return None


def _growing(
    setting: Setting, size: int, seed: int, numbers: Sequence[int], learner: Learner
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The first m blocks for every m of the increasing numbers, each learnt once."""
    truth, have = setting.truth(seed), 0
    means: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for number in numbers:
        found = learnt_blocks(truth, size, number - have, seed, first=have, learner=learner)
        means, weights, have = [*means, found[0]], [*weights, found[1]], number
        yield np.concatenate(means), np.concatenate(weights)


def smallest_numbers(
    setting: Setting,
    size: int,
    epsilons: Sequence[float] = (1.0, 4.0),
    *,
    seeds: Sequence[int] = (1, 2, 3),
    numbers: Sequence[int] = NUMBERS,
    accurate: float | None = 1.0,
    radius_factor: float = 2.0,
    learner: Learner = spherical_em,
) -> list[dict]:
    """The first number of blocks m at which aggregation is good enough for every seed, for each epsilon and goal: rows
    {"epsilon", "goal", "b", "m", "n", "mean_error", "accuracy", "weight_error"}, scores the worst over seeds; m and all
    after it None if no number is enough.

    Goal "labels": k means are found, and 99 % of new rows are nearest to their own. Goal "means": besides, no mean is
    farther off than `accurate` sigma (None: not asked). Seeds differ in the mixture, its rows and the noise.
    """
    goals = {"labels": float("inf")} | ({} if accurate is None else {"means": accurate})
    known = {seed: prior(setting.truth(seed), radius_factor) for seed in seeds}
    tests = {seed: sample(setting.truth(seed), TEST_ROWS, seed + 1_000_003) for seed in seeds}
    found: dict[tuple[float, str], dict] = {}
    growing = (_growing(setting, size, seed, numbers, learner) for seed in seeds)
    for number, blocks in zip(numbers, zip(*growing, strict=True), strict=True):
        for epsilon in epsilons:
            wanted = [goal for goal in goals if (epsilon, goal) not in found]
            outcomes: list[dict[str, Any]] = []
            for seed, (means, weights) in zip(seeds if wanted else (), blocks, strict=bool(wanted)):
                noise = stream(seed, f"private_gmm/aggregate/{epsilon:g}", number)
                result = aggregate_boxes(
                    means, weights, epsilon, DELTA, noise, radius=known[seed].radius, finest=2 * known[seed].sigma_min
                )
                if result is None:
                    break
                rows, labels = tests[seed]
                scored = scores(setting.truth(seed), result.means, weights=result.weights, rows=rows, labels=labels)
                outcomes.append(score_values(scored))
            if len(outcomes) < len(seeds):
                continue
            error, accuracy = max(one["mean_error"] for one in outcomes), min(one["accuracy"] for one in outcomes)
            for goal in wanted:
                if accuracy >= RIGHT_LABELS and error <= goals[goal]:
                    found[epsilon, goal] = {
                        "m": number,
                        "n": size * number,
                        "mean_error": error,
                        "accuracy": accuracy,
                        "weight_error": max(one["weight_error"] for one in outcomes),
                    }
        if len(found) == len(goals) * len(epsilons):
            break
    nothing = dict.fromkeys(("m", "n", "mean_error", "accuracy", "weight_error"))
    return [
        {"epsilon": epsilon, "goal": goal, "b": size, **found.get((epsilon, goal), nothing)}
        for epsilon in epsilons
        for goal in goals
    ]


def em_scores(setting: Setting, rows: int, seed: int, *, covariance: str = "spherical", starts: int = 3) -> dict:
    """EM without privacy: {"mean_error", "accuracy", "weight_error", "trace_error"} of scikit-learn's GaussianMixture.
    covariance: "spherical", "diag" or "full". Raises ConfigError without scikit-learn."""
    try:
        from sklearn.mixture import GaussianMixture
    except ImportError as error:
        raise ConfigError("The EM baseline needs scikit-learn.", "Install fedcore with its extra 'bench'.") from error

    truth = setting.truth(seed)
    data, labels = sample(truth, rows, seed)
    model = GaussianMixture(setting.components, covariance_type=covariance, n_init=starts, random_state=seed).fit(data)
    covariances = model.covariances_
    if covariance != "full":
        covariances = covariances.reshape(setting.components, 1, -1) * np.eye(setting.features)
    return score_values(
        scores(truth, model.means_, weights=model.weights_, covariances=covariances, rows=data, labels=labels)
    )
