"""A vocabulary that is released from the words of clients: lists, weights, the threshold, and what is published.

Every client lists its most frequent words, at most LIST of them, and gives each of k words the weight
floor(2^16 / sqrt k). Gaussian noise is added to the sum of every listed word, and the words whose noisy sum is above a
threshold T are published with it. T is so high that words of only one client all stay below it, except with a
probability delta', which the release costs in addition to its rho. Nothing else of the list of all words is ever
released: not one of them, and not how many there are. Argument: docs/privacy/vocabulary.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import scipy

from fedcore.errors import ConfigError
from fedcore.population.words import LONGEST, NO_WORD, WORD, WordsBlock
from fedcore.privacy.accounting import rounded_down
from fedcore.privacy.gdp import check_promise
from fedcore.privacy.grid import GRID_NORM
from fedcore.privacy.plan import PlannedRelease, Relation

if TYPE_CHECKING:
    from flint import arb

LIST: Final = 300  # words of a client
SHARE: Final = 0.3  # of the budget, by default
STRONG: Final = 1500.0  # n sqrt(2 rho) above which several releases, and a private list at all, are useful
SHARES: Final = (Fraction(1, 10), Fraction(3, 10), Fraction(6, 10))  # of rho and delta', of several releases
MOST: Final = 2**17  # words that one release publishes at most, the largest ones: far more than a threshold lets pass
COLUMNS: Final = 1 + LONGEST // 8  # of a published row: the noisy sum, and the word's bytes
ARGUMENT: Final = "docs/privacy/vocabulary.md"
COMPOSITION: Final = (
    "words that clients list, each with one noised sum, published above a threshold; delta' for the words that only "
    "one client lists"
)
BITS: Final = 256  # of the balls

# (LIST + 1,) int64: the weight of each of k words; k squares of it never add up to more than 2^32.
WEIGHTS = np.array([0, *(math.isqrt(GRID_NORM**2 // k) for k in range(1, LIST + 1))], np.int64)


# --- what a client contributes ----------------------------------------------------------------------------------------


def listed(block: WordsBlock, known: np.ndarray, chosen: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(entries of the block that are in their clients' lists, their weights), both (m,) int64.

    known: (V,) WORD, sorted, words that were released before, which no client lists again. chosen: (C,) bool, clients
    who take part; None: all. A list holds the most frequent words; where counts are equal, those whose bytes come
    first.
    """
    of_word = (block.words != NO_WORD) & ~np.isin(block.words, known)
    owner = np.repeat(np.arange(block.clients), np.diff(block.indptr))
    free = of_word[block.indices] if chosen is None else of_word[block.indices] & chosen[owner]
    entries = np.flatnonzero(free)
    owner = owner[entries]
    order = np.lexsort((block.indices[entries], -block.counts[entries], owner))
    entries, owner = entries[order], owner[order]
    starts = np.searchsorted(owner, owner)  # of the client of each entry
    kept = np.arange(len(entries)) - starts < LIST
    entries, owner = entries[kept], owner[kept]
    return entries, WEIGHTS[np.bincount(owner, minlength=block.clients)[owner]]


