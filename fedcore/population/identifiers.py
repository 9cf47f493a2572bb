"""Client ids: how they are checked, stored (UTF-8 bytes and pointers) and compared."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import numpy as np

from fedcore.errors import PopulationError

# How a population spells its ids, a feature that its manifest needs: STRIPPED (normal form C, no blanks at the ends, no
# unseen character), or FOLDED on request.
Rule = Literal["stripped-ids", "folded-ids"]
STRIPPED: Final = "stripped-ids"
FOLDED: Final = "folded-ids"
WIDE: Final = (0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
BLANKS: Final = "".join(map(chr, (*range(9, 14), 32, *WIDE)))  # White_Space of the Unicode Character Database
REFUSED: Final = {  # by general category
    "Cc": "a control character",
    "Cf": "a format character",
    "Cn": "an unassigned character",
    "Cs": "half of a character (a lone surrogate)",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}
# Default_Ignorable_Code_Point of the Unicode Character Database, but for those of the categories above
UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def as_text(ids: Sequence | np.ndarray, holes: np.ndarray | None = None) -> list[str]:
    """Ids as text. Whole numbers become their decimal digits. Raises PopulationError for an empty or unusable id.

    holes: (C,) bool, clients that were forgotten, whose ids must be empty; None: there are none
    """
    array = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    texts = [one if type(one) is str else _one(one) for one in array]
    if holes is not None and any(texts[place] for place in np.flatnonzero(holes).tolist()):
        raise PopulationError("A client that was forgotten has an id.", "Give it as a new client.")
    there = texts if holes is None else [text for text, hole in zip(texts, holes.tolist(), strict=True) if not hole]
    if not all(there) or "\0" in "".join(texts):
        raise PopulationError("A client id is empty or contains a NUL character.", "Give every client an id.")
    return texts


def spelled(ids: Iterable[str], rule: Rule) -> list[str]:
    """Ids from outside as a population stores them: ids that are written or looked up go through here.

    An empty id stays empty: whether one may be there is for the caller to check. Raises PopulationError for an id that
    the rule refuses (`spelled_or_why`).
    """
    texts = list(ids)
    made, faults = spelled_or_why(texts, rule)
    for number, (text, fault) in enumerate(zip(texts, faults, strict=False), 1):
        if text and fault:
            raise PopulationError(
                f"A client id cannot be used (number {number} of {len(texts)}): {fault}.", "Correct it in the source."
            )
    return made


def spelled_or_why(texts: Sequence[str], rule: Rule) -> tuple[list[str], list[str]]:
    """(the ids as the rule stores them, why each cannot be used: "" if it can). No reasons at all if all can be used.

    Both rules refuse empty ids and characters that are not seen: control and format characters, line and paragraph
    separators, zero-width and other ignorable characters, lone surrogates. They also refuse characters that this
    Unicode version has not assigned: a later version may treat them in another way, and one person would get a second
    id. Private-use characters are allowed, because their treatment is fixed.
    """
    joined = "".join(texts)
    blank = not joined.isascii() or any(one in joined for one in BLANKS if one.isascii())
    made = [text.strip(BLANKS) for text in texts] if blank else [*texts]
    if not unicodedata.is_normalized("NFC", joined):
        made = [unicodedata.normalize("NFC", text).strip(BLANKS) for text in made]
    plain = joined.isprintable() and (joined.isascii() or not UNSEEN.search(joined))
    faults = [] if plain and all(made) else [_fault(text) for text in made]
    return folded(made) if rule == FOLDED else made, faults if any(faults) else []


def _fault(text: str) -> str:
    """Why a stripped id in normal form C cannot be used; empty if it can."""
    if not text:
        return "the client id is empty"
    if text.isprintable() and not UNSEEN.search(text):
        return ""
    for character in text:
        kind = REFUSED.get(unicodedata.category(character)) or (UNSEEN.match(character) and "a zero-width character")
        if kind:
            return f"the client id contains {kind} (U+{ord(character):04X})"
    return ""


def folded(texts: list[str]) -> list[str]:
    """Ids without what readers and databases often ignore: letter case, compatibility forms such as full-width letters,
    and how many blanks separate two parts, and which. texts: stripped, in normal form C; returned as they are, the same
    list, if all are folded.

    Unicode's compatibility caseless matching (The Unicode Standard, chapter 3.13, D146). Its result is stable over
    versions of Unicode for assigned characters, which are the only ones in an id.
    """
    joined = "".join(texts)
    if joined.isascii():
        if "  " in joined:
            return [" ".join(text.lower().split()) for text in texts]
        return texts if joined == joined.lower() else [text.lower() for text in texts]
    return [_folded(text) for text in texts]


def _folded(text: str) -> str:
    if text.isascii():
        return " ".join(text.lower().split())
    once = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", text).casefold())
    return " ".join(unicodedata.normalize("NFKC", once.casefold()).split())


def _one(value) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, np.integer, np.str_)):
        raise PopulationError(
            f"A client id is of type {type(value).__name__}.", "Use text or whole numbers as client ids."
        )
    return str(value)


def encode(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """(bytes (B,) uint8, length of each id (C,) int64)."""
    joined = "".join(texts)
    if joined.isascii():
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        return np.frombuffer(joined.encode("ascii"), np.uint8), lengths
    encoded = [text.encode("utf-8") for text in texts]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return np.frombuffer(b"".join(encoded), np.uint8), lengths


def decode(data: np.ndarray, ptr: np.ndarray) -> np.ndarray:
    """The ids as a (C,) array of str. data: (B,) uint8; ptr: (C + 1,), from 0 to B"""
    joined, lengths = data.tobytes(), np.diff(ptr)
    longest = int(lengths.max(initial=0))
    even = longest * len(lengths) <= 8 * len(joined)  # else what is made for one long id would take more memory
    if longest and even and joined.isascii():
        letters = np.zeros((len(lengths), longest), np.uint32)  # as NumPy stores text
        letters[np.arange(longest) < lengths[:, None]] = data
        return letters.view(f"U{longest}")[:, 0]
    bounds = ptr.tolist()
    pairs = zip(bounds[:-1], bounds[1:], strict=True)
    return np.array([joined[low:high].decode("utf-8") for low, high in pairs], dtype=np.str_)
