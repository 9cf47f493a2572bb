"""Baselines of the private mixtures: sample and aggregate (Section 6 of the paper), and EM without privacy.

Each function gives one cell's numbers as JSON. Data are simulated (`fedcore.papers.private_gmm.simulation`), and so
is the noise of the aggregation: privacy: none.

Then what people would use for private clusters: Lloyd with noise, averages of blocks, a start from public rows. Noise
is simulated (floats of a repeatable generator), and no ledger knows of these functions. Their privacy cost is (epsilon,
delta) for one record, added or removed, by an argument in each. With mu of `fedcore.privacy.gdp.mu_max`, a Gaussian
release of sensitivity s and deviation s / m is m-GDP, and the squares of all m add up to mu^2.

They need what `private_mixture` does not: a box that holds every row, known beforehand, in whose units rows are given,
every entry in [-1, 1]; or, for `server_side`, public rows and a bound of the rows' length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fedcore.papers.private_gmm.simulation import Scores, Truth, mixture, prior, sample, scores
from fedcore.papers.private_gmm.theory.aggregate import Aggregated, Learner, aggregate_boxes, spherical_em

from fedcore.errors import ConfigError
from fedcore.privacy.gdp import mu_max
from fedcore.randomness import stream

LLOYD_ROUNDS = 5
SUMS = 0.8  # of mu^2 of a round, for sums; counts get the rest
PACKING_TRIES, PACKING_STEP = 100, 0.8
BLOCK_ROWS = 8  # for each component asked for


@dataclass(frozen=True, slots=True)
class Box:
    """low, high: (d,) public bounds of the columns."""

    low: np.ndarray
    high: np.ndarray

    @property
    def half(self) -> np.ndarray:
        """(d,) half widths; 1 for a column that has none."""
        half = (self.high - self.low) / 2
        return np.where(half > 0, half, 1.0)

    def wider(self, times: float) -> Box:
        """About the same middle."""
        middle = (self.low + self.high) / 2
        return Box(middle - times * self.half, middle + times * self.half)

    def inside(self, x: np.ndarray) -> np.ndarray:
        """Rows (n, d) in [-1, 1], entries cut to the box."""
        unit: np.ndarray = np.clip((x - (self.low + self.high) / 2) / self.half, -1.0, 1.0)
        return unit


def true_box(x: np.ndarray) -> Box:
    """The smallest box with all rows (n, d). Not private: whoever is given it is told the extremes of the data."""
    return Box(x.min(axis=0), x.max(axis=0))


def nearest(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(n,) int64 the centre (k, d) nearest to each row (n, d)."""
    squares = (centres**2).sum(axis=1) - 2 * x @ centres.T
    return squares.argmin(axis=1)