def sums(block: WordsBlock, known: np.ndarray, chosen: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(words (W,) WORD, sorted; sums of their weights (W,) int64) of the lists of a block's clients; as `listed`."""
    entries, weights = listed(block, known, chosen)
    words, which = np.unique(block.indices[entries], return_inverse=True)
    totals = np.zeros(len(words), np.int64)
    np.add.at(totals, which, weights)
    return block.words[words], totals


def sensitivity(relation: Relation) -> int:
    """Of the sums of the words that others list too, in grid steps: 2^16, or the whole number above sqrt(2) 2^16.

    Weights are not negative, so that ||a - b||^2 <= ||a||^2 + ||b||^2 for the lists of two clients.
    """
    if relation not in ("add_or_remove_one", "replace_one"):
        raise ConfigError(f"a vocabulary knows no relation {relation!r}.")
    return GRID_NORM if relation == "add_or_remove_one" else math.isqrt(2 * GRID_NORM**2) + 1


# --- the threshold ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def threshold(scale: float, delta: float) -> int:
    """T in grid steps: with noise of this scale the words that only one client lists, however many and with whatever
    weights it can give them, all stay at or below T but for a probability of at most `delta`.

    T = max over k <= LIST of w_k + s z_k, rounded up, with (1 - Q(z_k))^k >= 1 - delta in balls (Arb): if all k words
    of a list are the client's own, every one of them stays below. Fewer of them are less likely to pass.
    """
    check_promise(1.0, delta)
    highest = 0
    for k in range(1, LIST + 1):
        each = -math.expm1(math.log1p(-delta) / k)
        above = math.floor(scale * -float(scipy.special.ndtri(each))) - 2  # a guess; what holds is decided by `_stays`
        while not _stays(above, k, scale, delta):
            above += 1
        highest = max(highest, int(WEIGHTS[k]) + above)
    return highest


def _stays(above: int, k: int, scale: float, delta: float) -> bool:
    """Whether k independent noises are all at most `above` but for a probability of `delta`, for certain."""
    from flint import arb, ctx

    with ctx.workprec(BITS):
        one: arb = (arb(above) / arb(scale) / arb(2).sqrt()).erfc() / 2
        if not bool(one < 1):
            return False
        return bool(-(arb(k) * (-one).log1p()).expm1() <= arb(delta))


# --- releases ---------------------------------------------------------------------------------------------------------


def strength(nominal_clients: int, rho: float) -> float:
    """n sqrt(2 rho): a word that a share of the clients list stands so far above the noise, times that share."""
    return nominal_clients * math.sqrt(2 * rho)


def in_words(nominal_clients: int | None, rho: float) -> str:
    """Describe the expected utility of a private list."""
    if nominal_clients is None:
        return f"unknown without a declared size: a private list is useful for n sqrt(2 rho) above about {STRONG:g}"
    found = f"n sqrt(2 rho) = {strength(nominal_clients, rho):.4g}"
    if strength(nominal_clients, rho) > STRONG:
        return f"good: {found}, and a private list is useful above about {STRONG:g}"
    return f"weak: {found}; a private list is useful above about {STRONG:g}. Below it, use a public list"


def planned_releases(
    rho: float, delta: float, nominal_clients: int | None, relation: Relation
) -> tuple[PlannedRelease, ...]:
    """What `rho` and `delta` buy: one release, or three where there are enough clients, of which each lists the words
    that those before did not publish. The last ones are optional: the vocabulary is of use without them.
    """
    several = nominal_clients is not None and strength(nominal_clients, rho) > STRONG
    shares: Sequence[Fraction] = SHARES if several else (Fraction(1),)
    return tuple(
        PlannedRelease(
            name=name_of(number),
            round=number,
            shape=(MOST, COLUMNS),
            sensitivity=sensitivity(relation),
            noise_multiplier=math.sqrt(0.5 / (float(share) * rho)) * (1 + 1e-12),
            argument=ARGUMENT,
            composition=COMPOSITION,
            delta=rounded_down(share * Fraction(delta)),
            optional=number > 1,
        )
        for number, share in enumerate(shares, 1)
    )


def name_of(number: int) -> str:
    return f"vocabulary-{number}"


def published(words: np.ndarray, noised: np.ndarray, planned: PlannedRelease) -> np.ndarray:
    """(K, COLUMNS) int64 of the words whose noisy sums are above the threshold, sorted by their bytes. The MOST
    largest, should there be more. words: (W,) WORD, sorted; `noised`: (W,) int64.
    """
    kept = np.flatnonzero(noised > threshold(planned.scale, planned.delta))
    if len(kept) > MOST:
        kept = np.sort(kept[np.argsort(-noised[kept], kind="stable")[:MOST]])
    made = np.empty((len(kept), COLUMNS), np.int64)
    made[:, 0] = noised[kept]
    made[:, 1:] = np.ascontiguousarray(words[kept], WORD).view("<i8").reshape(-1, COLUMNS - 1)
    return made


def words_of(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(words (K,) WORD, noisy sums (K,)) of a published value."""
    return np.ascontiguousarray(value[:, 1:]).astype("<i8").view(WORD).reshape(-1), value[:, 0]
