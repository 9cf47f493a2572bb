"""Where EM's passes over all rows begin: the best mixture that a search finds on a sample of the rows.

    sample    rows in a random order; the first n_1 are level 1, the first n_2 level 2
    starts    R chains by k-means++ and some steps of EM on level 1
    moves     each chain deletes a component and splits another, as long as that lowers the objective
    race      two steps of EM of every chain on level 2, mostly rows that no chain has seen; the best continues
    penalty   the pseudo-rows that suit fresh rows best
    tails     if they are to be chosen: normal or Student-t components, by fresh rows; once before the moves, which are
              then made with such components, and once after the race
    level     accelerated EM on level 2

EM with many starts stays in optima in which one component covers two groups and two share one. No acceleration leaves
them; a move does. The gain of a move is estimated as in the split-and-merge EM of Ueda, Nakano, Ghahramani and Hinton
(2000), but the estimate only orders the pairs: a move is kept if the objective is lower after it. All mixtures share
this; each says in `errors` along what its components are cut.

Everything here is a pure function of the sample and the seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import scipy

from fedcore.errors import PopulationError
from fedcore.methods.federated_em.config import AUTO_SHARE, PSEUDO_ROWS
from fedcore.methods.federated_em.sampled import AnyMixture, Counted, Sample, best_penalty, best_tails
from fedcore.methods.mixture_models.contract import Theta, is_sparse
from fedcore.methods.mixture_models.counts import CountMixture
from fedcore.methods.mixture_models.gaussian import GaussianMixture
from fedcore.methods.mixture_models.initialisation import (
    PRIOR_ROWS,
    cluster_sums,
    lloyd_step,
    parameters_from_clusters,
    random_parameters,
    squared_distances,
)
from fedcore.methods.mixture_models.packing import SMALLEST_MOMENT
from fedcore.methods.mixture_models.regression import RegressionMixture
from fedcore.randomness import stream

ROWS_OF_PARAMETER, FEWEST_ROWS, MOST_ROWS = 10, 5_000, 10_000  # of level 1
SECOND = 4  # times as many rows in level 2
WHOLE = 0.6  # of the rows: level 1 has all of them rather than more, and level 2 no more
MOST_NUMBERS = 2**24  # of the sample in RAM: 128 MiB
SEEDING_ROWS, LLOYD_STEPS, TRIED_SEEDS = 4_000, 5, 4  # of k-means++: rows, steps, seeds that are tried for each seed
FIRST_STEPS, FIRST_GAIN = 10, 1e-3  # accelerated steps of a chain before and after its moves
MOVES, GIVE_UP, FAILURES = 24, 4, 2  # tries of a chain, failures in a row, failures of one component
MOVE_STEPS, MOVE_GAIN = 5, 2e-3
SPLIT_ROWS, SPLIT_STEPS = 1_000, 4
FEWEST = 20  # different rows of a component that is split; of models with second moments, at least two a column
STALE = 0.05  # of a component's rows that moved: its split is looked for again
SAME = 1e-4  # nats a row: chains this near to each other are in the same optimum
RACE_STEPS = 2
PENALTY_STEPS, PENALTY_ROWS = 4, 10_000
MANY_ROWS = 100  # of a parameter: then the smallest penalty is right
FEW_ROWS, FEW_STEPS = 20, 20  # rows of a parameter: below, AUTO_SHARE of them is held back; steps with each penalty
LEVEL_STEPS, LEVEL_GAIN = 12, 3e-4
NO_VARIANCE = 1e-6  # of a standardised column, or along an axis
SEARCH = "federated_em/search"


@dataclass(frozen=True, slots=True)
class Found:
    """theta: where the passes over all rows begin. pseudo_rows: those that were chosen. ends: (R,) objectives of the
    chains in the race, nats a row. row_steps: rows times EM steps that were made on the sample."""

    theta: Theta
    pseudo_rows: float
    ends: np.ndarray
    row_steps: float


def sample_share(parameters: int, features: int, rows: int) -> tuple[float, float]:
    """(share of the rows in level 1, share in the sample) for a mixture of this many parameters; 1 where the rows are
    so few that all of them are read, and level 1 is the whole sample."""
    first = min(max(ROWS_OF_PARAMETER * parameters, FEWEST_ROWS), MOST_ROWS, max(MOST_NUMBERS // features, 1))
    if first > WHOLE * rows:
        return 1.0, 1.0
    return first / rows, min(SECOND * first, MOST_NUMBERS // features, WHOLE * rows) / rows


def searched(
    model_of: Callable[[float, float], AnyMixture],
    sample: Sample,
    seed: int,
    restarts: int,
    pseudo_rows: float | None,
    by_distance: bool = True,
    tails: bool = False,
) -> Found:
    """The best mixture that is found. pseudo_rows: None to choose them. by_distance: k-means++, else rows at random.
    tails: whether it may be one of Student-t components, which its parameters then say.

    Axes along which no row varies are left out. There only the penalty keeps variances above 0, and they are larger in
    smaller components: each such axis makes a mixture of one large component look better, whatever the groups are.
    """
    wide = model_of(1.0, 1.0)
    axes = _axes(wide, sample.y) if isinstance(wide, GaussianMixture) else np.eye(1)
    if axes.shape[0] == axes.shape[1]:
        return _searched(model_of, sample, seed, restarts, pseudo_rows, by_distance, tails)
    along = replace(sample, y=sample.y[:, axes.argmax(axis=0)] if np.isnan(sample.y).any() else sample.y @ axes)

    def narrower(nu: float, rows: float) -> GaussianMixture:
        model = cast(GaussianMixture, model_of(nu, rows))
        size = axes.shape[1]
        return replace(model, features=size, lam=axes.T @ model.lam @ axes, centre=np.zeros(size), known=None)

    found = _searched(narrower, along, seed, restarts, pseudo_rows, by_distance, tails)
    return replace(
        found,
        theta=_in_all_columns(cast(GaussianMixture, model_of(found.pseudo_rows, sample.count)), found.theta, axes),
    )


def _axes(model: GaussianMixture, y: np.ndarray) -> np.ndarray:
    """(d, p) orthonormal axes along which the rows vary: columns, or combinations of them where covariances have such
    and no entry is missing. All columns where the rows are not standardised."""
    every = np.eye(model.features)
    if model.covariance == "known":
        return every
    varies = _moments(y)[1] > NO_VARIANCE
    if model.covariance not in ("full", "tied") or np.isnan(y).any():
        return every[:, varies] if varies.any() else every
    sizes, axes = np.linalg.eigh(np.cov(y, rowvar=False, bias=True).reshape(every.shape))
    kept = sizes > NO_VARIANCE
    return every if kept.all() or not kept.any() else axes[:, kept]


def _in_all_columns(model: GaussianMixture, theta: Theta, axes: np.ndarray) -> Theta:
    """The parameters of rows (n, d) from those along the axes (d, p); across them the means are 0, and variances
    are what the penalty makes of none."""
    means, covariances = theta["means"] @ axes.T, theta["covariances"]
    across = np.eye(len(axes)) - axes @ axes.T
    floor = np.maximum(np.trace(across @ model.lam) / np.trace(across), SMALLEST_MOMENT) * across
    if model.covariance == "diag":
        covariances = covariances @ axes.T + np.diagonal(floor)
    elif model.covariance != "spherical":
        covariances = axes @ covariances @ axes.T + floor
    return {**theta, "means": means, "covariances": covariances}


def _searched(
    model_of: Callable[[float, float], AnyMixture],
    sample: Sample,
    seed: int,
    restarts: int,
    pseudo_rows: float | None,
    by_distance: bool,
    tails: bool,
) -> Found:
    counted = Counted(model_of)
    parameters, components = model_of(1.0, 1.0).q, model_of(1.0, 1.0).components
    many = sample.count > MANY_ROWS * parameters * sample.share
    level = int(sample.count * (1 - AUTO_SHARE))
    few = sample.whole and 1 < sample.count < FEW_ROWS * parameters and _different(sample.y[:level]) >= components
    level = level if few else sample.first
    first, fresh = sample.rows(slice(level)), sample.rows(slice(level, level + PENALTY_ROWS))
    nu = PSEUDO_ROWS if pseudo_rows is None else pseudo_rows
    model = counted.model(first, nu)
    starts = [start_of(model, first, seed, chain, by_distance) for chain in range(restarts)]
    if pseudo_rows is None and few:
        nu = best_penalty(counted, starts[0], first, fresh, FEW_STEPS)
        model = counted.model(first, nu)
    train, unseen = (first, fresh) if fresh.count else _cut(first)
    tails = tails and unseen.count > 0
    if tails:
        theta, _ = counted.accelerated(model, starts[0], first, FIRST_STEPS, FIRST_GAIN)
        counted.degrees = best_tails(counted, theta, train, unseen, nu)
        model = counted.model(first, nu)
    chains: list[tuple[Theta, float]] = []
    for chain, start in enumerate(starts):
        theta, objective = counted.accelerated(model, start, first, FIRST_STEPS, FIRST_GAIN)
        if model.components > 1 and all(abs(objective - other) > SAME for _, other in chains):
            theta, objective = _moved(counted, model, theta, objective, first, seed, chain)
        chains.append((theta, objective))
    if few:
        chains = [
            (theta, -float(np.average(model.log_likelihood(theta, fresh.y), weights=fresh.weights)))
            for theta, _ in chains
        ]
    elif not sample.whole:
        model = counted.model(sample, nu)
        chains = [counted.steps(model, theta, sample, RACE_STEPS) for theta, _ in chains]
    ends = np.array([objective for _, objective in chains])
    theta = chains[int(np.argmin(ends))][0]
    if pseudo_rows is None and not many and (few or sample.count > first.count):
        nu = best_penalty(counted, theta, first, fresh, FEW_STEPS if few else PENALTY_STEPS)
    if tails:
        before, counted.degrees = counted.degrees, best_tails(counted, theta, train, unseen, nu)
        if counted.degrees != before:
            model = counted.model(first, nu)
            theta, objective = counted.accelerated(model, theta, first, FIRST_STEPS, FIRST_GAIN)
            if model.components > 1:
                theta, _ = _moved(counted, model, theta, objective, first, seed, restarts)
    model = counted.model(sample, nu)
    theta, _ = counted.accelerated(model, theta, sample, LEVEL_STEPS, LEVEL_GAIN)
    return Found(theta, nu, ends, counted.row_steps)


def _cut(rows: Sample) -> tuple[Sample, Sample]:
    """Some of the rows, and the AUTO_SHARE of them that is held back."""
    cut = max(int(rows.count * (1 - AUTO_SHARE)), 1)
    return rows.rows(slice(cut)), rows.rows(slice(cut, None))


# --- starts ---------------------------------------------------------------------------------------------------------


def start_of(model: AnyMixture, rows: Sample, seed: int, chain: int, by_distance: bool) -> Theta:
    """k-means++ with several candidates for each seed (Arthur and Vassilvitskii 2007), and k-means from there. Clusters
    of regressions are of inputs and response; each gives a line.

    Raises PopulationError if there are fewer different rows than components.
    """
    centres = _seeds(model.components, rows.rows(slice(SEEDING_ROWS)), seed, chain, by_distance)
    if len(centres) < model.components:  # a few different rows, some of them rare
        centres = _seeds(model.components, rows, seed, chain, by_distance)
    if len(centres) < model.components:
        where = "the population" if rows.whole else f"a sample of {rows.count} rows"
        raise PopulationError(f"{where} has fewer than {model.components} different rows.", "Ask for fewer components.")
    some = rows.rows(slice(SEEDING_ROWS))
    gaps = not is_sparse(some.y) and bool(np.isnan(some.y).any())
    for _ in range(LLOYD_STEPS):
        centres = lloyd_step(centres, cluster_sums(some.y, centres, gaps, some.weights))
    if isinstance(model, RegressionMixture):
        labels = np.stack([squared_distances(some.y, centre[None]) for centre in centres]).argmin(axis=0)
        one, alone = model.of_component(random_parameters(model, *_moments(some.y), seed), 0)
        return _of_parts(model, one, alone, some, labels, PRIOR_ROWS)
    sums = cluster_sums(some.y, centres, gaps, some.weights)
    return parameters_from_clusters(model, centres, sums, *_moments(some.y))


def _seeds(count: int, rows: Sample, seed: int, chain: int, by_distance: bool) -> np.ndarray:
    """(count, d) rows, gaps filled with the means; fewer if no others are different."""
    generator, weights = stream(seed, SEARCH, chain), np.ones(rows.count) if rows.weights is None else rows.weights
    means = _moments(rows.y)[0]
    centres = _filled(rows.y[_drawn(generator, weights, 1)], means)
    nearest = squared_distances(rows.y, centres)
    while len(centres) < count:
        odds = weights * (nearest if by_distance else nearest > 0)
        if not odds.any():
            break
        picked = _drawn(generator, odds, TRIED_SEEDS if by_distance else 1)
        found = _filled(rows.y[picked], means)
        tried = [np.minimum(nearest, squared_distances(rows.y, centre[None])) for centre in found]
        best = int(np.argmin([weights @ distances for distances in tried]))
        centres, nearest = np.vstack([centres, found[best]]), tried[best]
    return centres


def _filled(y: np.ndarray | scipy.sparse.csr_matrix, means: np.ndarray) -> np.ndarray:
    """Dense rows, the means where an entry is missing."""
    return y.toarray() if is_sparse(y) else np.where(np.isnan(y), means, y)


def _different(y: np.ndarray | scipy.sparse.csr_matrix) -> int:
    """The number of different rows."""
    if not is_sparse(y):
        return len(np.unique(y, axis=0))
    parts = (slice(low, high) for low, high in itertools.pairwise(y.indptr))
    return len({(y.indices[part].tobytes(), y.data[part].tobytes()) for part in parts})


def _moments(y: np.ndarray | scipy.sparse.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """(d,) means and variances of the entries of each column; 0 for a column without any."""
    if is_sparse(y):
        means, squares = (np.asarray(each.mean(axis=0)).ravel() for each in (y, y.multiply(y)))
        return means, squares - means**2
    seen = np.isfinite(y)
    counts, filled = np.maximum(seen.sum(axis=0), 1), np.where(seen, y, 0.0)
    means = filled.sum(axis=0) / counts
    return means, (np.where(seen, y - means, 0.0) ** 2).sum(axis=0) / counts


def _drawn(generator: np.random.Generator, odds: np.ndarray, count: int) -> np.ndarray:
    """(count,) row numbers, with probabilities in proportion to odds (n,)."""
    cumulative = np.cumsum(odds)
    at = np.searchsorted(cumulative, generator.random(count) * cumulative[-1], "right")
    return np.minimum(at, len(odds) - 1)


def _of_parts(
    model: AnyMixture, one: AnyMixture, alone: Theta, rows: Sample, labels: np.ndarray, prior: float = 0.0
) -> Theta:
    """The mixture whose components are the parts of the rows by labels (n,), from 0. prior: rows like all rows together
    that are added to each part. one, alone: a mixture of one component, and any parameters of it."""
    size = rows.total
    totals = [
        one.e_total(alone, part.y, part.weights) for part in (rows.rows(labels == g) for g in range(model.components))
    ]
    if prior:
        mean = np.sum(totals, axis=0) / size
        totals, size = [total + prior * mean for total in totals], size + prior * model.components
    of_parts = [one.layout.unpack(total / size) for total in totals]
    parts = [np.vstack(kind) for kind in zip(*of_parts, strict=True)]
    if one.layout.shared:
        parts[-1] = parts[-1].sum(axis=0)
    return model.maximise(model.layout.join(*parts))


# --- moves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Split:
    """A component as two. halves: their theta, with weights that add up to 1. gain: of the objective, nats a row; -inf
    for a component of too few rows."""

    halves: Theta
    gain: float


def _moved(
    counted: Counted, model: AnyMixture, theta: Theta, objective: float, rows: Sample, seed: int, chain: int
) -> tuple[Theta, float]:
    """theta after the moves that lower its objective, and that objective."""
    r = model.personalise(theta, rows.y)["responsibilities"]
    draws = stream(seed, SEARCH, chain, 1)
    splits = [_split(model, theta, k, r[:, k], rows, draws) for k in range(model.components)]
    failures, refused, tries, moved = np.zeros(model.components, np.int64), set[tuple[int, int]](), 0, False
    while tries < MOVES and len(refused) < GIVE_UP:
        losses = _losses_of_deletion(theta, r, rows.weights)
        pair = _best_pair([split.gain for split in splits], losses, failures, refused)
        if pair is None:
            break
        tries += 1
        candidate, value = _tried(counted, model, _replaced(model, theta, *pair, splits[pair[0]]), rows, objective)
        if value > objective - MOVE_GAIN:
            failures[list(pair)] += 1
            refused.add(pair)
            continue
        theta, objective, before, moved = candidate, value, r, True
        r = model.personalise(theta, rows.y)["responsibilities"]
        changed = np.abs(r - before).sum(axis=0) > STALE * before.sum(axis=0)
        for k in np.flatnonzero(changed):
            splits[k] = _split(model, theta, int(k), r[:, k], rows, draws)
        failures[:] = 0
        refused.clear()
    if not moved:
        return theta, objective
    return counted.accelerated(model, theta, rows, FIRST_STEPS, FIRST_GAIN)


def _tried(counted: Counted, model: AnyMixture, theta: Theta, rows: Sample, objective: float) -> tuple[Theta, float]:
    """(theta after MOVE_STEPS of EM, its objective); after fewer, if at the pace of the last step the rest would not
    reach the objective that is to be beaten. The first step, much the largest, says nothing of the pace."""
    before = np.inf
    for step in range(MOVE_STEPS):
        mapped, value = counted.mapped(model, theta, rows)
        if step >= 2 and value - objective > (MOVE_STEPS - step) * (before - value):
            return theta, value
        theta, before = model.maximise(mapped), value
    return theta, counted.mapped(model, theta, rows)[1]


def _losses_of_deletion(theta: Theta, r: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """(G,) nats a row that the likelihood loses without component i, the others' weights scaled up; exact."""
    others = np.maximum(1.0 - r, np.finfo(float).tiny)
    return np.average(-np.log(others), axis=0, weights=weights) + np.log1p(-theta["weights"])


