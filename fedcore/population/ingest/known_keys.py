"""Keys of client ids that come again and again, as they do where rows are in no order: looked up, not hashed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedcore.population import identifiers

WORD = 8  # bytes
MOST_WORDS = 8  # of an id that is remembered
MIX = np.uint64(0x9E3779B97F4A7C15)  # odd; the golden ratio (Knuth, The Art of Computer Programming 3, section 6.4)
HALF = np.uint64(32)


class KnownKeys:
    """A table of ids and their keys, as large as `memory` allows, in which a new id takes the place of another.

    keyed: (C, 2) uint64, the keys of C ids; it is asked for those only that the table does not have
    """

    def __init__(self, keyed: Callable[[Sequence[str]], np.ndarray], memory: int):
        self._keyed, self._memory = keyed, memory
        self._table: np.ndarray | None = None  # (slots, words of the id, then 2 of the key)

    def __call__(self, ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """((C, 2) uint64 keys, (C,) bool, false only for ids that came before). ids: each once"""
        if not len(ids):
            return np.zeros((0, 2), np.uint64), np.zeros(0, bool)
        text, lengths = identifiers.encode(list(ids))
        if self._table is None:
            words = min(-(-int(lengths.max()) // WORD), MOST_WORDS)
            slots = max(self._memory // (WORD * (words + 2)), 1)
            self._table = np.zeros((1 << (slots.bit_length() - 1), words + 2), np.uint64)
        words = self._table.shape[1] - 2
        # NUL is what fills a word, and nothing else what fills a slot that is free
        fits = (lengths > 0) & (lengths <= WORD * words) if text.all() else np.zeros(len(lengths), bool)
        spelled = _in_words(text, lengths, fits, words)
        slot = _slots(spelled, len(self._table))
        found = self._table[slot]
        new = ~fits | (found[:, :words] != spelled).any(axis=1)
        places = np.flatnonzero(new)
        found[places, words:] = self._keyed([ids[place] for place in places.tolist()])
        kept = np.flatnonzero(new & fits)
        found[kept, :words] = spelled[kept]
        self._table[slot[kept]] = found[kept]
        return found[:, words:], new


def _in_words(text: np.ndarray, lengths: np.ndarray, fits: np.ndarray, words: int) -> np.ndarray:
    """(C, words) uint64, the bytes of each id that fits; the others are 0."""
    padded = np.zeros((len(lengths), WORD * words), np.uint8)
    if fits.all():
        padded[np.arange(WORD * words) < lengths[:, None]] = text
    else:
        padded[np.arange(WORD * words) < np.where(fits, lengths, 0)[:, None]] = text[np.repeat(fits, lengths)]
    return padded.view(np.uint64)


def _slots(spelled: np.ndarray, slots: int) -> np.ndarray:
    """(C,) int64 place of each; slots: a power of 2"""
    mixed = np.zeros(len(spelled), np.uint64)
    for word in spelled.T:
        mixed = (mixed ^ word) * MIX  # which carries upwards only, and the last bytes of an id are the upper ones
        mixed = (mixed ^ (mixed >> HALF)) * MIX
        mixed ^= mixed >> HALF
    return (mixed & np.uint64(slots - 1)).astype(np.int64)
