"""Who takes part in a private run, where a budget is kept by cohort (docs/privacy/cohorts.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedcore.storage.ranges import Ranges, holds, in_words, merged

DIGITS = 32  # of a token, hexadecimal


@dataclass(frozen=True, slots=True)
class Participants:
    """Cohorts that take part in a run; only they pay for it.

    ranges: (first, last) of their numbers, merged, ascending, not empty
    tokens: of all cohorts of the population's version, by number: number i + 1 has tokens[i]

    Raises ValueError if a range holds a cohort without a token, or a token is malformed.
    """

    ranges: Ranges
    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.ranges or self.ranges != merged(self.ranges):
            raise ValueError("participants are ranges, merged and ascending")
        if self.ranges[0][0] < 1 or self.ranges[-1][1] > len(self.tokens):
            raise ValueError("a cohort takes part that the population does not have")
        text = "".join(self.tokens)  # looked at as one: there are hundreds, in each of hundreds of records of a ledger
        whole = {*map(len, self.tokens)} == {DIGITS} and bytes.fromhex(text).hex() == text
        if not whole or len({*self.tokens}) != len(self.tokens):
            raise ValueError("a token of a cohort is malformed, or there twice")

    def holds(self, cohort: int) -> bool:
        return holds(self.ranges, cohort)

    def to_json(self) -> dict[str, Any]:
        return {"ranges": [list(pair) for pair in self.ranges], "tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Participants:
        """Raises KeyError, TypeError or ValueError if `to_json` did not make it."""
        ranges = tuple((int(first), int(last)) for first, last in value["ranges"])
        return cls(ranges, tuple(value["tokens"]))

    def __str__(self) -> str:
        return in_words(self.ranges)