def _best_pair(
    gains: list[float], losses: np.ndarray, failures: np.ndarray, refused: set[tuple[int, int]]
) -> tuple[int, int] | None:
    """(the component to split, the one to delete) with the largest gain less loss; a tie goes to the lower numbers. The
    difference is negative for most useful moves: the loss does not include that neighbours take over."""
    worth = np.asarray(gains)[:, None] - losses[None]
    np.fill_diagonal(worth, -np.inf)
    worth[failures >= FAILURES] = worth[:, failures >= FAILURES] = -np.inf
    for pair in refused:
        worth[pair] = -np.inf
    split, deleted = np.unravel_index(int(np.argmax(worth)), worth.shape)
    return (int(split), int(deleted)) if np.isfinite(worth[split, deleted]) else None


def _replaced(model: AnyMixture, theta: Theta, split: int, deleted: int, halves: _Split) -> Theta:
    """theta with the halves in place of the two components."""
    both, changed = [split, deleted], dict(theta)
    for name in model.own_parameters(theta):
        changed[name] = theta[name].copy()
        changed[name][both] = halves.halves[name]
    weights = np.delete(theta["weights"], deleted)
    weights = theta["weights"] / weights.sum()
    shares = weights.copy()
    shares[both] = weights[split] * halves.halves["weights"]
    return {**changed, "weights": shares}


