"""The components of a mixture as segments: named A, B, C ... from the largest on, with sizes and what sets each apart.

A segment is a component. Whether two segments are separate groups is another question, which a method may have tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.methods.mixture_models.tables import Z95, known
from fedcore.rounds.results import Column, Features, Table, segment_names

LEAST = 0.25  # standard deviations of all rows, by which a column has to differ to be mentioned
MOST, FEWER, MANY = 3, 2, 3  # columns in a sentence; in those of more than MANY segments
ALL_ROWS = "Holds all rows."
NOTHING = "No column differs from the other segments by more than its noise."
IN_BRACKETS = "In brackets: {interval}mean of the others."
INTERVAL = "95 % interval of the privacy noise; "


@dataclass(frozen=True, slots=True)
class Columns:
    """Numbers by segment that a sentence may mention.

    names, units: (d,) of each; a unit of "%" is a share. means: (G, d) float64. spread: (G, d) standard deviations of
    rows in a segment, or None where the means are shares. errors: (G, d) standard errors of the means by noise, NaN
    where unknown, or None.
    """

    names: Sequence[str]
    units: Sequence[str]
    means: np.ndarray
    spread: np.ndarray | None = None
    errors: np.ndarray | None = None


def of_numbers(
    features: Features, means: np.ndarray, spread: np.ndarray | None, errors: np.ndarray | None = None
) -> Columns:
    """Columns of the data in their units. means, spread, errors: (G, d)."""
    places = range(means.shape[1])
    return Columns([features.name(i) for i in places], [features.unit(i) for i in places], means, spread, errors)


def segments_table(
    weights: np.ndarray,
    order: Sequence[int],
    columns: Sequence[Columns],
    *,
    errors: np.ndarray | None = None,
    people: int | None = None,
    unit: str = "client",
    groups: np.ndarray | None = None,
) -> Table:
    """A line for each segment: name, number of its component, share, size and a sentence about it.

    weights: (G,) shares; order: components from the largest on; errors: (G,) standard errors of the shares by noise,
    NaN where unknown, or None. people: declared number of units, of which sizes are shares; None: no sizes. unit: what
    is counted. groups: (G,) of each component, where separate groups were tested for.
    """
    chosen, names = list(order), segment_names(len(order))
    found = None if errors is None else errors[chosen]
    told = [
        Column("segment", names),
        Column("component", chosen),
        Column("share", weights[chosen].tolist(), "%", None if found is None else known(found)),
    ]
    if people is not None:
        told += _sizes(people * weights[chosen], None if found is None else people * found, unit)
    told.append(Column("how it differs", _sentences(weights, chosen, columns)))
    notes = [f"Sizes are shares of the {people:,} declared {unit}s."] if people is not None else []
    if len(chosen) > 1:
        some = any(part.errors is not None and np.isfinite(part.errors).any() for part in columns)
        notes.append(IN_BRACKETS.format(interval=INTERVAL if some else ""))
    if groups is not None:
        notes += _separation(names, [int(groups[k]) for k in chosen])
    title = f"{len(chosen)} segments" if len(chosen) != 1 else "1 segment"
    if groups is not None and (separate := len({int(groups[k]) for k in chosen})) < len(chosen):
        title += f" in {separate} groups" if separate > 1 else " of 1 group"
    return Table("segments", title, tuple(told), " ".join(notes))


def _sizes(sizes: np.ndarray, errors: np.ndarray | None, unit: str) -> list[Column]:
    """Rounded sizes, and 95 % intervals where the noise is known."""
    whole = Column(f"{unit}s", [round(size) for size in sizes.tolist()])
    if errors is None or not np.isfinite(errors).any():
        return [whole]
    low, high = np.maximum(sizes - Z95 * errors, 0.0), sizes + Z95 * errors
    pairs = zip(low.tolist(), high.tolist(), strict=True)
    ranges = [f"{round(a):,} to {round(b):,}".replace(",", "\u202f") if math.isfinite(a) else None for a, b in pairs]
    return [whole, Column("95 % interval", ranges)]


def _separation(names: Sequence[str], groups: Sequence[int]) -> list[str]:
    """Which segments no test has separated, a sentence for each group of several."""
    told = []
    for group in dict.fromkeys(groups):
        mine = [name for name, own in zip(names, groups, strict=True) if own == group]
        if len(mine) > 1:
            told.append(f"No density dip separates {', '.join(mine[:-1])} and {mine[-1]}: they may be one group.")
    return told


# --- sentences --------------------------------------------------------------------------------------------------------


def _sentences(weights: np.ndarray, order: Sequence[int], columns: Sequence[Columns]) -> list[str]:
    if len(order) == 1:
        return [ALL_ROWS]
    most = MOST if len(order) <= MANY else FEWER
    return [_sentence(weights, k, columns, most) for k in order]


def _sentence(weights: np.ndarray, segment: int, columns: Sequence[Columns], most: int) -> str:
    """The columns in which a segment differs most from the others, in standard deviations of all rows."""
    found = []
    for part in columns:
        others = np.delete(weights[: len(part.means)], segment)
        others = others / max(others.sum(), 1e-300)
        means = np.delete(part.means, segment, axis=0)
        rest = others @ means
        own = part.means[segment]
        errors = None if part.errors is None else part.errors[segment]
        noise = np.zeros(len(own))
        if part.errors is not None:
            noise = np.sqrt(part.errors[segment] ** 2 + others**2 @ np.delete(part.errors, segment, axis=0) ** 2)
        scale = _scales(part, weights)
        for i in range(len(own)):
            gap = own[i] - rest[i]
            apart = abs(gap) / scale[i] if scale[i] > 0 else 0.0
            if apart < LEAST or not np.isfinite(gap) or abs(gap) <= Z95 * np.nan_to_num(noise[i]):
                continue
            error = None if errors is None or not np.isfinite(errors[i]) else float(errors[i])
            found.append((apart, _words(part.names[i], part.units[i], float(own[i]), error, float(rest[i]))))
    if not found:
        return NOTHING
    found.sort(key=lambda one: -one[0])
    said = ", ".join(words for _, words in found[:most])
    return f"{said[:1].upper()}{said[1:]}."


def _scales(part: Columns, weights: np.ndarray) -> np.ndarray:
    """(d,) standard deviations of all rows."""
    shares = weights[: len(part.means)] / max(float(weights[: len(part.means)].sum()), 1e-300)
    middle = shares @ part.means
    if part.spread is None and all(unit == "%" for unit in part.units):
        middle = np.clip(middle, 0.0, 1.0)
        binary: np.ndarray = np.sqrt(middle * (1.0 - middle))
        return binary
    within = np.zeros(len(middle)) if part.spread is None else shares @ part.spread**2
    scales: np.ndarray = np.sqrt(within + shares @ (part.means - middle) ** 2)
    return scales


def _words(name: str, unit: str, value: float, error: float | None, rest: float) -> str:
    """One column of a sentence: higher age (65.2 years, 64.9 to 65.5; others 41)."""
    more, less = ("more often", "less often") if unit == "%" else ("higher", "lower")
    factor = 100.0 if unit == "%" else 1.0
    value, rest, error = value * factor, rest * factor, None if error is None else error * factor
    places = _places(max(abs(value), abs(rest)), error)
    interval = "" if error is None else f", {_written(value - Z95 * error, places)} to "
    interval += "" if error is None else _written(value + Z95 * error, places)
    with_unit = f"{_written(value, places)}{f' {unit}' if unit else ''}"
    return f"{more if value > rest else less} {name} ({with_unit}{interval}; others {_written(rest, places)})"


def _places(size: float, error: float | None) -> int:
    """Decimal places: to the first digit of the error, or three digits of the number without one."""
    if error is not None and 0 < error < 1e15:
        return -math.floor(math.log10(error))
    return 2 - math.floor(math.log10(size)) if 0 < size < 1e15 else 0


def _written(value: float, places: int) -> str:
    return f"{round(value, places):,.{min(max(places, 0), 8)}f}"
