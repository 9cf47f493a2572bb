"""Client ids: how they are checked, stored (UTF-8 bytes and pointers) and compared."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedcore.errors import PopulationError


def as_text(ids: Sequence | np.ndarray, holes: np.ndarray | None = None) -> list[str]:
    """Ids as text. Whole numbers become their decimal digits. Raises PopulationError for an empty or unusable id.

    holes: (C,) bool, clients that were forgotten, whose ids must be empty; None: there are none
    """
    array = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    texts = [one if type(one) is str else _one(one) for one in array]
    if holes is not None and any(texts[place] for place in np.flatnonzero(holes).tolist()):
        raise PopulationError("A client that was forgotten has an id.", "Give it as a new client.")
    there = texts if holes is None else [text for text, hole in zip(texts, holes.tolist(), strict=True) if not hole]
    if not all(there) or any("\0" in text for text in texts):
        raise PopulationError("A client id is empty or contains a NUL character.", "Give every client an id.")
    return texts


def spelled(ids: Iterable[str], nfc: bool) -> list[str]:
    """Ids from outside as a population spells them: what is looked up, written or forgotten goes through here.

    nfc: in Unicode's normal form C, so that one name is one client however it was typed (an accent may be a character
        of its own or part of a letter); else as they are, which is the rule of populations of before
    """
    texts = list(ids)
    if not nfc or "".join(texts).isascii():
        return texts
    return [unicodedata.normalize("NFC", text) for text in texts]


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
    """The ids as a (C,) array of str."""
    joined = data.tobytes()
    bounds = ptr.tolist()
    pairs = zip(bounds[:-1], bounds[1:], strict=True)
    return np.array([joined[low:high].decode("utf-8") for low, high in pairs], dtype=np.str_)


def hashes(texts: Sequence[str]) -> np.ndarray:
    """(C,) int64, Python's hash of each id: for comparisons in this process only, with a key that is its own."""
    return np.fromiter(map(hash, texts), np.int64, len(texts))


def came_twice(parts: Sequence[np.ndarray], ids_of: Callable[[int], np.ndarray]) -> str | None:
    """An id that several clients have; None if there is none. Ids of forgotten clients are empty and do not count.

    parts: for each block the `hashes` of its ids, or none at all, if it is not to be looked at; ids_of: (C,) str
    """
    values, counts = np.unique(np.concatenate([np.zeros(0, np.int64), *parts]), return_counts=True)
    suspects = values[counts > 1]
    seen: set[str] = set()
    for number, part in enumerate(parts):
        positions = np.flatnonzero(np.isin(part, suspects))
        if not len(positions):
            continue
        # Equal hashes are nearly always equal ids; look at the ids themselves to be sure.
        for one in ids_of(number)[positions].tolist():
            if one in seen:
                return str(one)
            if one:
                seen.add(one)
    return None
