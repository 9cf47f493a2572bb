"""What a profile shows: tables of its estimates and a figure of histograms. All of it follows from published values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.methods.profile.cells import LEAVES, PARTS, SIGN, ZERO, edges_of
from fedcore.methods.profile.config import ProfileConfig
from fedcore.methods.profile.estimates import Z95, Tree, not_negative, tree_from
from fedcore.methods.profile.layout import TREE, Amplitudes, Layout, layout_of
from fedcore.methods.profile.state import ProfileState
from fedcore.rounds.results import Bars, Column, Features, Panel, Result, Table

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SURE = 4.5  # standard errors by which a leaf must exceed its neighbours to be reported as a point mass
BARS = 32  # of a column with bounds
LEAST = 0.002  # share of the outermost bars that are drawn where there are no bounds
NO_ANSWER = "no answer"
BY_NOISE = "Intervals are 95 % for the noise alone."
OF_CLIENTS = " A client counts once: each of its rows counts by one over the number of its rows."


@dataclass(frozen=True)
class Category:
    """name: of the category; values: of its answers; counts: (values + 1,) in units, the last without an answer; noise:
    standard deviation of each."""

    name: str
    values: list[str]
    counts: np.ndarray
    noise: float


@dataclass(frozen=True)
class Group:
    """values: of the categories in `by`. size: in units; noise: its standard deviation. trees: of each number."""

    values: tuple[str, ...]
    size: float
    noise: float
    trees: list[Tree]


@dataclass(frozen=True)
class Found:
    """Everything that a run has estimated. unit: "client" or "record". names, units: of the columns of numbers."""

    unit: str
    names: list[str]
    units: list[str]
    trees: list[Tree]
    categories: list[Category]
    groups: list[Group]
    by: list[str]

    @property
    def total(self) -> tuple[float, float]:
        """Units that were counted, with the standard error by noise: each column and category counts all of them."""
        each = [(tree.total, tree.total_error) for tree in self.trees]
        each += [(float(one.counts.sum()), one.noise * math.sqrt(len(one.counts))) for one in self.categories]
        weights = [error**-2 for _, error in each]
        mean = math.fsum(weight * total for weight, (total, _) in zip(weights, each, strict=True)) / sum(weights)
        return max(mean, 0.0), sum(weights) ** -0.5


def found_of(config: ProfileConfig, state: ProfileState, features: Features, with_groups: bool = True) -> Found:
    """The estimates of a finished run; with_groups: those of groups too."""
    layout = layout_of(config, state.features)
    d, released, noise = len(layout.numbers), state.released, state.noise
    edges = [edges_of(low, high) for low, high in zip(layout.low, layout.high, strict=True)]

    def trees(cells: np.ndarray, of: Amplitudes) -> list[Tree]:
        return [tree_from(own, of, noise, ends) for own, ends in zip(cells.reshape(d, TREE), edges, strict=True)]

    whole, categories, first = trees(released[: d * TREE], layout.whole), list[Category](), d * TREE
    for own, size in zip(layout.categories, layout.sizes, strict=True):
        counts = released[first : first + size + 1] / layout.whole.flat
        categories.append(Category(*_values(features, own), counts, noise / layout.whole.flat))
        first += size + 1
    sizes, error = np.zeros(0), 0.0
    if layout.counted:
        sizes = released[first : first + layout.counted] / layout.grouped.flat
        error = noise / layout.grouped.flat
    elif layout.by:
        sizes, error = not_negative(categories[layout.by[0]].counts)[:-1], categories[layout.by[0]].noise
    groups, first = list[Group](), first + layout.counted
    for at, count in enumerate(sizes.tolist() if with_groups else ()):
        place = np.unravel_index(at, layout.group_shape)
        values = tuple(categories[own].values[int(code)] for own, code in zip(layout.by, place, strict=True))
        part = released[first + at * d * TREE : first + (at + 1) * d * TREE]
        groups.append(Group(values, count, error, trees(part, layout.grouped)))
    names = [features.name(column) for column in layout.numbers]
    units = [features.unit(column) for column in layout.numbers]
    return Found(state.unit, names, units, whole, categories, groups, [categories[own].name for own in layout.by])


def _values(features: Features, own: Sequence[int]) -> tuple[str, list[str]]:
    """The name of a category and of its values, from those of its columns: city=Bern is the value Bern of city."""
    names = [features.name(column) for column in own]
    if len(names) == 1:
        return names[0], ["0", "1"]
    parts = [name.partition("=") for name in names]
    if len({category for category, _, _ in parts}) == 1 and all(equals for _, equals, _ in parts):
        return parts[0][0], [value for _, _, value in parts]
    return names[0], names


def noise_of_a_quantile(layout: Layout, scale: float) -> float:
    """Standard deviation, in units, of the noise in the number of units below the middle of a column; of a count where
    there is no column of numbers. scale: of the noise in a cell, in grid steps."""
    if not layout.numbers:
        return scale / layout.whole.flat
    tree = Tree(np.zeros(LEAVES), scale / layout.whole.level, 0.0, 0.0, np.zeros(LEAVES + 1))
    return tree.error_below(LEAVES // 3, 1 / 3)


def outcome_of(config: ProfileConfig, state: ProfileState) -> str:
    """How many units were counted, in one line; empty before the release."""
    if not len(state.released):
        return ""
    found, groups = found_of(config, state, Features(state.features), False), layout_of(config, state.features).groups
    total, error = found.total
    numbers, categories = len(found.trees), len(found.categories)
    said = f"about {total:,.0f} ± {error:,.0f} {found.unit}s, {numbers} column{'s' * (numbers != 1)} of numbers"
    said += f", {categories} categor{'y' if categories == 1 else 'ies'}" if categories else ""
    return said + (f", {groups} groups" if groups else "")


def result_of(config: ProfileConfig, state: ProfileState, features: Features) -> Result:
    """Tables and a figure; empty before the release."""
    if not len(state.released):
        return Result()
    found = found_of(config, state, features)
    tables = [_numbers(found)] if found.trees else []
    tables += filter(None, [_points(found)])
    tables += [_categories(found)] if found.categories else []
    tables += [_sizes(found), *_by_group(found)] if found.groups else []
    tables += [_quantiles(found), _histograms(found)] if found.trees else []
    return Result(tuple(tables), (_bars(found),))


# --- tables -----------------------------------------------------------------------------------------------------------


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _known(values: Iterable[float]) -> list[float | None]:
    """None for what is not a number."""
    return [value if math.isfinite(value) else None for value in values]


def _with_errors(name: str, pairs: Sequence[tuple[float, float]], unit: str = "") -> Column:
    return Column(name, _known(value for value, _ in pairs), unit, _known(error for _, error in pairs))


def _estimates(trees: Sequence[Tree]) -> list[Column]:
    """Missing, mean and quantiles of each tree, with standard errors by noise."""
    missing = [tree.missing_share() for tree in trees]
    means = [tree.mean() if tree.bounded else (math.nan, math.nan) for tree in trees]
    columns = [_with_errors("missing", missing, "%"), _with_errors("mean", means)]
    for share in QUANTILES:
        ends = [tree.quantile(share) for tree in trees]
        columns.append(_with_errors(_percent(share), [(middle, (high - low) / 2 / Z95) for middle, low, high in ends]))
    return columns


def _first(found: Found) -> list[Column]:
    units = [Column("unit", found.units)] if any(found.units) else []
    return [Column("column", found.names), *units]


def _numbers(found: Found) -> Table:
    note = "Quantiles and means are of the values that are not missing."
    note += "" if all(tree.bounded for tree in found.trees) else " A column without public bounds has no mean."
    note += OF_CLIENTS if found.unit == "client" else ""
    return Table("columns", "Columns of numbers", (*_first(found), *_estimates(found.trees)), note)


def _points(found: Found) -> Table | None:
    """Leaves that stand out of both neighbours; None if none does."""
    rows = []
    for name, tree in zip(found.names, found.trees, strict=True):
        around = np.pad(tree.counts, 1)
        most = np.maximum(around[:-2], around[2:])
        one = np.zeros(LEAVES)
        one[:2] = 1.0, -1.0
        least = SURE * tree.error_of(one) + most.clip(0)
        leaves = np.flatnonzero(tree.counts > least) if tree.bounded else [ZERO] * int(tree.counts[ZERO] > least[ZERO])
        for leaf in leaves:
            at, width = (tree.edges[leaf] + tree.edges[leaf + 1]) / 2, tree.edges[leaf + 1] - tree.edges[leaf]
            own = np.arange(LEAVES) == leaf
            present = max(tree.present, 1.0)
            share = min(float(tree.counts[leaf]) / present, 1.0)
            rows.append((name, float(at), float(width / 2), share, tree.error_of(own - share) / present))
    if not rows:
        return None
    names, places, halves, shares, errors = (list(each) for each in zip(*rows, strict=True))
    return Table(
        "point_masses",
        "Values that many rows share",
        (
            Column("column", names),
            Column("value", places),
            Column("within", halves),
            Column("share", shares, "%", errors),
        ),
        "Cells that hold far more than both neighbours. The value is known up to the distance in the column within. A "
        "distance of 0 is exactly a bound or zero.",
    )


def _categories(found: Found) -> Table:
    rows = []
    for one in found.categories:
        clean, total = not_negative(one.counts), max(float(one.counts.sum()), 1.0)
        for value, count in zip([*one.values, NO_ANSWER], clean.tolist(), strict=True):
            share = min(count / total, 1.0)
            error = one.noise * math.sqrt((1 - share) ** 2 + (len(clean) - 1) * share**2)
            rows.append((one.name, value, share, error / total, count, one.noise))
    names, values, shares, errors, counts, noises = (list(each) for each in zip(*rows, strict=True))
    return Table(
        "categories",
        "Categories",
        (
            Column("category", names),
            Column("value", values),
            Column("share", shares, "%", errors),
            Column(f"{found.unit}s", counts, "", noises),
        ),
    )


def _group_columns(found: Found) -> list[Column]:
    return [Column(name, [group.values[at] for group in found.groups]) for at, name in enumerate(found.by)]


def _sizes(found: Found) -> Table:
    total = max(found.total[0], 1.0)
    sizes = [max(group.size, 0.0) for group in found.groups]
    errors = [group.noise for group in found.groups]
    return Table(
        "groups",
        f"Sizes of groups by {' and '.join(found.by)}",
        (
            *_group_columns(found),
            Column("share", [size / total for size in sizes], "%", [error / total for error in errors]),
            Column(f"{found.unit}s", sizes, "", errors),
        ),
        "A row without an answer is in no group.",
    )


def _by_group(found: Found) -> list[Table]:
    """A table of means and one of medians, and one of everything that reports do not show."""
    if not found.trees:
        return []
    headings = [f"{name} ({unit})" if unit else name for name, unit in zip(found.names, found.units, strict=True)]
    by, told = " and ".join(found.by), _group_columns(found)
    means, medians = list(told), list(told)
    for at, heading in enumerate(headings):
        own = [group.trees[at] for group in found.groups]
        if own[0].bounded:
            means.append(_with_errors(heading, [tree.mean() for tree in own]))
        middles = [tree.quantile(0.5) for tree in own]
        medians.append(_with_errors(heading, [(middle, (high - low) / 2 / Z95) for middle, low, high in middles]))
    d = len(found.names)
    every = [Column(one.name, [value for value in one.values for _ in range(d)]) for one in told]
    every.append(Column("column", found.names * len(found.groups)))
    every += _estimates([tree for group in found.groups for tree in group.trees])
    tables = [Table("group_means", f"Means by {by}", tuple(means))] if len(means) > len(told) else []
    tables.append(Table("group_medians", f"Medians by {by}", tuple(medians)))
    return [*tables, Table("group_columns", f"Columns of numbers by {by}", tuple(every), shown=False)]


def _quantiles(found: Found) -> Table:
    rows = [
        (name, share, *tree.quantile(share))
        for name, tree in zip(found.names, found.trees, strict=True)
        for share in QUANTILES
    ]
    names, shares, values, low, high = (list(each) for each in zip(*rows, strict=True))
    return Table(
        "quantiles",
        "Quantiles",
        (
            Column("column", names),
            Column("share below", shares, "%"),
            Column("value", _known(values)),
            Column("from", _known(low)),
            Column("to", _known(high)),
        ),
        BY_NOISE,
        shown=False,
    )


def _histograms(found: Found) -> Table:
    rows = []
    for name, tree in zip(found.names, found.trees, strict=True):
        whole = max(float(tree.clean.sum()), 1e-9)
        for low, high, count in zip(tree.edges[:-1], tree.edges[1:], tree.clean, strict=True):
            if count > 0:
                rows.append((name, float(low), float(high), float(count) / whole))
    names, low, high, shares = (list(each) for each in zip(*rows, strict=True)) if rows else ([], [], [], [])
    columns = (Column("column", names), Column("from", low), Column("to", high), Column("share", shares, "%"))
    return Table("histograms", "Histograms", columns, "Cells without a row stay away.", shown=False)


# --- the figure -------------------------------------------------------------------------------------------------------


def _bars(found: Found) -> Bars:
    panels = [_of_number(*each) for each in zip(found.names, found.units, found.trees, strict=True)]
    for one in found.categories:
        clean = not_negative(one.counts)
        labels = tuple(enumerate([*one.values, NO_ANSWER]))
        panels.append(Panel(one.name, clean / max(float(clean.sum()), 1e-9), labels))
    caption = "Shares of the values that are not missing; of categories, of all rows. "
    caption += "The bars are noisy; counts below zero are drawn as zero."
    return Bars("histograms", "Columns", caption, tuple(panels))


def _of_number(name: str, unit: str, tree: Tree) -> Panel:
    heading = f"{name} ({unit})" if unit else name
    shares = tree.clean / max(float(tree.clean.sum()), 1e-9)
    if tree.bounded:
        low, high = tree.edges[0], tree.edges[-1]
        ends = ((-0.5, low), (BARS / 2 - 0.5, (low + high) / 2), (BARS - 0.5, high))
        return Panel(heading, shares.reshape(BARS, -1).sum(axis=1), tuple((at, f"{end:.4g}") for at, end in ends))
    parts, edges = shares[ZERO - SIGN : ZERO + SIGN + 1], tree.edges[ZERO - SIGN : ZERO + SIGN + 2]
    below, above = (part.reshape(-1, PARTS).sum(axis=1) for part in (parts[:SIGN], parts[SIGN + 1 :]))
    octaves = np.concatenate([below, parts[SIGN : SIGN + 1], above])
    edges = np.concatenate([edges[: SIGN + 1 : PARTS], edges[SIGN + 1 :: PARTS]])
    drawn = np.flatnonzero(octaves > LEAST)
    first, last = (int(drawn[0]), int(drawn[-1])) if len(drawn) else (0, len(octaves) - 1)
    ticks = sorted({first, (first + last + 1) // 2, last + 1})
    return Panel(heading, octaves[first : last + 1], tuple((at - first - 0.5, f"{edges[at]:.3g}") for at in ticks))
