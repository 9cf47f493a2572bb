"""`profile` beside OpenDP on the same rows at the same epsilon and delta: errors of histograms, quantiles and means.

Every table has public bounds and, where there are classes, means by class. Two ways to use OpenDP, both with the best
of its accounts that composes (zCDP): `queries`, one query for each question (Gaussian counts of 32 bins, five
exponential quantiles, Gaussian sums), and `tree`, all answers from consistent binary trees with 1024 leaves.
Errors are means over columns and --repeats runs: the L1 distance of shares of 32 bins; the distance of F(quantile) from
the wanted share for 5, 25, 50, 75 and 95 %, up to the width of a cell; distances of means in standard deviations of the
column; the same for means and medians of groups. Needs the extra `bench`; real tables are read where FEDCORE_DATA is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from fedcore.methods.profile import Profile, ProfileConfig
from fedcore.methods.profile.cells import LEAVES, edges_of
from fedcore.methods.profile.layout import tree_of
from fedcore.methods.profile.result import QUANTILES, found_of
from fedcore.population.blocks import RowsBlock
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.mechanisms import SecureNoise
from fedcore.rounds.method import PublicFacts
from fedcore.rounds.results import Features

BINS, DELTA = 32, 1e-6
EPSILONS = (0.3, 1.0)
REAL = ("gvhd_flow", "letter", "satellite", "shuttle", "vowel")
WHAT = ("bins", "quantiles", "means", "group_means", "group_medians")
WAYS = ("fedcore", "OpenDP queries", "OpenDP tree")


@dataclass(frozen=True)
class Data:
    """x: (n, d) float64; low, high: (d,) public bounds; group: (n,) int64 class, or None; groups: how many."""

    x: np.ndarray
    low: np.ndarray
    high: np.ndarray
    group: np.ndarray | None = None
    groups: int = 0


@dataclass(frozen=True)
class Answers:
    """bins: (d, BINS) shares; quantiles: (d, 5); means: (d,); by_group, medians: (groups, d)."""

    bins: np.ndarray
    quantiles: np.ndarray
    means: np.ndarray
    by_group: np.ndarray
    medians: np.ndarray


def measure(options) -> dict:
    rows = []
    for name in options.only or [*GENERATED, *REAL]:
        data = GENERATED[name]() if name in GENERATED else _real(name)
        if data is not None:
            rows += [_row(name, data, epsilon, options.repeats) for epsilon in EPSILONS]
    return {"benchmark": "profile", "rows": rows}


def _row(name: str, data: Data, epsilon: float, repeats: int) -> dict:
    """Errors of each way: bins, quantiles, means, means and medians by group."""
    truth, found = _truth(data), {}
    ways: dict[str, Callable[[Data, float], Answers]] = {
        "fedcore": _ours,
        "OpenDP queries": _queries,
        "OpenDP tree": _trees,
    }
    for way, answer in ways.items():
        found[way] = np.mean([_errors(data, truth, answer(data, epsilon)) for _ in range(repeats)], axis=0)
    row: dict = {"what": f"{name}, epsilon {epsilon:g}", "rows": len(data.x), "columns": data.x.shape[1]}
    for at, what in enumerate(WHAT):
        row |= {f"{what} {way}": float(found[way][at]) for way in WAYS}
        best = min(found[way][at] for way in WAYS[1:])
        row[f"{what} ratio"] = float(found["fedcore"][at] / best) if best > 0 else None
    return row


# --- tables ---------------------------------------------------------------------------------------------------------


def _real(name: str) -> Data | None:
    folder = os.environ.get("FEDCORE_DATA")
    if not folder or not (Path(folder) / "tabular" / f"{name}.npz").exists():
        return None
    with np.load(Path(folder) / "tabular" / f"{name}.npz") as held:
        x, classes = held["x"].astype(np.float64), held.get("y")
    spread = np.maximum(x.max(axis=0) - x.min(axis=0), 1.0)
    bounds = x.min(axis=0) - 0.1 * spread, x.max(axis=0) + 0.1 * spread
    if classes is None:
        return Data(x, *bounds)
    return Data(x, *bounds, classes.astype(np.int64) - int(classes.min()), int(classes.max() - classes.min()) + 1)


def _people() -> Data:
    generator, n = np.random.default_rng(1), 20_000
    group = generator.choice(3, n, p=[0.5, 0.3, 0.2])
    columns = [
        np.rint(generator.normal(45, 18, n)),
        np.exp(generator.normal(10.3 + 0.3 * (group == 0), 0.5)),
        np.where(generator.random(n) < 0.3, 0.0, generator.exponential(4, n)),
        generator.normal(72 + 5 * (group == 1), 12),
    ]
    low, high = np.zeros(4), np.array([120.0, 1e6, 365.0, 400.0])
    return Data(np.clip(np.column_stack(columns), low, high), low, high, group, 3)


def _shapes() -> Data:
    """One column each: even, heavy tails, two narrow groups, whole numbers, many values at the upper bound."""
    generator, n = np.random.default_rng(2), 10_000
    columns = [
        generator.random(n),
        np.abs(generator.standard_cauchy(n)),
        np.where(generator.random(n) < 0.5, generator.normal(20, 1, n), generator.normal(70, 3, n)),
        generator.poisson(3, n),
        generator.normal(0, 1, n) + 2.0,
    ]
    low, high = np.zeros(5), np.array([1.0, 1000.0, 100.0, 20.0, 3.0])
    return Data(np.clip(np.column_stack(columns), low, high), low, high)


def _wide() -> Data:
    """30 columns of gamma numbers of several scales, 5 groups."""
    generator, n = np.random.default_rng(3), 50_000
    group = generator.integers(0, 5, n)
    x = generator.gamma(2.0, 1.0 + 0.2 * group[:, None], (n, 30)) * 4.0 ** generator.integers(-3, 4, 30)
    high = 40.0 * x.mean(axis=0)
    return Data(np.minimum(x, high), np.zeros(30), high, group, 5)


GENERATED = {"people": _people, "shapes": _shapes, "wide": _wide}


# --- errors ---------------------------------------------------------------------------------------------------------


def _leaves(data: Data) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The leaf of each row, and the edges of the leaves, of each column."""
    for column, low, high in zip(data.x.T, data.low, data.high, strict=True):
        edges = edges_of(low, high)
        yield np.clip(np.searchsorted(edges[1:-1], column, side="right"), 0, LEAVES - 1), edges


