"""Keys of client ids that come again and again, as they do where rows are in no order: looked up, not hashed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedcore.population.ingest.plain_names import chosen, encoded

WORD = 8  # bytes
MOST_WORDS = 8  # of an id that is remembered
MIX = np.uint64(0x9E3779B97F4A7C15)  # odd; the golden ratio (Knuth, The Art of Computer Programming 3, section 6.4)
HALF = np.uint64(32)


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
