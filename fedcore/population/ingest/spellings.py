"""Spellings of the values of a category: which value of a public list a text stands for."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from fedcore.population.choices import Spelling
from fedcore.population.identifiers import folded

LEAST_LETTERS = 5  # of a value that is recognised with a wrong letter: shorter words are too often other words


@lru_cache(maxsize=1 << 12)
def plain(one: str) -> str:
    """A text without what its spellings often differ in: case, accents, blanks."""
    (whole,) = folded([one.strip()])
    apart = unicodedata.normalize("NFKD", whole)
    return " ".join("".join(sign for sign in apart if not unicodedata.combining(sign)).split())


def one_letter_apart(one: str, other: str) -> bool:
    """Whether one letter more, one less, another one, or two neighbours in the other order make one of the other."""
    short, long = sorted((one, other), key=len)
    if len(long) - len(short) > 1 or short == long:
        return False
    start = next((at for at, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return short[start:] == long[start + 1 :]
    if short[start + 1 :] == long[start + 1 :]:
        return True
    return short[start + 2 :] == long[start + 2 :] and short[start : start + 2] == long[start : start + 2][::-1]


def found_in(one: str, values: Sequence[str], spelling: Spelling, others: Sequence[tuple[str, str]] = ()) -> str | None:
    """The value that a text stands for; None if it is none of them, or could be two. others: pairs (spelling, value)

    It depends on the text and the list alone. An exact value counts first, then a spelling of `others`, then one that
    is `plain`ly the same ("alike"), then one of at least 5 letters with one letter wrong ("typos").
    """
    if one in values:
        return one
    pairs = [*others, *((value, value) for value in values)]
    found = {value for text, value in others if text == one}
    if not found and spelling != "exact":
        mine = plain(one)
        found = {value for text, value in pairs if plain(text) == mine}
        if not found and spelling == "typos":
            long = [(plain(text), value) for text, value in pairs if len(plain(text)) >= LEAST_LETTERS]
            found = {value for text, value in long if one_letter_apart(mine, text)}
    return found.pop() if len(found) == 1 else None