def _truth(data: Data) -> Answers:
    bins = [np.bincount(leaf, minlength=LEAVES).reshape(BINS, -1).sum(axis=1) for leaf, _ in _leaves(data)]
    none = np.zeros((0, data.x.shape[1]))
    by_group = np.array([data.x[data.group == own].mean(axis=0) for own in range(data.groups)] or none)
    return Answers(np.array(bins) / len(data.x), none, data.x.mean(axis=0), by_group, none)


def _rank_errors(column: np.ndarray, quantiles: np.ndarray, wanted: np.ndarray, width: float) -> float:
    """width: by which a quantile may differ from a number of the column without an error."""
    ordered = np.sort(column)
    below = np.searchsorted(ordered, quantiles - width, side="left") / len(column)
    up_to = np.searchsorted(ordered, quantiles + width, side="right") / len(column)
    return float(np.maximum(np.maximum(below - wanted, wanted - up_to), 0.0).mean())


def _errors(data: Data, truth: Answers, found: Answers) -> tuple[float, ...]:
    widths, wanted = (data.high - data.low) / (LEAVES - 2), np.array(QUANTILES)
    ranks = [_rank_errors(*each, wanted, width) for *each, width in zip(data.x.T, found.quantiles, widths, strict=True)]
    medians = [
        _rank_errors(data.x[data.group == own, at], found.medians[own, at], np.array(0.5), widths[at])
        for own in range(data.groups)
        for at in range(data.x.shape[1])
    ]
    spread = np.maximum(data.x.std(axis=0), 1e-12)
    means = np.abs(found.means - truth.means) / spread
    by_group = np.abs(np.clip(found.by_group, data.low, data.high) - truth.by_group) / spread
    bins = np.abs(found.bins - truth.bins).sum(axis=1).mean()
    groups = (float(by_group.mean()), float(np.mean(medians))) if medians else (0.0, 0.0)
    return float(bins), float(np.mean(ranks)), float(means.mean()), *groups


