"""Statistics that add. Each kind defines its own addition, so the answer to a round does not depend on the size of
the blocks, the number of workers, the order of arrival, or a retry.

A *leaf* is a run of L consecutive clients (L is fixed in the population's manifest). Clients are answered leaf
by leaf; everything above the leaves is done here.

    FloatSum     float64 sums over a fixed binary tree of leaves: same bits for every partition into blocks
    IntegerSum   exact int64 sums: any order gives the same bits (private releases use only this one)
    KeyedIntegerSum   exact int64 sums, one for each key
    WordSums     exact int64 sums, one for each of very many words
    Stack        one row for each client, in client order
    ArgMax       the client with the largest score; ties go to the lowest client index
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

INT64_SAFE = 2**62


class Statistic(Protocol):
    def merge(self, other: Self) -> Self:
        """The statistic of both groups of clients together. May reuse the memory of `self`."""

    def value(self) -> Any:
        """The finished value, once every leaf of the population is in."""


Statistics = Mapping[str, Statistic]


def aligned(array: np.ndarray) -> np.ndarray:
    """The array, or a copy if it is at an odd address, as received arrays may be. Products of matrices that are not
    aligned take another path, with other last bits.
    """
    return array if array.flags.aligned else array.copy()


def aligned_arrays(value: Any) -> Any:
    """The value (a message, say) with every array in it aligned: in dataclasses, dicts, tuples and lists, however deep.
    What is aligned already is returned as it is.
    """
    if isinstance(value, np.ndarray):
        return aligned(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        changed = {name: new for name, part in parts.items() if (new := aligned_arrays(part)) is not part}
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, dict):
        items = {key: aligned_arrays(part) for key, part in value.items()}
        return items if any(items[key] is not part for key, part in value.items()) else value
    if type(value) in (tuple, list):
        members = [aligned_arrays(part) for part in value]
        return type(value)(members) if any(new is not old for new, old in zip(members, value, strict=True)) else value
    return value


class FloatSum:
    """A float64 sum over a fixed binary tree.

    The tree's node (level, j) is the sum over leaves j*2**level ... (j+1)*2**level - 1. Two siblings are added as
    soon as both are known, left + right; which block they came from does not matter. At the end the remaining
    maximal nodes are folded from the right (smallest) to the left (largest).
    """

    __slots__ = ("nodes",)

    def __init__(self, nodes: dict[tuple[int, int], np.ndarray]):
        self.nodes = nodes

    @classmethod
    def at(cls, leaf: int, array: np.typing.ArrayLike) -> FloatSum:
        """The contribution of one leaf. array: any shape, converted to float64."""
        return cls({(0, int(leaf)): np.asarray(array, np.float64)})

    def merge(self, other: FloatSum) -> FloatSum:
        nodes = self.nodes
        with _not_finite_is_no_news():
            for (level, j), array in other.nodes.items():
                while True:
                    if (level, j) in nodes:
                        raise ValueError(f"leaf range {(level, j)} was added twice")
                    sibling = nodes.pop((level, j ^ 1), None)
                    if sibling is None:
                        break
                    left, right = (sibling, array) if j & 1 else (array, sibling)
                    array = left + right
                    level, j = level + 1, j >> 1
                nodes[level, j] = array
        return self

    def value(self) -> np.ndarray:
        ordered = [self.nodes[key] for key in sorted(self.nodes, key=lambda node: node[1] << node[0])]
        total = ordered[-1]
        with _not_finite_is_no_news():
            for array in reversed(ordered[:-1]):
                total = array + total
        return aligned(total)


def _not_finite_is_no_news() -> np.errstate:
    """A user of a sum sees that it is not finite. A warning would reveal this about clients in a worker's log."""
    return np.errstate(over="ignore", invalid="ignore")


@dataclass(slots=True)
class IntegerSum:
    """An exact int64 sum. total: any shape, int64. Raises OverflowError rather than wrap around."""

    total: np.ndarray

    def __post_init__(self) -> None:
        self.total = np.asarray(self.total)
        if self.total.dtype != np.int64:
            raise TypeError(f"an exact sum needs int64, not {self.total.dtype}")

    def merge(self, other: IntegerSum) -> IntegerSum:
        total = self.total + other.total
        if total.size and max(-int(total.min()), int(total.max())) >= INT64_SAFE:
            raise OverflowError("an exact integer sum left the safe range of int64")
        return IntegerSum(total)

    def value(self) -> np.ndarray:
        return self.total


@dataclass(slots=True)
class KeyedIntegerSum:
    """Exact int64 sums, one for each key (int or str); a key that a group lacks counts as zero."""

    totals: dict[int | str, np.ndarray]

    def merge(self, other: KeyedIntegerSum) -> KeyedIntegerSum:
        totals = dict(self.totals)
        for key, array in other.totals.items():
            mine = totals.get(key)
            totals[key] = array if mine is None else IntegerSum(mine).merge(IntegerSum(array)).total
        return KeyedIntegerSum(totals)

    def value(self) -> dict[int | str, np.ndarray]:
        return {key: self.totals[key] for key in sorted(self.totals, key=lambda key: (isinstance(key, str), key))}


