"""The numbers in a message: which of them a private method's bound on a client's contribution relies on.

A bound that holds for every client must not rest on the file that a state was read from. A clip of zero, or a centre
that is not a number, would make clients add far more than the noise was planned for. So clients refuse such a message.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedcore.errors import SensitivityError

Range = tuple[float, float]
EVERY: Range = (-sys.float_info.max, sys.float_info.max)  # finite


def between(low: float, high: float) -> Mapping[str, Range]:
    """Metadata of a message's field whose numbers must all be in this range, both ends included."""
    return {"between": (low, high)}


# Of a clip, a scale or a radius. Its square and its inverse, and those times what clients hold, are finite.
POSITIVE = between(2.0**-400, 2.0**400)


def numbers_of(message: Any, name: str = "", allowed: Range = EVERY) -> Iterator[tuple[str, Any, Range]]:
    """(name, number or array of numbers, range that it must be in) of every field that holds numbers, also those of
    dataclasses and tuples inside. The parts of a name are separated by dots."""
    if dataclasses.is_dataclass(message):
        for field in dataclasses.fields(message):
            inner = field.metadata.get("between", allowed)
            yield from numbers_of(getattr(message, field.name), f"{name}.{field.name}".lstrip("."), inner)
    elif isinstance(message, Mapping):
        for key, value in message.items():
            yield from numbers_of(value, f"{name}.{key}", allowed)
    elif isinstance(message, tuple | list):
        for number, value in enumerate(message):
            yield from numbers_of(value, f"{name}.{number}", allowed)
    elif isinstance(message, np.ndarray):
        if message.dtype.kind in "iuf":
            yield name, message, allowed
    elif isinstance(message, int | float | np.number) and not isinstance(message, bool):
        yield name, message, allowed


def refuse_unless(holds: bool, name: str) -> None:
    """Raises SensitivityError, which names the field of the message and no value, unless it holds."""
    if not holds:
        raise SensitivityError(
            f"the field {name!r} of this round's message holds a number with which the bound on a client's "
            "contribution would not hold. The clients do not answer it.",
            "The state of the run is damaged: restore the run's folder from a backup.",
        )


def check_numbers(message: Any) -> None:
    """Raises SensitivityError unless every number is finite and in the range that its field declares."""
    for name, value, (low, high) in numbers_of(message):
        array = np.asarray(value)
        refuse_unless(not array.size or bool(array.min() >= low and array.max() <= high), name)