def _split(model: AnyMixture, theta: Theta, k: int, r: np.ndarray, rows: Sample, draws: np.random.Generator) -> _Split:
    """The better of two ways to cut component k in two: by the sign along its longest axis, and at the median of its
    density, which finds heavy tails; each after SPLIT_STEPS of EM on rows that are drawn of the component. One that is
    drawn several times counts as often."""
    one, alone = model.of_component(theta, k)
    own = r if rows.weights is None else r * rows.weights
    total = np.cumsum(own)
    at = np.searchsorted(total, (np.arange(SPLIT_ROWS) + draws.random()) / SPLIT_ROWS * total[-1], "right")
    every = rows.y[np.minimum(at, len(r) - 1)]
    at, first, times = np.unique(np.minimum(at, len(r) - 1), return_index=True, return_counts=True)
    if len(at) < (FEWEST if isinstance(model, CountMixture) else max(FEWEST, 2 * model.features)):
        return _Split(alone, -np.inf)
    drawn = Sample(rows.y[at], times.astype(np.float64), len(at), 1.0)
    before = one.log_likelihood(alone, drawn.y)
    pair = replace(one, components=2)
    best = _Split(alone, -np.inf)
    for half in (one.along_longest_axis(alone, every)[first] > 0, before > np.median(np.repeat(before, times))):
        if not 0 < half.sum() < len(half):
            continue
        halves = _fitted(pair, one, alone, drawn, half)
        gain = np.average(pair.log_likelihood(halves, drawn.y) - before, weights=times)
        gain = float(theta["weights"][k] * gain)
        if gain > best.gain:
            best = _Split(halves, gain)
    return best


def _fitted(pair: AnyMixture, one: AnyMixture, alone: Theta, drawn: Sample, half: np.ndarray) -> Theta:
    """Two components after SPLIT_STEPS of EM on the m drawn rows, from those of the half (m,) bool and the others."""
    theta = _of_parts(pair, one, alone, drawn, (~half).astype(int))
    for _ in range(SPLIT_STEPS):
        theta = pair.maximise(pair.e_total(theta, drawn.y, drawn.weights) / drawn.total)
    return theta
