"""Client ids as Arrow holds them, where they are plain: of many rows only a few ids are looked at as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from fedcore.population import identifiers

FIRST, LAST = ord(" "), ord("~")  # of printable ASCII


class PlainNames(Sequence[str]):
    """Ids that a client can have, in printable ASCII without blanks at the ends: they are stored as they are,
    unless they are folded. letters: (B,) uint8, of one id after the other; bounds: (C + 1,) int64, of each in them
    """

    def __init__(self, letters: np.ndarray, bounds: np.ndarray):
        self.letters, self.bounds = letters, bounds
        self._text = ""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return self.at(range(len(self))[place])
        return self.at([range(len(self))[place]])[0]

    def at(self, places: Sequence[int]) -> list[str]:
        """The ids there; places: from 0 on"""
        self._text = self._text or self.letters.tobytes().decode("ascii")
        text, bounds = self._text, self.bounds[places[0] : places[-1] + 2].tolist() if len(places) else []
        first = places[0] if len(places) else 0
        return [text[bounds[place - first] : bounds[place - first + 1]] for place in places]

    def folded(self) -> PlainNames | None:
        """The same ids folded, of which several may be equal. None where two blanks in a row have to become one."""
        text = self.letters.tobytes().lower()
        return None if b"  " in text else PlainNames(np.frombuffer(text, np.uint8), self.bounds)


def plain_names(texts) -> PlainNames | None:
    """Those of an Arrow array of strings, if all are plain; texts: without nulls"""
    bounds = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = texts.buffers()[2]
    if data is None or not len(texts) or (np.diff(bounds) == 0).any():
        return None
    letters = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    if (letters - np.uint8(FIRST) > LAST - FIRST).any():  # those below the first are far above the last then
        return None
    bounds -= bounds[0]
    blank = letters == FIRST
    if blank.any() and (blank[bounds[:-1]] | blank[bounds[1:] - 1]).any():
        return None
    return PlainNames(letters, bounds)


def encoded(ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(bytes (B,) uint8, length of each id (C,) int64)"""
    return (ids.letters, np.diff(ids.bounds)) if isinstance(ids, PlainNames) else identifiers.encode(list(ids))


def chosen(ids: Sequence[str], places: np.ndarray) -> list[str]:
    """Some of the ids. places: ascending"""
    listed = places.tolist()
    return ids.at(listed) if isinstance(ids, PlainNames) else [ids[place] for place in listed]
