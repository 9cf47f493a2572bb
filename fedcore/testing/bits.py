"""Values compared to the last bit: arrays, statistics, and dataclasses, mappings and sequences of them."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from fedcore.testing.broken import LawBroken

T = TypeVar("T")


def difference(one: Any, other: Any, where: str) -> str:
    """What differs between two values, in words; empty if nothing does. NaNs are equal if their bits are.

    where: what the values are called.
    """
    if type(one) is not type(other):
        return f"{where} is a {type(one).__name__} in one case and a {type(other).__name__} in the other"
    if isinstance(one, np.ndarray):
        return _array_difference(one, other, where)
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            return f"{where} has {sorted(map(str, one))} in one case and {sorted(map(str, other))} in the other"
        return _first(difference(one[key], other[key], f"{where}[{key!r}]") for key in one)
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{where} has {len(one)} entries in one case and {len(other)} in the other"
        return _first(difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
    if isinstance(one, (str, bytes, bool, int, type(None), np.integer, np.bool_)):
        return "" if one == other else f"{where} is {one!r} in one case and {other!r} in the other"
    if isinstance(one, (float, np.floating)):
        same = np.float64(one).tobytes() == np.float64(other).tobytes()
        return "" if same else f"{where} is {one!r} in one case and {other!r} in the other"
    names = _attributes(one)
    if not names:
        return "" if one == other else f"{where} is {one!r} in one case and {other!r} in the other"
    return _first(difference(getattr(one, name), getattr(other, name), f"{where}.{name}") for name in names)


def _first(found: Any) -> str:
    return next((text for text in found if text), "")


def _array_difference(one: np.ndarray, other: np.ndarray, where: str) -> str:
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{where} is {one.dtype} {one.shape} in one case and {other.dtype} {other.shape} in the other"
    if one.tobytes() == other.tobytes():
        return ""
    flat, others = (np.frombuffer(value.tobytes(), np.uint8).reshape(value.size, -1) for value in (one, other))
    differing = np.flatnonzero((flat != others).any(axis=1))
    first = np.unravel_index(differing[0], one.shape) if one.shape else ()
    return (
        f"{where} differs in {len(differing)} of {one.size} entries: entry {tuple(map(int, first))} is "
        f"{one[first]!r} in one case and {other[first]!r} in the other"
    )


def _attributes(value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    return [name for name in [*slots, *getattr(value, "__dict__", {})] if hasattr(value, name)]


def copied(value: T) -> T:
    """A copy that shares nothing, as if it had been sent to another process. Raises LawBroken if it cannot be sent."""
    try:
        return pickle.loads(pickle.dumps(value))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise LawBroken(f"a {type(value).__name__} cannot be sent to another process: {error}.") from error
