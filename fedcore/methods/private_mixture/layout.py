"""Which columns of a population are numbers, which are values of categories, and which numbers come in steps.

A category is one stored column of 0 and 1 for each of its values, as ingest makes them, or a single such column. A row
whose entries are not exactly those of one value (a missing value, or anything else) has no value of it.

Numbers that come in steps (whole numbers, rounded ones, with many zeros) have no density, so they are moved by up to
half a step. How far depends on the public seed of the run and on the row's numbers only, not on its place or on
neighbouring rows. So equal rows are moved equally. Where all numbers come in steps, and many rows are equal, each is
read as several rows that count once together and fill its steps evenly.

Columns with many zeros are found in the first release (`columns.atoms_of`). Zeros that are an atom are spread over a
width that is small relative to the other numbers. Whole numbers have steps of 1. A column that stands alone is replaced
by even numbers between -1/2 and 1/2. The same functions of the row do all this. They change from round to round;
otherwise components would shrink to the few places to which equal rows are moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.row_draws import mixed_words, uniforms_of
from fedcore.methods.mixture_models.whole_rows import Tile
from fedcore.methods.private_mixture.config import Categories, PrivateMixtureConfig, Steps
from fedcore.methods.private_mixture.state import PrivateMixtureState
from fedcore.population.columns import ColumnEntry
from fedcore.randomness import stream

COPIES, MOST_COPIES = 16, 64  # the latter where dips are searched, which are places between a few equal rows
MOST_VALUES = 1024  # of all categories together
LOG2_ENDS = -30, 31  # of absolute values: those of the first histograms


@dataclass(frozen=True, slots=True)
class Layout:
    """features: columns of the population. numeric: (d,) int64, those that are numbers. categories: the columns of
    each. steps: (d,) of the numbers, 0 for those that have none. salt: of the movements; fill: (MOST_COPIES, d) how far
    each copy of a row is from the first, in [0, 1) of a step. It is sent, since powers may have other last bits
    elsewhere. atoms: (d,) width over which zeros are spread, 0 for none; share: (d,) of zeros in columns that stand
    alone, 0 for others (`columns.Forms`)."""

    features: int
    numeric: np.ndarray
    categories: Categories
    steps: np.ndarray
    salt: int
    fill: np.ndarray
    atoms: np.ndarray
    share: np.ndarray

    @property
    def d(self) -> int:
        return len(self.numeric)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Values of each category."""
        return sizes_of(self.categories)

    @property
    def alone(self) -> np.ndarray:
        """(d,) bool, the numbers that stand alone."""
        return self.share > 0

    @property
    def moving(self) -> np.ndarray:
        """(d,) bool, the numbers that come in steps, have an atom or stand alone."""
        return (self.steps > 0) | (self.atoms > 0) | self.alone

    @property
    def moves(self) -> bool:
        """Whether rows are read otherwise than they are."""
        return bool(self.moving.any())

    def copies(self, of_valleys: bool = False) -> int:
        """Rows that each row is read as. of_valleys: where these are looked for."""
        return (MOST_COPIES if of_valleys else COPIES) if self.moving.all() else 1

    @property
    def plain(self) -> bool:
        """Whether all columns are numbers that are read as they are."""
        return not self.categories and not self.moves

    def read(self, tile: Tile, copies: int) -> Tile:
        """A tile of all stored columns as one of numbers and codes. Whatever a row holds, this does not fail."""
        if self.plain:
            return tile
        x, rows, codes = self.numbers(tile.x, copies), tile.rows, self.codes(tile.x)
        if copies > 1:
            rows, codes = np.repeat(rows * copies, copies), np.repeat(codes, copies, axis=0)
        return Tile(x, rows, codes)

    def numbers(self, x: np.ndarray, copies: int) -> np.ndarray:
        """(n copies, d) of stored rows (n, features) float64, the copies of a row together."""
        numbers = x[:, self.numeric]
        if not self.moves:
            return numbers
        first = uniforms_of(self.words(x)[:, None], np.arange(self.d))
        moved = (first[:, None] + self.fill[:copies]) % 1.0 - 0.5
        widths, numbers = self.widths(numbers), np.where(self.alone, 0.0, numbers)
        return (numbers[:, None] + moved * widths[:, None]).reshape(-1, self.d)

    def widths(self, numbers: np.ndarray) -> np.ndarray:
        """(n, d) over which numbers (n, d) are spread; 0 for those that are read as they are."""
        found: np.ndarray = np.where(self.alone, 1.0, np.where(numbers == 0, self.atoms, 0.0) + self.steps)
        return found

    def as_stored(self, numbers: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """(n, d) numbers as the population has them, of rows (n, d) as they are read: multiples of steps, zeros where
        an atom is, and drawn ones in columns that stand alone."""
        low, high = LOG2_ENDS
        drawn = 2.0 ** generator.uniform(low, high, numbers.shape) * generator.choice([-1.0, 1.0], numbers.shape)
        drawn[generator.random(numbers.shape) < self.share] = 0.0
        steps = np.where(self.steps > 0, self.steps, 1.0)
        found = np.where(self.steps > 0, np.rint(numbers / steps) * steps, numbers)
        found = np.where(np.abs(found) < self.atoms / 2, 0.0, found)
        return np.where(self.alone, drawn, found)

    def words(self, x: np.ndarray) -> np.ndarray:
        """(n,) uint64, of all numbers of a stored row, whatever the bits of a gap are."""
        bits = np.where(np.isnan(x), np.nan, np.asarray(x, np.float64)).view(np.uint64)
        words, nothing = np.full(len(x), self.salt, np.uint64), np.zeros(1, np.int64)
        for column in range(self.features):
            words = mixed_words(words ^ bits[:, column], nothing)
        return words

    def codes(self, x: np.ndarray) -> np.ndarray:
        """(n, categories) int64 of stored rows: the place of the value among all values; their number if there is no
        answer."""
        found = np.full((len(x), len(self.categories)), sum(self.sizes), np.int64)
        first = 0
        for category, (own, size) in enumerate(zip(self.categories, self.sizes, strict=True)):
            entries = x[:, list(own)]
            ones = entries == 1.0
            answered = (ones | (entries == 0.0)).all(axis=1)
            if len(own) == 1:
                value = ones[:, 0].astype(np.int64)
            else:
                answered &= ones.sum(axis=1) == 1
                value = ones.argmax(axis=1)
            found[answered, category] = first + value[answered]
            first += size
        return found


def _fill(d: int) -> np.ndarray:
    """(MOST_COPIES, d) multiples of the negative powers of the root g of g^(d + 1) = g + 1, which fill a cube evenly.

    Source: Roberts 2018, "The unreasonable effectiveness of quasirandom sequences".
    """
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (d + 1))
    found: np.ndarray = np.arange(MOST_COPIES)[:, None] * root ** -np.arange(1.0, d + 1) % 1.0
    return found


