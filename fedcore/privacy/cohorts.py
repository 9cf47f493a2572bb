"""Who takes part in a private run, where a budget is kept by cohort (docs/privacy/cohorts.md)."""

from __future__ import annotations

from dataclasses import dataclass

from fedcore.storage.parsing import JsonObject
from fedcore.storage.ranges import Ranges, holds, in_words, merged

DIGITS = 32  # of a token, hexadecimal


@dataclass(frozen=True, slots=True)
class Participants:
    """Cohorts that take part in a run; only their accounts are charged.

    ranges: (first, last) of their numbers, merged, ascending, not empty
    tokens: of all cohorts of the population's version, by number: number i + 1 has tokens[i]

    Raises ValueError if a range holds a cohort without a token, or a token is malformed.
    """

    ranges: Ranges
    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        _check(self.ranges, self.tokens)

    def holds(self, cohort: int) -> bool:
        return holds(self.ranges, cohort)

    @classmethod
    def from_json(cls, value: JsonObject) -> Participants:
        """Raises KeyError, TypeError or ValueError if `plain` did not make it."""
        return cls(*recorded(value))

    def __str__(self) -> str:
        return in_words(self.ranges)


def recorded(value: JsonObject, known: tuple[str, ...] = ()) -> tuple[Ranges, tuple[str, ...]]:
    """Ranges and tokens of what `plain` made of `Participants`. known: tokens that were looked at in records before:
    there are hundreds, in each of hundreds of records of a ledger. Raises KeyError, TypeError or ValueError if it is
    none.
    """
    ranges = tuple((int(first), int(last)) for first, last in value["ranges"])
    tokens = tuple(value["tokens"])
    _check(ranges, tokens, known if known[: len(tokens)] == tokens[: len(known)] else ())
    return ranges, tokens


def _check(ranges: Ranges, tokens: tuple[str, ...], known: tuple[str, ...] = ()) -> None:
    """Raises what `Participants` raises. known: what the tokens begin with, or begin, that was looked at before."""
    if not ranges or ranges != merged(ranges):
        raise ValueError("participants are ranges, merged and ascending")
    if ranges[0][0] < 1 or ranges[-1][1] > len(tokens):
        raise ValueError("a cohort takes part that the population does not have")
    new = tokens[len(known) :]
    text = "".join(new)
    whole = {*map(len, new)} <= {DIGITS} and bytes.fromhex(text).hex() == text
    if not whole or len({*new}) != len(new) or any(token in known for token in new):
        raise ValueError("a token of a cohort is malformed, or there twice")
