"""Named sub-budgets: fractions of an account's budget that its operator assigns to teams or deployments.

The privacy guarantee is the account's: its filter decides as if there were no sub-budgets, and a sub-budget is one more
reason to refuse. A run without one is charged to the undivided part. docs/privacy/ledger.md has the argument.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any

from fedcore.errors import ConfigError

SHARES = "shares"  # the feature that records of divided accounts need
Shares = Mapping[str, Fraction]  # exact parts of the budget by name; empty: the account is not divided
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
PART = re.compile(r"\d{1,9}(\.\d{0,9})?|\.\d{1,9}|\d{1,9}/\d{1,10}")
MOST = 100  # shares of an account
LARGEST = 10**9  # denominator of a part


def read_shares(said: Iterable[str]) -> dict[str, Fraction]:
    """{name: part} of texts such as "team-a=0.5" or "team-b=1/3", exactly as written. Raises ConfigError."""
    found: dict[str, Fraction] = {}
    for text in said:
        name, equals, part = text.partition("=")
        try:
            value = Fraction(part.strip()) if equals and PART.fullmatch(part.strip()) else None
        except ZeroDivisionError:
            value = None
        if value is None or name.strip() in found:
            raise ConfigError(
                f"the share {text!r} is no name with a part of the budget, or there twice.",
                "Write each as NAME=PART, e.g. team-a=0.5 or team-a=1/3; 0 takes a share away.",
            )
        found[name.strip()] = value
    return found


def check_shares(shares: Shares) -> None:
    """Raises ConfigError unless the names are names, and the parts are above 0 and at most 1 together."""
    if (bad := next((name for name in shares if not NAME.fullmatch(name)), None)) is not None:
        raise ConfigError(
            f"a share cannot be named {bad!r:.100}.",
            "Letters, digits, and in between also points, underscores and hyphens; at most 128 of them.",
        )
    bad = next((name for name, part in shares.items() if part <= 0 or part.denominator > LARGEST), None)
    if bad is not None:
        raise ConfigError(
            f"share {bad!r} has the part {shares[bad]}.", "A part is above 0, with a denominator of at most 10^9."
        )
    if len(shares) > MOST:
        raise ConfigError(f"an account has at most {MOST} shares, not {len(shares)}.")
    if (total := sum(shares.values(), Fraction(0))) > 1:
        raise ConfigError(
            f"the shares are {float(total):.6g} of the budget together, which is more than all of it.",
            "Make some smaller.",
        )


def part_of(shares: Shares, name: str | None) -> Fraction:
    """The part of a share; None: of what is undivided, which is all of an account without shares. Raises KeyError."""
    return 1 - sum(shares.values(), Fraction(0)) if name is None else shares[name]


def check_named(names: Collection[str], name: str | None, population_id: str) -> None:
    """Raises ConfigError for a share that is not among these names."""
    if name is None or name in names:
        return
    who = f"the budget of population {population_id!r}"
    if not names:
        raise ConfigError(
            f"the run names share {name!r}, and {who} is not divided.",
            "Leave the share out, or divide the budget: fedcore budget divide.",
        )
    raise ConfigError(
        f"{who} has no share {name!r}.", f"Its shares: {', '.join(sorted(names))}. Name one of them, or none."
    )


def shares_json(shares: Shares) -> dict[str, list[int]]:
    """{name: [numerator, denominator]}."""
    return {name: list(shares[name].as_integer_ratio()) for name in sorted(shares)}


def shares_of(value: Any) -> dict[str, Fraction]:
    """The shares that `shares_json` made this of. Raises TypeError, ValueError, ArithmeticError or ConfigError if it
    made it of none.
    """
    if not isinstance(value, dict):
        raise TypeError("shares are no object")
    found = {str(name): Fraction(*pair) for name, pair in value.items()}
    check_shares(found)
    if shares_json(found) != value:
        raise ValueError("shares with parts that are not in lowest terms")
    return found


def in_words(shares: Shares) -> str:
    """As "team-a 1/2, team-b 3/10"; "none" if there is none."""
    return ", ".join(f"{name} {shares[name]}" for name in sorted(shares)) or "none"


def whose(name: str | None) -> str:
    """The part of a divided account that is charged, in the form of a sentence before "of population ..."."""
    return "the undivided part" if name is None else f"share {name!r}"
