"""Encoding a population of words with a vocabulary: the same clients, as counts of the vocabulary's words and one cell
for all others, in another folder.

The encoded population is the next version of the same population. It keeps the id, ledger, cohorts, declared sizes and
forgotten clients, and knows earlier versions by their checksums. So one account is charged for everything that is
released from the words and from the counts. A second ingest of the source could not do that: no record would show that
both populations hold the same people.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fedcore.errors import PopulationError, WrongKind
from fedcore.population import copying, suppression
from fedcore.population.cohorts import Order
from fedcore.population.manifest import Manifest, Provenance
from fedcore.population.pieces import splitter
from fedcore.population.sizing import explicit_clients_per_block
from fedcore.population.store import Population
from fedcore.population.words import OTHER, WordsBlock, as_words
from fedcore.population.writer import PopulationWriter

RANGE_CLIENTS = 1024  # that are encoded at a time


class _Encoding(PopulationWriter):
    """Writes the clients of a population of words to another place, as that population's next version."""

    def __init__(self, path: str | Path, source: Population, tokens: Sequence[str]):
        made = source.manifest
        super().__init__(
            path,
            "counts",
            len(tokens),
            clients_per_leaf=made.clients_per_leaf,
            clients_per_block=explicit_clients_per_block(made.clients_per_leaf, made.clients_per_block),
            vocabulary=tokens,
            nominal_clients=made.nominal_clients,
            nominal_rows=made.nominal_rows,
            public_for_evaluation=made.public_reason if made.public_for_evaluation else None,
            halves=made.halves,
            ledger=None if made.ledger is None else made.ledger.model_dump(),
        )
        self.source, self.rule, self.entries = source, made.id_rule, made.period is not None
        self.version = made.version + 1

    def _new_id(self) -> str:
        return self.source.id

    def _holes(self, clients: int) -> np.ndarray | None:
        return self.source.are_holes(self.clients, clients) if self.source.holes else None

    def _membership(self, newcomers: Order | None) -> dict[str, Any]:
        old = self.source.manifest
        same = {name: getattr(old, name) for name in ("cohorts", "order", "period", "suppression")}
        removed = tuple(sorted(self.source.checksums().items()))
        return {**self.public, **same, "removed": removed}

    def _store_manifest(self, made: Manifest) -> None:
        if made.suppression is not None:
            suppression.copy(self.source.path, self.path, made.suppression)
        copying.copy_witness(self.source, self.path)
        super()._store_manifest(made)


def encode(
    source: Population,
    dest: str | Path,
    vocabulary: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    *,
    split: bool = False,
) -> Population:
    """Encode a population of words as a population of counts at `dest`. vocabulary: words, in the order of the
    features. All other words of a client are counted in one more feature, the last, `<other>`. split: a word that is
    not in the list counts as its pieces, if the list has them (`fedcore.population.pieces`).

    Held-out words are encoded in the same way. Holds one block at a time. progress: called with (blocks done, blocks).
    Raises WrongKind unless the population holds words; PopulationError for a vocabulary with a word twice or with one
    that no client can hold, and for a folder that is not empty; ChunkError.
    """
    if source.kind != "words":
        raise WrongKind(
            f"The population {source.path} holds {source.kind} already, and only words are encoded.",
            "Name a population that was ingested with --kind words.",
        )
    words = [word for word in vocabulary if word != OTHER]
    held = as_words(words)
    if not words or len(set(words)) < len(vocabulary) - (OTHER in vocabulary):
        raise PopulationError("The vocabulary is empty, or holds a word twice.", "Write every word once, one a line.")
    if (held == b"").any():
        raise PopulationError(
            f"The vocabulary holds {words[int((held == b'').argmax())]!r}, and words have 1 to 64 bytes on one line.",
            "Leave it out.",
        )
    features_of = splitter([*words, OTHER], split)
    with _Encoding(dest, source, [*words, OTHER]) as writer:
        for index, entry in enumerate(source.blocks):
            ids = source.client_ids(index)
            blocks = [source.words(index, heldout) for heldout in (False, True)[: 1 + (entry.heldout is not None)]]
            halves = [(block, _spelled(block.words, features_of, len(words) + 1)) for block in blocks]
            for start in range(0, entry.clients, RANGE_CLIENTS):
                stop = min(start + RANGE_CLIENTS, entry.clients)
                first, *second = [_counts(block, start, stop, by_word) for block, by_word in halves]
                writer.write(ids[start:stop].tolist(), first, *second)
            if progress is not None:
                progress(index + 1, len(source.blocks))
        made = source.manifest.provenance
        return writer.commit(Provenance(sources=made.sources, options={**made.options, "encoded": len(words)}))


def _spelled(words: np.ndarray, features_of: Callable[[str], tuple[int, ...]], width: int) -> scipy.sparse.csr_matrix:
    """(W, width) int64: how often each word holds each feature."""
    spelled = [features_of(word.decode("utf-8")) for word in words.tolist()]
    ends = np.cumsum([0, *map(len, spelled)])
    features = np.fromiter(itertools.chain.from_iterable(spelled), np.int64, ends[-1])
    return scipy.sparse.csr_matrix((np.ones(ends[-1], np.int64), features, ends), shape=(len(words), width))


def _counts(block: WordsBlock, start: int, stop: int, spelled: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    """(clients, features) int64 of clients start .. stop - 1. spelled: of the block's words."""
    low, high = block.indptr[start], block.indptr[stop]
    words = scipy.sparse.csr_matrix(
        (block.counts[low:high], block.indices[low:high], block.indptr[start : stop + 1] - low),
        shape=(stop - start, len(block.words)),
    )
    return words @ spelled
