"""What a run shows to people, as plain values: metrics of its rounds, tables and figures of its result.

Methods fill these in; reports, the command line and Prefect artifacts draw them. In a private run everything here is
made from published values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any, TypeAlias

import numpy as np

from fedcore.rounds.pictures import COLOURS, picture_shape


@dataclass(frozen=True, slots=True)
class Metric:
    """A scalar of a round.

    name:    its column in metrics.jsonl
    title, unit, caption: of its curve over the rounds; a metric without a title is kept and listed, but not drawn
    follows_data: whether it is computed from raw statistics of the clients (an objective, say); such a metric is never
        shown in a private run
    """

    name: str
    title: str = ""
    unit: str = ""
    caption: str = ""
    follows_data: bool = False


@dataclass(frozen=True, slots=True)
class Features:
    """The columns of a population, or its vocabulary. names, units: None if they have none; a unit may be "". image:
    (height, width) where a row is a picture, with three numbers for each pixel, red, green and blue, if the columns
    state that.
    people: declared number of clients that the run read, None if unknown."""

    count: int
    names: Sequence[str] | None = None
    units: Sequence[str] | None = None
    image: tuple[int, int] | None = None
    people: int | None = None

    def pictures(self, rows: np.ndarray) -> np.ndarray:
        """(n, height, width) of rows (n, d), or (n, height, width, 3) of colours. Only where a row is a picture."""
        assert self.image is not None
        return rows.reshape(len(rows), *picture_shape(self.image, self.count))

    def unit(self, index: int) -> str:
        """The unit of a column; "" if it has none, or it is unknown."""
        return str(self.units[index]) if self.units is not None and index < len(self.units) else ""

    def name(self, index: int, what: str = "column") -> str:
        """The name of a feature; "column 3" (or "token 3") if it has none."""
        if self.names is not None and index < len(self.names):
            return str(self.names[index])
        if self.image is not None:
            line, column, *colour = np.unravel_index(index, picture_shape(self.image, self.count))
            return f"pixel {line},{column}" + "".join(f" {COLOURS[one]}" for one in colour)
        return f"{what} {index}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    name: its heading. values: numbers, texts, or lists of texts; None where there is nothing. unit: of numbers; "%" for
        shares, which are stored between 0 and 1
    errors: of the values, in their unit, the standard error that the noise of a private run alone gives each; None
        where it is not known. None in place of all: the column has none
    """

    name: str
    values: Sequence[object]
    unit: str = ""
    errors: Sequence[float | None] | None = None

    def to_json(self) -> dict[str, Any]:
        """name, unit, values and, if there are any, errors. A number that is not finite becomes None."""
        whole: dict[str, Any] = {"name": self.name, "unit": self.unit, "values": [_plain(v) for v in self.values]}
        return whole if self.errors is None else whole | {"errors": [_plain(error) for error in self.errors]}


@dataclass(frozen=True, slots=True)
class Table:
    """name: as that of a file; title: for people; columns: of equal length; note: what a reader has to know about
    it; shown: whether reports show it, or only exports have it, because a figure says the same."""

    name: str
    title: str
    columns: tuple[Column, ...]
    note: str = ""
    shown: bool = True

    def __len__(self) -> int:
        return len(self.columns[0].values) if self.columns else 0

    def to_json(self) -> dict[str, Any]:
        """The whole table: name, title, note and its columns."""
        columns = [column.to_json() for column in self.columns]
        return {"name": self.name, "title": self.title, "note": self.note, "columns": columns}


@dataclass(frozen=True, slots=True)
class Profiles:
    """A figure: the features by which each centre differs from the mean the most.

    centres: (K, d) float64 >= 0; mean: (d,) float64 >= 0; weights: (K,) shares, or None
    """

    name: str
    title: str
    caption: str
    centres: np.ndarray
    mean: np.ndarray
    weights: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Positions:
    """A figure: the positions of the components in every column.

    columns: d headings, with units; labels: of the G components; means: (G, d) float64; spread: (G, d) standard
        deviations of the rows of a component, or None; errors: (G, d) standard errors of the means by noise alone, NaN
        where they are not known, or None
    """

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    means: np.ndarray
    spread: np.ndarray | None = None
    errors: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Pictures:
    """A figure: a picture of each part.

    labels: of the K parts, in the order in which they are shown; images: (K, height, width), or with three colours
        (K, height, width, 3), float64; the first line is at the top
    brightness: whether black is 0 and white 1; else each picture has a separate scale around 0
    """

    name: str
    title: str
    caption: str
    labels: tuple[str, ...]
    images: np.ndarray
    brightness: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """title: with the unit; shares: (bars,) float64 >= 0; ticks: (place, label), where bar i stands at place i."""

    title: str
    shares: np.ndarray
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """A figure: a small panel of bars for each column."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]


Figure: TypeAlias = "Profiles | Positions | Pictures | Bars"


@dataclass(frozen=True, slots=True)
class Result:
    """tables and figures in the order in which they are shown."""

    tables: tuple[Table, ...] = field(default=())
    figures: tuple[Figure, ...] = field(default=())


def of_columns(features: Features, count: int, heading: str = "column") -> tuple[Column, ...]:
    """The first columns of a table with a row for each of the first `count` columns of the population: its name and, if
    any has one, its unit."""
    names = Column(heading, [features.name(i) for i in range(count)])
    units = [features.unit(i) for i in range(count)]
    return (names, Column("unit", units)) if any(units) else (names,)


def of_coefficient(response: str, given: str) -> str:
    """The unit of a regression's coefficient, from those of its response and its input."""
    return f"{response or '1'} / {given}" if given else response


def _plain(value: object) -> object:
    """As JSON holds it."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def distinguishing(centre: np.ndarray, mean: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The at most `top` tokens with the largest p ln(p / mean): (indices, scores), largest first; scores > 0 only.

    centre, mean: (d,) non-negative. Where the mean is 0 it counts as the smallest positive float.
    """
    p = np.asarray(centre, np.float64)
    reference = np.maximum(np.asarray(mean, np.float64), np.finfo(np.float64).tiny)
    positive = p > 0
    scores = np.where(positive, p * (np.log(np.where(positive, p, 1.0)) - np.log(reference)), 0.0)
    order = np.argsort(-scores, kind="stable")[:top]
    order = order[scores[order] > 1e-12]
    return order, scores[order]


def heaviest(count: int, weights: np.ndarray | None, most: int) -> list[int]:
    """Indices of at most `most` centres, heaviest first; in their own order without weights."""
    order = range(count) if weights is None else np.argsort(-np.asarray(weights, np.float64), kind="stable")
    return [int(k) for k in order][:most]


def segment_names(count: int) -> list[str]:
    """A, B ... Z, AA, AB ...: names of components in the order in which they are shown, the largest first."""
    return [f"{ascii_uppercase[i // 26 - 1] if i >= 26 else ''}{ascii_uppercase[i % 26]}" for i in range(count)]