# --- ways -----------------------------------------------------------------------------------------------------------


def _ours(data: Data, epsilon: float) -> Answers:
    d, groups = data.x.shape[1], data.groups
    x = data.x if data.group is None else np.column_stack([data.x, np.eye(groups)[data.group]])
    bounds = tuple(zip(data.low.tolist(), data.high.tolist(), strict=True)) + (None,) * groups
    config = ProfileConfig(
        by=("0",) if groups else (), categories=(tuple(range(d, d + groups)),) if groups else (), bounds=bounds
    )
    method, rho = Profile(config), make_budget(epsilon, DELTA).rho_max
    public = PublicFacts("rows", x.shape[1], 1024, len(x), None, rho, 0, "add_or_remove_one", None, "record")
    state = method.init(public)
    block = RowsBlock(0, 0, np.arange(len(x) + 1, dtype=np.int64), x)
    exact = method.client_update(method.message(state), block, None)[0]["profile"].value()
    noisy = SecureNoise().draw(method.plan(public)[0], "", np.asarray(exact))
    found = found_of(config, method.server_update(state, {"profile": noisy})[0], Features(x.shape[1]))
    bins = np.array([tree.clean.reshape(BINS, -1).sum(axis=1) / max(tree.present, 1.0) for tree in found.trees])
    quantiles = np.array([[tree.quantile(share)[0] for share in QUANTILES] for tree in found.trees])
    middle = (data.low + data.high) / 2
    means = np.array([tree.mean()[0] for tree in found.trees])
    by_group = np.array([[tree.mean()[0] for tree in group.trees] for group in found.groups]).reshape(-1, d)
    medians = np.array([[tree.quantile(0.5)[0] for tree in group.trees] for group in found.groups]).reshape(-1, d)
    told = [np.where(np.isfinite(each), each, middle) for each in (means, by_group, medians)]
    return Answers(bins, np.where(np.isfinite(quantiles), quantiles, middle[:, None]), *told)


@cache
def _opendp():
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious", "idealized-numerics")
    return dp


@cache
def rho_of(epsilon: float) -> float:
    """The largest rho of zCDP that OpenDP converts to (epsilon, DELTA)."""
    dp = _opendp()
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    low, high = 1e-2, 1e5
    for _ in range(60):
        scale = (low * high) ** 0.5
        made = dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale=scale))
        low, high = (low, scale) if made.map(1.0).epsilon(DELTA) <= epsilon else (scale, high)
    return 0.5 / high**2


def _noisy(values: np.ndarray, rho: float, sensitivity: float = 1.0) -> np.ndarray:
    """OpenDP's Gaussian mechanism on a vector of this L2 sensitivity."""
    dp = _opendp()
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    made = dp.m.make_gaussian(*space, scale=sensitivity / (2 * rho) ** 0.5)
    return np.array(made(np.ravel(values).astype(float).tolist())).reshape(np.shape(values))


def _scaled(data: Data) -> np.ndarray:
    """Numbers from -1 to 1: sums of them have the least sensitivity."""
    return (2 * data.x - data.low - data.high) / (data.high - data.low)


