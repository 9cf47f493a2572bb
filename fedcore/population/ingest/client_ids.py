"""Client ids as Arrow holds them, where they are plain: of many rows only a few ids are looked at as text. And the keys
of ids that come again and again, as they do where rows are in no order: looked up, not hashed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np

from fedcore.population import identifiers

FIRST, LAST = ord(" "), ord("~")  # of printable ASCII
WORD = 8  # bytes
MOST_WORDS = 8  # of an id that is remembered
MIX = np.uint64(0x9E3779B97F4A7C15)  # odd; the golden ratio (Knuth, The Art of Computer Programming 3, section 6.4)
HALF = np.uint64(32)
MOST_BITS, MOST_STEPS = 20, 16  # of a key that is looked up by its first bits; of keys with the same first bits


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


class KnownKeys:
    """A table of ids and their keys, as large as `memory` allows. An id has two places; where both are taken, it takes
    the second one over.

    keyed: (C, 2) uint64, the keys of C ids; it is asked for those only that the table does not have
    """

    def __init__(self, keyed: Callable[[Sequence[str]], np.ndarray], memory: int):
        self._keyed, self._memory = keyed, memory
        self._table: np.ndarray | None = None  # (slots, words of the id, then 2 of the key)
        self._time = 1
        self._times: np.ndarray  # (slots,) uint16, when the id there came last

    def begin_anew(self) -> None:
        """No id has come before, though the keys are known of those that did."""
        self._time += 1
        if self._time == 1 << 16:
            self._time, self._table = 1, None

    def __call__(self, ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """((C, 2) uint64 keys, (C,) bool, false only for ids that came before). ids: each once"""
        if not len(ids):
            return np.zeros((0, 2), np.uint64), np.zeros(0, bool)
        text, lengths = encoded(ids)
        if self._table is None:
            words = min(-(-int(lengths.max()) // WORD), MOST_WORDS)
            slots = max(self._memory // (WORD * (words + 2)), 1)
            self._table = np.zeros((1 << (slots.bit_length() - 1), words + 2), np.uint64)
            self._times = np.zeros(len(self._table), np.uint16)
        words = self._table.shape[1] - 2
        # NUL is what fills a word, and nothing else what fills a slot that is free
        fits = (lengths > 0) & (lengths <= WORD * words) if text.all() else np.zeros(len(lengths), bool)
        spelled = _in_words(text, lengths, fits, words)
        slot, second = _slots(spelled, len(self._table))
        found = self._table.take(slot, axis=0)
        free = found[:, 0] == 0
        elsewhere = np.flatnonzero(~_same(found, spelled) & ~free)
        slot[elsewhere] = second[elsewhere]
        found[elsewhere] = self._table.take(slot[elsewhere], axis=0)
        known = fits & _same(found, spelled)
        places = np.flatnonzero(~known)
        found[places, words:] = self._keyed(chosen(ids, places))
        kept = places[fits[places]]
        found[kept, :words] = spelled[kept]
        self._table[slot[kept]] = found[kept]
        new = ~known | (self._times.take(slot) != self._time)
        self._times[slot[new & fits]] = self._time
        return found[:, words:], new


def _same(found: np.ndarray, spelled: np.ndarray) -> np.ndarray:
    """(n,) bool, whether these rows of the table are of these ids"""
    same = found[:, 0] == spelled[:, 0]
    for word in range(1, spelled.shape[1]):
        same &= found[:, word] == spelled[:, word]
    return same


def _in_words(text: np.ndarray, lengths: np.ndarray, fits: np.ndarray, words: int) -> np.ndarray:
    """(C, words) uint64, the bytes of each id that fits; the others are 0."""
    padded = np.zeros((len(lengths), WORD * words), np.uint8)
    longest = int(lengths.max())
    if fits.all() and (lengths == longest).all():
        padded[:, :longest] = text.reshape(-1, longest)
    elif fits.all():
        padded[np.arange(WORD * words) < lengths[:, None]] = text
    else:
        padded[np.arange(WORD * words) < np.where(fits, lengths, 0)[:, None]] = text[np.repeat(fits, lengths)]
    return padded.view(np.uint64)


def _slots(spelled: np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """(C,) int64, the two places of each; slots: a power of 2"""
    mixed = np.zeros(len(spelled), np.uint64)
    for word in spelled.T:
        mixed = (mixed ^ word) * MIX  # which carries upwards only, and the last bytes of an id are the upper ones
        mixed = (mixed ^ (mixed >> HALF)) * MIX
        mixed ^= mixed >> HALF
    last = np.uint64(slots - 1)
    return (mixed & last).astype(np.int64), ((mixed >> HALF) & last).astype(np.int64)


def positions(sorted_keys: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """(n,) int64, the place of each of the keys (n,) uint64 in sorted_keys (C,) uint64, which has them all.

    The same as `np.searchsorted`. Most keys are hashes, so that their first bits almost give their place, and a step or
    two lead from there. A search misses the processor's cache at every step.
    """
    if len(keys) <= 2 * len(sorted_keys):
        return np.searchsorted(sorted_keys, keys)
    low, bits = sorted_keys[0], min(len(sorted_keys).bit_length() + 1, MOST_BITS)
    shift = np.uint64(max(int(sorted_keys[-1] - low).bit_length() - bits, 0))
    there = np.bincount(((sorted_keys - low) >> shift).astype(np.int64), minlength=1 << bits)
    if there.max() > MOST_STEPS:
        return np.searchsorted(sorted_keys, keys)
    position = (np.cumsum(there) - there).take(((keys - low) >> shift).astype(np.int64))
    later = np.flatnonzero(sorted_keys.take(position) < keys)
    while len(later):
        position[later] += 1
        later = later[sorted_keys.take(position[later]) < keys[later]]
    return position
