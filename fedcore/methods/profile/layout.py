"""What is counted, and where each count stands in the one vector that is released.

    leaves, then missing, of every column of numbers            each column is a tree of counts with LEVELS levels
    values, then no answer, of every category
    of groups of two categories: their counts
    of groups: for each group and column of numbers a tree and missing, as above

A row adds a fixed whole number to one cell of each level of each tree, and to one cell of each category. These numbers
are the amplitudes of a part: the noise is the same in every cell, so a larger amplitude makes a part more precise. The
rule: amplitudes of a tree and of a category make the sum of their error variances least, where the error of a tree is
that of the share below a number (3.3 times that of one count at equal norm). Groups, if any, get half of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.profile.cells import LEAVES, LEVELS
from fedcore.methods.profile.config import Categories, ProfileConfig
from fedcore.population.columns import ColumnEntry

UNIT = 2**20  # what shares of clients with many rows are rounded in
LEVEL, FLAT = 4 * UNIT, 7 * UNIT  # amplitudes of a level of a tree, and of a category
TREE = 2 * LEAVES - 2 + 1  # nodes from two to LEAVES, and missing
MOST_GROUPS, MOST_CELLS = 256, 2**21


@dataclass(frozen=True, slots=True)
class Amplitudes:
    """Whole numbers that a row of a client with one row adds. level: to one node of each level of a tree; missing: to
    the cell of missing values in place of that; flat: to one cell of a category, or of groups."""

    level: int
    flat: int

    @property
    def missing(self) -> int:
        """A row without the number adds nothing to the tree, so it may add more here."""
        return math.isqrt(LEVELS * self.level**2)


@dataclass(frozen=True, slots=True)
class Layout:
    """numbers: stored columns that are numbers; categories: stored columns of each category; by: the categories that
    make groups; low, high: of each number, NaN without bounds."""

    numbers: tuple[int, ...]
    categories: Categories
    by: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Values of each category: one for each of its columns, or two of a single one."""
        return tuple(max(len(own), 2) for own in self.categories)

    @property
    def group_shape(self) -> tuple[int, ...]:
        """Values of each category that makes groups; () without groups."""
        return tuple(self.sizes[category] for category in self.by)

    @property
    def groups(self) -> int:
        return math.prod(self.group_shape) if self.by else 0

    @property
    def counted(self) -> int:
        """Groups that are counted apart from the categories: those of two categories."""
        return self.groups if len(self.by) == 2 else 0

    @property
    def cells(self) -> int:
        """Of the released vector."""
        trees = len(self.numbers) * (1 + self.groups)
        return trees * TREE + sum(self.sizes) + len(self.sizes) + self.counted

    @property
    def whole(self) -> Amplitudes:
        """Of the parts that are about all rows."""
        return Amplitudes(LEVEL, FLAT)

    @property
    def grouped(self) -> Amplitudes:
        """Of the parts that are about groups: all together as much as all others, in squares."""
        own = len(self.numbers) * LEVELS * LEVEL**2 + FLAT**2 * (len(self.by) == 2)
        ours = self._squared(self.whole, len(self.sizes)) if self.by else 0
        return Amplitudes(*(math.isqrt(each**2 * ours // max(own, 1)) for each in (LEVEL, FLAT)))

    @property
    def squared(self) -> int:
        """The largest squared norm of what a row of a client with one row adds, exactly."""
        return self._squared(self.whole, len(self.sizes)) + (
            self._squared(self.grouped, int(len(self.by) == 2)) if self.by else 0
        )

    def _squared(self, of: Amplitudes, flat: int) -> int:
        return len(self.numbers) * LEVELS * of.level**2 + flat * of.flat**2


@lru_cache(maxsize=64)
def layout_of(config: ProfileConfig, features: int) -> Layout:
    """Of a population with this many columns. Raises ConfigError for settings that do not fit it, or for more
    cells than MOST_CELLS."""
    categories = config.categories or ()
    used = [column for own in categories for column in own]
    if any(not own for own in categories) or len(set(used)) < len(used):
        raise ConfigError("A category has no column, or a column belongs to two.", "Change the setting categories.")
    if wrong := [column for column in used if not 0 <= column < features]:
        raise ConfigError(f"There is no column {wrong[0]} for the setting categories: the population has {features}.")
    if config.bounds is not None and len(config.bounds) != features:
        raise ConfigError(
            f"The setting bounds has {len(config.bounds)} entries, and the population has {features} columns.",
            "Give one entry for each column, null for a column without bounds.",
        )
    by = tuple(_category(name, len(categories)) for name in config.by)
    if len(set(by)) < len(by):
        raise ConfigError("The setting by lists one category twice.", "List each category once.")
    numbers = tuple(sorted(set(range(features)) - set(used)))
    if len(by) == 1 and not numbers:
        raise ConfigError(
            "The setting by lists one category, and no column is a number: its counts are released anyway.",
            "List two categories, or leave the setting out.",
        )
    ends = [(config.bounds or (None,) * features)[column] or (math.nan, math.nan) for column in numbers]
    layout = Layout(numbers, categories, by, tuple(low for low, _ in ends), tuple(high for _, high in ends))
    if layout.groups > MOST_GROUPS or layout.cells > MOST_CELLS:
        raise ConfigError(
            f"A profile with {layout.groups} groups and {layout.cells:,} cells is too large: at most {MOST_GROUPS} and "
            f"{MOST_CELLS:,}.",
            "List one category in the setting by, or one with fewer values.",
        )
    return layout


def _category(name: str, categories: int) -> int:
    if not (name.isdecimal() and int(name) < categories):
        raise ConfigError(
            f"There is no category {name!r} for the setting by.",
            f"List a category or boolean of the population, or its number, from 0 to {categories - 1}."
            if categories
            else "The population has no category.",
        )
    return int(name)


def declared_categories(columns: Sequence[ColumnEntry]) -> dict[str, tuple[int, ...]]:
    """The columns of each category and boolean as ingest declared them, by the name of the category."""
    found: dict[str, list[int]] = {}
    for at, column in enumerate(columns):
        if column.kind in ("category", "boolean"):
            found.setdefault(column.of if column.kind == "category" else column.name, []).append(at)
    return {name: tuple(own) for name, own in found.items()}


def codes_of(x: np.ndarray, own: Sequence[int]) -> np.ndarray:
    """(n,) int64: which value of a category each row has; the number of values if it has no answer.

    x: (n, features) stored rows. own: the columns of the category. An answer is exactly one 1 among zeros; of a single
    column, 0 or 1.
    """
    entries = x[:, list(own)]
    ones = entries == 1.0
    answered = (ones | (entries == 0.0)).all(axis=1)
    if len(own) == 1:
        return np.where(answered, ones[:, 0].astype(np.int64), 2)
    answered &= ones.sum(axis=1) == 1
    return np.where(answered, ones.argmax(axis=1), len(own))


def tree_of(leaves: np.ndarray) -> np.ndarray:
    """(..., 2 LEAVES - 2) sums over the nodes of a binary tree, level by level from two nodes down to the leaves.

    leaves: (..., LEAVES) int64.
    """
    levels = [leaves]
    while levels[0].shape[-1] > 2:
        levels.insert(0, levels[0][..., ::2] + levels[0][..., 1::2])
    return np.concatenate(levels, axis=-1)