def sphere_packed(components: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """(k, d) centres in [-1, 1]^d drawn without looking at data, as far from each other and from the border as tries
    find: at least 2 a and a, for a as large as that."""
    apart = 1.0
    while True:
        apart *= PACKING_STEP
        found = np.zeros((0, columns))
        for _ in range(PACKING_TRIES * components):
            drawn = rng.uniform(-1 + apart, 1 - apart, columns)
            if not len(found) or np.linalg.norm(found - drawn, axis=1).min() >= 2 * apart:
                found = np.vstack([found, drawn])
                if len(found) == components:
                    return found


# --- Lloyd with noise -----------------------------------------------------------------------------------------------


def sums_of_cells(x: np.ndarray, labels: np.ndarray, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts (k,) and sums (k, d) of the rows of each label. A row adds 1 to one count, and itself to one sum."""
    counts = np.bincount(labels, minlength=components).astype(np.float64)
    sums = np.stack([np.bincount(labels, weights=column, minlength=components) for column in x.T], axis=1)
    return counts, sums.astype(np.float64)


@dataclass(frozen=True, slots=True)
class CellNoise:
    """Deviations of the noise of all counts, and of all sums, of cells."""

    count: float
    sum: float

    @classmethod
    def of(cls, of_counts: float, of_sums: float, bound: float) -> CellNoise:
        """Such that counts are of_counts-GDP and sums of_sums-GDP. bound: of the length of a row."""
        return cls(1 / of_counts, bound / of_sums)


def noisy_means(
    x: np.ndarray, labels: np.ndarray, centres: np.ndarray, noise: CellNoise, rng: np.random.Generator
) -> np.ndarray:
    """(k, d) means of the rows of each label. A cell whose noised count is below the noise keeps its centre."""
    counts, sums = sums_of_cells(x, labels, len(centres))
    counts += noise.count * rng.standard_normal(counts.shape)
    sums += noise.sum * rng.standard_normal(sums.shape)
    means = sums / np.maximum(counts, 1.0)[:, None]
    found: np.ndarray = np.where((counts > noise.count)[:, None], means, centres)
    return found


def lloyd_noise(columns: int, epsilon: float, delta: float, rounds: int) -> CellNoise:
    """Of one of so many rounds of Lloyd in the box, where a row is no longer than sqrt(d)."""
    mu = mu_max(epsilon, delta) / math.sqrt(rounds)
    return CellNoise.of(mu * math.sqrt(1 - SUMS), mu * math.sqrt(SUMS), math.sqrt(columns))


def dp_lloyd(
    x: np.ndarray,
    components: int,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    rounds: int = LLOYD_ROUNDS,
) -> np.ndarray:
    """DP-Lloyd (Blum, Dwork, McSherry, Nissim 2005) with a data-independent start and few rounds, as Su, Cao, Li,
    Bertino and Jin (2016) advise; Gaussian noise. (k, d) centres of rows x (n, d) of the box.

    Each round is mu / sqrt(rounds)-GDP, whatever the centres, which are made of what was released before.
    """
    noise = lloyd_noise(x.shape[1], epsilon, delta, rounds)
    centres = sphere_packed(components, x.shape[1], rng)
    for _ in range(rounds):
        centres = np.clip(noisy_means(x, nearest(x, centres), centres, noise, rng), -1.0, 1.0)
    return centres


# --- sample and aggregate -------------------------------------------------------------------------------------------


def blocks_of(rows: int, components: int) -> int:
    """Number of blocks: about BLOCK_ROWS rows for each component in each."""
    return max(2, rows // (BLOCK_ROWS * components))


def dealt(x: np.ndarray, blocks: int, rng: np.random.Generator) -> np.ndarray:
    """(m, b, d): each row (n, d) in a block of its own draw, NaN where a block has fewer than b. One row more or less
    changes one block, which blocks of equal sizes would not allow."""
    drawn = rng.integers(blocks, size=len(x))
    order, sizes = np.argsort(drawn, kind="stable"), np.bincount(drawn, minlength=blocks)
    places = np.arange(len(x)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    found = np.full((blocks, int(sizes.max(initial=1)), x.shape[1]), np.nan)
    found[drawn[order], places] = x[order]
    return found


def deviation_of_average(components: int, columns: int, blocks: int, mu: float) -> float:
    """Of the noise that makes the average of m vectors of [-1, 1]^(k d) mu-GDP, if one of them changes."""
    return 2 * math.sqrt(components * columns) / (blocks * mu)


def averaged_blocks(
    x: np.ndarray, components: int, epsilon: float, delta: float, rng: np.random.Generator, blocks: int | None = None
) -> np.ndarray:
    """Sample and aggregate (Nissim, Raskhodnikova, Smith 2007) by averages, as GUPT does (Mohan, Thakurta, Shi, Song,
    Culler 2012): each block is clustered without privacy, its centres are cut to the box and put in the order of their
    first coordinate, and their average over the blocks gets noise. (k, d) centres of rows x (n, d) of the box.

    A record is in one block, whose answer moves by at most the box's diameter; a block without enough rows answers with
    the box's middle. The number of blocks is public.
    """
    m, d = blocks or blocks_of(len(x), components), x.shape[1]
    means, _ = spherical_em(dealt(x, m, rng), components, rng)
    means = np.clip(np.nan_to_num(means), -1.0, 1.0)
    order = np.argsort(means[:, :, 0], axis=1)
    average = np.take_along_axis(means, order[:, :, None], axis=1).mean(axis=0)
    noise = deviation_of_average(components, d, m, mu_max(epsilon, delta))
    found: np.ndarray = np.clip(average + noise * rng.standard_normal(average.shape), -1.0, 1.0)
    return found


def agreed_boxes(
    x: np.ndarray, components: int, epsilon: float, delta: float, rng: np.random.Generator, *, finest: float
) -> Aggregated | None:
    """Sample and aggregate by `theory.aggregate.aggregate_boxes`: (k, d) centres where boxes hold those of
    half of the blocks, None unless k do. finest: the smallest width of a box."""
    means, weights = spherical_em(dealt(x, blocks_of(len(x), components), rng), components, rng)
    return aggregate_boxes(means, weights, epsilon, delta, rng, radius=math.sqrt(x.shape[1]), finest=finest)


# --- a start from public rows ---------------------------------------------------------------------------------------

SERVER_SHARES = {"moments": 1.0, "weights": 1.0, "start": 0.5, "round": 0.5}  # of epsilon, each of the last two twice
LEAST_SERVER_WEIGHT = 5.0


def server_shares(mu: float) -> dict[str, float]:
    """mu of each release: in the proportions of SERVER_SHARES, squares adding up to mu^2. "start" and "round" are of
    counts and of sums each."""
    squares = sum(share**2 * (1 if name in ("moments", "weights") else 2) for name, share in SERVER_SHARES.items())
    return {name: mu * share / math.sqrt(squares) for name, share in SERVER_SHARES.items()}


def moments_noise(columns: int, bound: float, mu: float, rng: np.random.Generator) -> np.ndarray:
    """(d, d) symmetric noise that makes the sum of z z' mu-GDP, |z| <= bound: (z_i z_j, i < j; z_i^2 / sqrt 2) has
    length |z|^2 / sqrt 2."""
    half = np.triu(rng.standard_normal((columns, columns)), 1)
    noise = half + half.T + np.diag(math.sqrt(2) * rng.standard_normal(columns))
    scaled: np.ndarray = noise * bound**2 / (math.sqrt(2) * mu)
    return scaled


def server_side(
    x: np.ndarray,
    components: int,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    server: np.ndarray,
    bound: float,
) -> np.ndarray | None:
    """After FedDP-KMeans (Scott, Lampert, Saulpic 2025), with records as units: (k, d) centres of rows x (n, d); None
    if fewer than k server rows are heavy.

    server: (m, d) rows that are public. bound: rows are shortened to it. The leading k directions of noised second
    moments; noised counts of rows nearest to each server row there, which weigh the server rows in k-means; means of
    the rows nearest to those centres; one round of Lloyd. The proportions of the shares and the least weight are those
    of the authors' public configuration; noise is Gaussian throughout, which they use for half of the releases, so that
    the same accountant counts it.
    """
    from sklearn.cluster import KMeans

    share, d = server_shares(mu_max(epsilon, delta)), x.shape[1]
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    rows = x * np.minimum(1.0, bound / np.maximum(lengths, 1e-300))
    moments = rows.T @ rows + moments_noise(d, bound, share["moments"], rng)
    basis = np.linalg.eigh(moments)[1][:, -components:]
    weights = np.bincount(nearest(rows @ basis, server @ basis), minlength=len(server)).astype(np.float64)
    weights += rng.standard_normal(len(server)) / share["weights"]
    kept = weights >= LEAST_SERVER_WEIGHT
    if kept.sum() < components:
        return None
    seed = int(rng.integers(2**31))
    model = KMeans(components, n_init=10, random_state=seed).fit(server[kept] @ basis, sample_weight=weights[kept])
    centres = model.cluster_centers_ @ basis.T
    for name in ("start", "round"):
        of_cells = CellNoise.of(share[name], share[name], bound)
        centres = noisy_means(rows, nearest(rows, centres), centres, of_cells, rng)
    return centres


# --- a package ------------------------------------------------------------------------------------------------------


def diffprivlib_is_here() -> bool:
    """Whether the optional package diffprivlib can be imported."""
    try:
        import diffprivlib.models  # noqa: F401  # only whether it is there
    except ImportError:
        return False
    return True


def diffprivlib_centres(x: np.ndarray, components: int, epsilon: float, seed: int) -> np.ndarray:
    """(k, d) centres of diffprivlib's KMeans on rows of the box: epsilon alone, its delta is 0. Raises ConfigError
    without the package."""
    try:
        from diffprivlib.models import KMeans
    except ImportError as error:
        raise ConfigError(
            "diffprivlib is not installed.", "pip install diffprivlib, with a scikit-learn it fits."
        ) from error
    box = (np.full(x.shape[1], -1.0), np.full(x.shape[1], 1.0))
    model = KMeans(components, epsilon=epsilon, bounds=box, random_state=seed)
    return np.asarray(model.fit(x).cluster_centers_)


# --- cells of the table -----------------------------------------------------------------------------------------------


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
