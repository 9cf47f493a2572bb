"""Splitting the documents of a client into two halves: the first is the training part, the second the held-out part.

A hash of the client's id and the document's id selects the half, with a key that is the same everywhere. So the halves
do not depend on the order of the input or on how it was cut, and no append moves a document. All pieces of a document
are in one half, also if they come in several files, calendar periods or appends.

This has a disadvantage: the documents of a client are not counted before they are split. All k documents of a client
are in one half with probability 2^(1 - k), and the other half is then empty. A single document is in either half. A
rule that puts a single document into the first half cannot hold after others were appended, together with more rows of
the first. The document would be in both halves, or move to the other one after a run was trained on it.

The key is not secret, since no privacy guarantee depends on the split. A client may choose the ids of its documents,
and so their halves, but releases bound what one client contributes with both halves together.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.ingest.csv_blocks import MISSING
from fedcore.population.manifest import Halves
from fedcore.population.store import Population

PERSON = b"fedcore halves 1"  # of the hash; another rule would be another number
LENGTH = 8  # bytes that say how long the id of the client is


def second_half(pairs: Iterable[tuple[str, str]]) -> np.ndarray:
    """(n,) bool: which documents belong to the second half. pairs: of each the client's id, as it is stored, and the
    document's. Both are brought to normal form C.
    """
    spelled = ([unicodedata.normalize("NFC", one).encode() for one in pair] for pair in pairs)
    return np.fromiter((_bit(client, document) for client, document in spelled), bool)


def _bit(client: bytes, document: bytes) -> bool:
    named = len(client).to_bytes(LENGTH, "little") + client + document
    return bool(hashlib.blake2b(named, digest_size=1, person=PERSON).digest()[0] & 1)


def no_document(one: str | None) -> str:
    """Why this cannot be the id of a document; empty if it can."""
    if one is None or not one.strip():
        return "the document id is missing"
    if one.strip() in MISSING:  # what a table writes for nothing: all rows without a document would be one of them
        return f"the document id is {one.strip()!r}, which stands for a missing one"
    return ""


def halves_of(documents: str | None, said: Halves | None, heldout: bool) -> Halves | None:
    """How the halves of a source are dealt. documents: what deals them here; said: what the owner says of held-out data
    that the source brings; heldout: whether it brings any. Raises IngestError for what does not go together.
    """
    if documents is not None:
        if heldout or said not in (None, "document"):
            raise IngestError(
                "The documents are split into halves here, but the source has a held-out part already, or `halves` "
                "names another split.",
                "Leave out either the documents, or the options for held-out data.",
            )
        return "document"
    if said is not None and not heldout:
        raise IngestError(
            f"The halves are declared to be split by {said}, but the source has no held-out part.",
            "Name the column of the documents (--documents), or the held-out data (--option heldout=FILE).",
        )
    return said


def refuse_other_halves(parent: Population, halves: Halves | None) -> None:
    """Raises IngestError if what is appended is not dealt as the population is."""
    before = parent.manifest.halves
    if halves == before:
        return
    if before == "document":
        raise IngestError(
            f"The clients' halves of {parent.path} are split by document, but the documents of the appended data are "
            "unknown.",
            "Name them (--documents COLUMN); or declare held-out data of whole documents: --option halves=document.",
        )
    if before is not None:
        raise IngestError(
            f"The clients' halves of {parent.path} are split by {before}, but the appended data are not.",
            f"Append data that are (--option halves={before}), or make another population.",
        )
    raise IngestError(
        f"It is unknown how the clients' halves of {parent.path} were split, and the appended data are split by "
        f"{halves}: stored documents could be in both halves.",
        "Leave it out, or make another population.",
    )
