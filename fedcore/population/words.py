"""Words that are in no public list: how they are checked, held in memory and stored.

In a population of kind `words` a client's tokens are kept as words. Each block has a dictionary of the words in it,
sorted by their bytes, and their counts in CSR form. Words are stored in blocks only, and no list of all words of the
population exists.

A word has 1 to LONGEST bytes of UTF-8 and fits on one line of a text file. All other tokens of a client, and those that
are spelled like the name of the cell of other words, are counted together under NO_WORD, which is never released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy

from fedcore.errors import PopulationError
from fedcore.population.checks import LARGEST_COUNT, Rows

LONGEST: Final = 64  # bytes
WORD: Final = f"S{LONGEST}"  # a dtype, as is the next
RECORD: Final = [("word", WORD), ("count", "<i8")]  # a word of a client in flight, with `ptr` as in dense rows
NO_WORD: Final = b""
OTHER: Final = "<other>"  # last in a vocabulary: the cell of all words that are not in it


@dataclass(frozen=True, slots=True)
class WordsBlock:
    """Words of C consecutive clients.

    first: index of the first client in the population; indptr: (C + 1,) int64; indices: (nnz,) int32, increasing within
    a client, into words; counts: (nnz,) int64 > 0; words: (W,) S64, distinct, sorted by their bytes
    """

    first: int
    indptr: np.ndarray
    indices: np.ndarray
    counts: np.ndarray
    words: np.ndarray

    @property
    def clients(self) -> int:
        return len(self.indptr) - 1

    def records(self, start: int, stop: int) -> Rows:
        """(ptr, records of RECORD) of clients start .. stop - 1, as they can be written again."""
        low, high = self.indptr[start], self.indptr[stop]
        words = self.words[self.indices[low:high]]
        return self.indptr[start : stop + 1] - low, records_of(words, self.counts[low:high])


def joined_words(one: WordsBlock, other: WordsBlock) -> WordsBlock:
    """The words of two parts of the same clients as those of one: counts of a word add up."""
    words = np.union1d(one.words, other.words)
    parts = [
        scipy.sparse.csr_matrix(
            (part.counts, np.searchsorted(words, part.words)[part.indices], part.indptr), (part.clients, len(words))
        )
        for part in (one, other)
    ]
    whole = scipy.sparse.csr_matrix(parts[0] + parts[1])
    whole.sort_indices()
    return WordsBlock(one.first, whole.indptr.astype(np.int64), whole.indices.astype(np.int32), whole.data, words)


def as_word(token: str) -> bytes:
    """The bytes of a word; NO_WORD for a token that is none."""
    if "\0" in token or token == OTHER or len(token.splitlines()) != 1 or token.splitlines()[0] != token:
        return NO_WORD
    try:
        data = token.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair
        return NO_WORD
    return data if len(data) <= LONGEST else NO_WORD


def as_words(tokens: Sequence[str]) -> np.ndarray:
    """(n,) WORD."""
    return np.array([as_word(token) for token in tokens], WORD)


def records_of(words: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(n,) RECORD of words (n,) WORD and their counts (n,)."""
    made = np.empty(len(words), RECORD)
    made["word"], made["count"] = words, counts
    return made


def checked_words(data: object, clients: int) -> Rows:
    """(ptr (C + 1,) int64, records of RECORD), by word within a client, each word once, without zeros.

    Raises PopulationError if they are not (ptr, records), or a client's counts add up to more than 2**53.
    """
    if not isinstance(data, tuple) or len(data) != 2 or np.asarray(data[1]).dtype != np.dtype(RECORD):
        raise PopulationError("Words must come as (ptr, records).", "ptr has one more entry than there are clients.")
    ptr, records = np.asarray(data[0]).astype(np.int64), np.asarray(data[1])
    if ptr.shape != (clients + 1,) or ptr[0] != 0 or (np.diff(ptr) < 0).any() or ptr[-1] != len(records):
        raise PopulationError(
            "ptr must run from 0 to the number of records, one step for each client, without going back."
        )
    if (records["count"] < 0).any() or (records["count"] > LARGEST_COUNT).any():
        raise PopulationError("Counts must be whole numbers from 0 to 2**53.", "Look for negative values.")
    records, owner = records[records["count"] > 0], np.repeat(np.arange(clients), np.diff(ptr))[records["count"] > 0]
    words, which = np.unique(records["word"], return_inverse=True)
    order = np.lexsort((which, owner))
    owner, which, counts = owner[order], which[order], records["count"][order]
    new = np.ones(len(order), bool)
    new[1:] = (owner[1:] != owner[:-1]) | (which[1:] != which[:-1])
    starts = np.flatnonzero(new)
    if np.bincount(owner, weights=counts, minlength=1).max(initial=0) > LARGEST_COUNT:
        raise PopulationError(
            "The counts of a client add up to more than 2**53.", "Check the source; scale the counts down."
        )
    made = records_of(words[which[starts]], np.add.reduceat(counts, starts) if len(starts) else counts)
    return np.concatenate([[0], np.cumsum(np.bincount(owner[starts], minlength=clients))]).astype(np.int64), made


def as_bytes(words: np.ndarray) -> np.ndarray:
    """(W, LONGEST) uint8 of (W,) WORD, padded with zeros: as they are stored."""
    return np.ascontiguousarray(words, WORD).view(np.uint8).reshape(-1, LONGEST)


def from_bytes(stored: np.ndarray) -> np.ndarray:
    """(W,) WORD of what `as_bytes` made."""
    return np.ascontiguousarray(stored, np.uint8).reshape(-1).view(WORD)
