"""Dataclasses as JSON: `made_of` reads what `entries` wrote, and nothing that it did not write."""

import json
from dataclasses import dataclass, field
from fractions import Fraction

import pytest

from fedcore.storage.plain import LATER, entries, made_of, plain
from fedcore.storage.ranges import Ranges


@dataclass(frozen=True)
class Inner:
    number: float


@dataclass(frozen=True)
class Outer:
    ranges: Ranges
    several: tuple[Inner, ...]
    one: Inner | None
    late: str | None = field(default=None, metadata=LATER)


def test_what_is_written_is_read_again():
    whole = Outer(((1, 2), (4, 4)), (Inner(0.1), Inner(2.0)), Inner(-1.0), "x")
    for value in (whole, Outer((), (), None)):
        assert made_of(Outer, json.loads(json.dumps(entries(value)))) == value
    assert list(entries(whole)) == ["ranges", "several", "one", "late"]  # --json prints them in this order


def test_a_field_that_older_files_lack_is_written_only_with_a_value():
    assert "late" not in entries(Outer((), (), None)) and plain(Fraction(1, 3)) == "1/3"


@pytest.mark.parametrize(
    "change", [{"unknown": 1}, {"ranges": None}, {"several": [{"number": 1, "unknown": 1}]}, {"one": [1]}]
)
def test_anything_else_is_refused(change):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        made_of(Outer, {**entries(Outer((), (), None)), **change})
    with pytest.raises(TypeError):
        made_of(Outer, {"ranges": [], "several": []})