def sizes_of(categories: Categories | None) -> tuple[int, ...]:
    """Values of each: one for each of its columns, or two of a single one."""
    return tuple(max(len(own), 2) for own in categories or ())


def layout_of(config: PrivateMixtureConfig, features: int, seed: int = 0, number: int = 0) -> Layout:
    """Of a population with this many columns, in round `number` of the run. Raises ConfigError for settings that name
    columns which there are not, or leave no number."""
    categories = config.categories or ()
    of_categories = [column for own in categories for column in own]
    if any(not own for own in categories) or len(set(of_categories)) < len(of_categories):
        raise ConfigError("a category has no column, or a column belongs to two.", "Fix the setting categories.")
    if wrong := [column for column in of_categories if not 0 <= column < features]:
        raise ConfigError(f"there is no column {wrong[0]} for the setting categories: the population has {features}.")
    if sum(sizes_of(categories)) > MOST_VALUES:
        raise ConfigError(f"private_mixture reads at most {MOST_VALUES} values of categories.", "Leave some out.")
    numeric = np.array(sorted(set(range(features)) - set(of_categories)), np.int64)
    if not len(numeric):
        raise ConfigError(
            "all columns of this population are categories, and a private_mixture run finds its components in numbers.",
            "Ingest a column of numbers with them, or read them as numbers (--set categories=[]).",
        )
    steps = np.zeros(features)
    for name, step in config.steps:
        if not (name.isdecimal() and int(name) < features):
            raise ConfigError(
                f"there is no column {name!r} for the setting steps.",
                f"Name a column of the population, or give its number, from 0 to {features - 1}.",
            )
        if int(name) in of_categories:
            raise ConfigError(f"column {name} has a step, and is a category.", "Leave it out of one of the settings.")
        if steps[int(name)] > 0:
            raise ConfigError(f"column {int(name)} has two steps.", "Leave one of them out.")
        steps[int(name)] = step
    salt, none = int(stream(seed, "private_mixture steps", number).integers(2**63)), np.zeros(len(numeric))
    return Layout(features, numeric, categories, steps[numeric], salt, _fill(len(numeric)), none, none)


def layout_now(config: PrivateMixtureConfig, state: PrivateMixtureState) -> Layout:
    """With the forms of columns that the run has found; the setting `steps` comes first."""
    features = state.features + sum(len(own) for own in config.categories or ())
    layout = layout_of(config, features, state.seed, state.round)
    known = layout.steps > 0
    return replace(
        layout,
        steps=np.where(known, layout.steps, state.steps),
        atoms=np.where(known, 0.0, state.atoms),
        share=np.where(known, 0.0, state.share),
    )


def declared_categories(columns: Sequence[ColumnEntry]) -> Categories:
    """Categories and booleans as ingest declared them."""
    found: dict[str, list[int]] = {}
    for at, column in enumerate(columns):
        if column.kind in ("category", "boolean"):
            found.setdefault(column.of if column.kind == "category" else f"{column.of}\0{column.name}", []).append(at)
    return tuple(tuple(own) for own in found.values())


def numbered(steps: Steps, columns: Sequence[ColumnEntry]) -> Steps:
    """Names of columns as their numbers. Raises ConfigError for a name that none has."""
    places = {column.name: str(at) for at, column in enumerate(columns)}
    if wrong := [name for name, _ in steps if name not in places and not name.isdecimal()]:
        raise ConfigError(
            f"there is no column {wrong[0]!r} for the setting steps.",
            f"Columns: {', '.join(places)}." if places else "This population names none; give its number, from 0.",
        )
    return tuple((places.get(name, name), step) for name, step in steps)