@dataclass(slots=True)
class WordSums:
    """Exact int64 sums, one for each word; a word that a group lacks counts as zero.

    words, totals: parts of the sum, each with words (W,) as fixed-size bytes, sorted and distinct, and their sums (W,)
    int64. Parts are added to others of about their size, so that a word is copied a few times only, however many
    groups there are. 80 bytes for each word, and three times that while two parts are added.
    """

    words: list[np.ndarray]
    totals: list[np.ndarray]

    @classmethod
    def of(cls, words: np.ndarray, totals: np.ndarray) -> WordSums:
        if totals.dtype != np.int64:
            raise TypeError(f"an exact sum needs int64, not {totals.dtype}")
        return cls([words], [totals])

    def merge(self, other: WordSums) -> WordSums:
        parts = sorted(zip([*self.words, *other.words], [*self.totals, *other.totals], strict=True), key=_size)
        parts.reverse()  # the largest first
        while len(parts) > 1 and 2 * len(parts[-1][0]) >= len(parts[-2][0]):
            parts[-2:] = [_added(parts[-2], parts[-1])]
        return WordSums([words for words, _ in parts], [totals for _, totals in parts])

    def value(self) -> tuple[np.ndarray, np.ndarray]:
        """(words (W,), sorted; totals (W,))."""
        parts = list(zip(self.words, self.totals, strict=True))
        while len(parts) > 1:
            parts[-2:] = [_added(parts[-2], parts[-1])]
        return parts[0]


def _size(part: tuple[np.ndarray, np.ndarray]) -> int:
    return len(part[0])


def _added(left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    words, which = np.unique(np.concatenate([left[0], right[0]]), return_inverse=True)
    totals = np.zeros(len(words), np.int64)
    for place, addend in ((which[: len(left[0])], left[1]), (which[len(left[0]) :], right[1])):
        totals[place] += addend  # a word is in a part once
    if len(totals) and max(-int(totals.min()), int(totals.max())) >= INT64_SAFE:
        raise OverflowError("an exact integer sum left the safe range of int64")
    return words, totals


@dataclass(slots=True)
class Stack:
    """Rows kept by client: parts maps the index of a part's first client to its rows (clients, ...)."""

    parts: dict[int, np.ndarray]

    def merge(self, other: Stack) -> Stack:
        if self.parts.keys() & other.parts.keys():
            raise ValueError("the same clients were stacked twice")
        return Stack({**self.parts, **other.parts})

    def value(self) -> np.ndarray:
        return np.concatenate([self.parts[first] for first in sorted(self.parts)])


@dataclass(slots=True)
class ArgMax:
    """The client with the largest score, and what came with it. A tie goes to the lowest client index."""

    score: float
    client: int
    payload: dict[str, np.ndarray]

    def merge(self, other: ArgMax) -> ArgMax:
        return self if (self.score, -self.client) >= (other.score, -other.client) else other

    def value(self) -> ArgMax:
        return replace(self, payload={name: aligned(array) for name, array in self.payload.items()})


@dataclass(slots=True)
class FileDigests:
    """Digests of the files that were written, by name. Not an answer of clients, but of the process that asked them."""

    files: dict[str, str]

    def merge(self, other: FileDigests) -> FileDigests:
        self.files.update(other.files)
        return self

    def value(self) -> dict[str, str]:
        return self.files


def size_of(statistics: Statistics | None) -> int:
    """Bytes of the arrays in them."""
    total = 0
    for statistic in (statistics or {}).values():
        for slot in type(statistic).__slots__:  # type: ignore[attr-defined]  # all kinds above have slots
            held = getattr(statistic, slot)
            several = held.values() if isinstance(held, dict) else held if isinstance(held, list) else [held]
            total += sum(np.asarray(array).nbytes for array in several)
    return total


def merge(left: Statistics | None, right: Statistics | None) -> Statistics | None:
    """Merge name by name; None stands for no clients. The names of both sides must agree."""
    if left is None:
        return right
    if right is None:
        return left
    if left.keys() != right.keys():
        raise ValueError(f"statistics differ in their names: {sorted(left)} and {sorted(right)}")
    return {name: statistic.merge(right[name]) for name, statistic in left.items()}


def merge_all(parts: Iterable[Statistics | None]) -> Statistics | None:
    total = None
    for part in parts:
        total = merge(total, part)
    return total


def values(statistics: Statistics) -> dict[str, Any]:
    """The finished values, by name."""
    return {name: statistic.value() for name, statistic in statistics.items()}
