"""Words as pieces of a public list, so that no word is unknown.

A vocabulary of pieces is one of WordPiece (Schuster and Nakajima, 2012): an entry that begins with `##` continues a
word, and any other entry begins one. A word is split from its start, into the longest piece each time. A plain
vocabulary has no entry with `##`, and its words stay whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from fedcore.population.words import OTHER

INSIDE = "##"
PARTS = re.compile(r"[^\W_]+")  # letters and digits
REMEMBERED = 1 << 16  # words whose pieces are kept in memory


def splitter(vocabulary: Sequence[str], split: bool = True) -> Callable[[str], tuple[int, ...]]:
    """A function from a word to its features: that of the word, those of its pieces, or that of `<other>`. Empty for a
    word that is not in the list and cannot be spelled in pieces, where the list has no `<other>`. split: False leaves
    words whole, for a list whose words come from clients and may look like pieces
    """
    index = {token: number for number, token in enumerate(vocabulary)}
    other = (index[OTHER],) if OTHER in index else ()
    split = split and any(token.startswith(INSIDE) and token != INSIDE for token in vocabulary)
    longest = max(map(len, vocabulary), default=0)

    @lru_cache(maxsize=REMEMBERED)
    def features(word: str) -> tuple[int, ...]:
        whole = index.get(word)
        if whole is not None:
            return (whole,)
        return (_spelled(word, index, longest) if split else ()) or other

    return features


def _spelled(word: str, index: Mapping[str, int], longest: int) -> tuple[int, ...]:
    """The pieces of a word. If the list has none for some sign in it, such as an apostrophe, those of the parts between
    signs. Empty if these cannot be spelled either."""
    whole = _pieces(word, index, longest)
    parts = PARTS.findall(word)
    if whole or parts == [word]:
        return whole
    found = [_pieces(part, index, longest) for part in parts]
    return tuple(chain.from_iterable(found)) if all(found) else ()


def _pieces(word: str, index: Mapping[str, int], longest: int) -> tuple[int, ...]:
    """Empty if a part of the word is in no piece. Takes (length of the word) * longest steps at most."""
    found: list[int] = []
    start, mark = 0, ""
    while start < len(word):
        for stop in range(min(len(word), start + longest), start, -1):
            feature = index.get(mark + word[start:stop])
            if feature is not None:
                break
        else:
            return ()
        found.append(feature)
        start, mark = stop, INSIDE
    return tuple(found)