def _queries(data: Data, epsilon: float) -> Answers:
    rho, d = rho_of(epsilon) * (0.5 if data.groups else 1.0), data.x.shape[1]
    each, middle, half = rho / d / 3, (data.low + data.high) / 2, (data.high - data.low) / 2
    bins, quantiles, means = [], [], []
    for (leaf, edges), column, scaled in zip(_leaves(data), data.x.T, _scaled(data).T, strict=True):
        counts = _noisy(np.bincount(leaf, minlength=LEAVES).reshape(BINS, -1).sum(axis=1), each)
        size, counts = max(float(counts.sum()), 1.0), np.maximum(counts, 0.0)
        bins.append(counts / max(float(counts.sum()), 1.0))
        quantiles.append([_quantile(column, edges[1:-1], share, each / len(QUANTILES)) for share in QUANTILES])
        means.append(_noisy(scaled.sum(keepdims=True), each)[0] / size)
    by_group = medians = np.zeros((0, d))
    if data.group is not None:  # groups have no row in common, so one query asks all of them
        each = rho / (2 * d + 1)
        sizes = np.maximum(_noisy(np.bincount(data.group, minlength=data.groups), each), 1.0)
        sums = [np.bincount(data.group, scaled, data.groups) for scaled in _scaled(data).T]
        by_group = np.column_stack([_noisy(own, each) / sizes for own in sums])
        own_rows = [data.x[data.group == own] for own in range(data.groups)]
        candidates = [edges[1:-1] for _, edges in _leaves(data)]
        medians = np.array(
            [[_quantile(*pair, 0.5, each) for pair in zip(x.T, candidates, strict=True)] for x in own_rows]
        )
    return Answers(
        np.array(bins),
        np.array(quantiles),
        middle + half * np.clip(means, -1, 1),
        middle + half * np.clip(by_group, -1, 1),
        medians,
    )


def _quantile(column: np.ndarray, candidates: np.ndarray, share: float, rho: float) -> float:
    """OpenDP's private quantile; its loss in zCDP is what it says of the scale."""
    dp = _opendp()
    made = dp.m.make_private_quantile(*_space(), candidates.tolist(), share, _scale(share, rho))
    return float(made(column.tolist()))


@cache
def _space():
    dp = _opendp()
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False))
    return domain, dp.symmetric_distance(), dp.zero_concentrated_divergence()


@cache
def _scale(share: float, rho: float) -> float:
    """The least scale with which a private quantile costs rho: it is the same for all candidates."""
    dp = _opendp()
    return dp.binary_search(
        lambda scale: dp.m.make_private_quantile(*_space(), [0.0, 1.0], share, scale).map(1) <= rho, (1e-3, 1e7)
    )


def _trees(data: Data, epsilon: float) -> Answers:
    rho, d = rho_of(epsilon) * (0.5 if data.groups else 1.0), data.x.shape[1]
    whole = [_tree(leaf, rho / d) for leaf, _ in _leaves(data)]
    edges = [own for _, own in _leaves(data)]
    centres = [(own[:-1] + own[1:]) / 2 for own in edges]
    shares = [np.maximum(own, 0.0) / max(np.maximum(own, 0.0).sum(), 1.0) for own in whole]
    bins = [np.maximum(own.reshape(BINS, -1).sum(axis=1), 0.0) for own in whole]
    quantiles = [
        np.interp(QUANTILES, np.append(0.0, np.cumsum(own)), ends) for own, ends in zip(shares, edges, strict=True)
    ]
    means = [own @ centre / max(own.sum(), 1.0) for own, centre in zip(whole, centres, strict=True)]
    by_group, medians = np.zeros((2, data.groups, d))
    for at, (leaf, ends) in enumerate(_leaves(data)):
        for group in range(data.groups):
            assert data.group is not None
            own = _tree(leaf[data.group == group], rho / d)
            by_group[group, at] = own @ centres[at] / max(own.sum(), 1.0)
            reached = np.append(0.0, np.cumsum(np.maximum(own, 0.0)))
            medians[group, at] = np.interp(0.5 * reached[-1], reached, ends)
    return Answers(
        np.array([own / max(own.sum(), 1.0) for own in bins]),
        np.array(quantiles),
        np.clip(means, data.low, data.high),
        by_group,
        medians,
    )


def _tree(leaf: np.ndarray, rho: float) -> np.ndarray:
    """(LEAVES,) consistent counts from a noisy tree: a row is in one node of each level."""
    dp = _opendp()
    levels = LEAVES.bit_length()
    nodes = np.append(float(len(leaf)), tree_of(np.bincount(leaf, minlength=LEAVES)))
    noisy = _noisy(nodes, rho, levels**0.5)
    consistent = dp.t.make_consistent_b_ary_tree(2, TIA=int, TOA=float)
    return np.array(consistent(np.rint(noisy).astype(np.int64).tolist()))
