"""Text as a source: one file, or one sub-folder, is one client; its tokens are counted against a vocabulary, or kept as
words.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.choices import Kind, Tokeniser
from fedcore.population.identifiers import STRIPPED, Rule
from fedcore.population.ingest.batches import Account, Batch, named_ids, refuse_odd
from fedcore.population.ingest.documents import second_half
from fedcore.population.pieces import splitter
from fedcore.population.words import WORD, as_word, records_of

WORDS = re.compile(r"[a-z]+(?:'[a-z]+)*")  # of lower-cased text; apostrophes only between letters
IDENTIFIERS = re.compile(r"[A-Za-z_]+")
INSIDE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_'")
PIECE = 1 << 20  # characters read at a time
SECTION = 2000  # characters after which a section of a file ends with its line: those of a message or a page
BATCH_TOKENS = 1 << 16  # counts collected before they are handed on


def text_files(folder: Path) -> list[Path]:
    """Every file below the folder, by relative path; names that start with a dot are passed over. Raises IngestError
    for one that is no regular file.
    """
    found: list[Path] = []
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found.extend(Path(where) / name for name in names if not name.startswith("."))
    for file in found:
        refuse_odd(file)
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def pieces(file: Path) -> Iterator[str]:
    """The text of a file in pieces that end between two words. Raises IngestError."""
    rest = ""
    with _opened(file) as handle:
        while piece := handle.read(PIECE):
            text = rest + piece
            cut = _between_words(text)
            yield text[:cut]
            rest = text[cut:]
    yield rest


def sections(handle: TextIO) -> Iterator[str]:
    """A text in sections, the documents of a client that is a file: each ends with the line that brings it to SECTION
    characters, the last one with the text; in a line that is longer than PIECE, between two words.
    """
    text = ""
    while line := handle.readline(PIECE):
        text += line
        cut = len(text)
        if cut < SECTION:
            continue
        if len(line) == PIECE and not line.endswith("\n"):
            cut = _between_words(text)
        if cut:
            yield text[:cut]
        text = text[cut:]
    if text:
        yield text


def _between_words(text: str) -> int:
    """Where the last token begins, which may continue after the text."""
    cut = len(text)
    while cut and text[cut - 1].lower()[-1] in INSIDE:
        cut -= 1
    return cut


def by_half(client: str, documents: Iterator[str]) -> Iterator[tuple[bool, str]]:
    """(whether it is of the second half, text) of a client's documents, whose ids are their texts; several of a half
    together, which end between two words.
    """
    held: dict[bool, list[str]] = {False: [], True: []}
    for text in documents:
        half = bool(second_half([(client, text)])[0])
        held[half].append(text)
        if sum(map(len, held[half])) >= PIECE:
            yield half, "".join(held[half])
            held[half].clear()
    for half, texts in held.items():
        yield half, "".join(texts)


def count_tokens(text: str, tokeniser: Tokeniser) -> Counter[str]:
    """The tokens of a text that begins and ends between two words."""
    return Counter(WORDS.findall(text.lower()) if tokeniser == "words" else IDENTIFIERS.findall(text))


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    try:
        with open(file, encoding="utf-8-sig") as handle:
            yield handle
    except UnicodeDecodeError as error:
        raise IngestError(
            f"{file} is not UTF-8 text (byte {error.start}).", "Convert it to UTF-8, or move it away."
        ) from error
    except OSError as error:
        raise IngestError(f"{file} cannot be read: {error.strerror}.", "Check its permissions.") from error


@dataclass
class _Collector:
    """Counts on their way into a batch. words: tokens are words, not places in a vocabulary."""

    heldout: bool
    words: bool = False
    ids: dict[str, int] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)
    tokens: list[int | bytes] = field(default_factory=list)
    amounts: list[int] = field(default_factory=list)

    def client(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids))

    def add(self, name: str, token: int | bytes, amount: int) -> None:
        self.codes.append(self.client(name))
        self.tokens.append(token)
        self.amounts.append(amount)

    def batch(self) -> Batch:
        """Return the collected entries as a batch, and clear them."""
        ids, codes, amounts = list(self.ids), np.array(self.codes, np.int64), np.array(self.amounts, np.int64)
        if self.words:
            made = Batch(self.heldout, ids, codes, x=records_of(np.array(self.tokens, WORD), amounts))
        else:
            made = Batch(self.heldout, ids, codes, np.array(self.tokens, np.int32), amounts)
        for collected in (self.ids, self.codes, self.tokens, self.amounts):
            collected.clear()
        return made


@dataclass
class TextSource:
    """A folder of text files.

    client: "file" (id = relative path) or "folder" (id = name of the first sub-folder)
    vocabulary: None keeps the words; one that ends with `words.OTHER` counts all others there; one of
        `fedcore.population.pieces` splits words
    heldout: a folder with the same clients' held-out text, or None
    documents: deal to the client's two halves each "file" of a folder, whose id is its path in there, or each "section"
        of a file, whose id is its text: it stays in its half wherever it stands. None: deal nothing
    """

    folder: Path
    vocabulary: tuple[str, ...] | None
    tokeniser: Tokeniser = "words"
    client: str = "file"
    heldout: Path | None = None
    documents: str | None = None
    progress: Callable[[int, int], None] | None = None
    rule: Rule = STRIPPED

    dtype: None = None
    keyed: bool = True

    def __post_init__(self) -> None:
        if self.client not in ("file", "folder"):
            raise IngestError(
                f"In a folder of text a client is a file or a folder, not {self.client!r}.",
                "Use client='file' or 'folder'.",
            )
        wanted = "section" if self.client == "file" else "file"
        if self.documents not in (None, wanted):
            raise IngestError(
                f"Where a client is a {self.client} of text its documents are each {wanted}, not {self.documents!r}.",
                f"Use documents={wanted!r}; a client may be a 'file' of sections or a 'folder' of files.",
            )
        for folder in (self.folder, self.heldout):
            if folder is not None and not folder.is_dir():
                raise IngestError(f"{folder} is not a folder.", "Name a folder of text files.")
        if not text_files(self.folder):
            raise IngestError(f"The folder {self.folder} holds no file.", "Name a folder of text files.")

    @property
    def kind(self) -> Kind:
        return "words" if self.vocabulary is None else "counts"

    @property
    def features(self) -> int:
        return 1 if self.vocabulary is None else len(self.vocabulary)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.folder.resolve().name,)

    def batches(self, account: Account) -> Iterator[Batch]:
        features_of = splitter(self.vocabulary or ())
        parts = [(False, self.folder)] + ([(True, self.heldout)] if self.heldout is not None else [])
        files = [(heldout, folder, file) for heldout, folder in parts for file in text_files(folder)]
        words = self.vocabulary is None
        halves = [_Collector(False, words)]
        if self.heldout is not None or self.documents is not None:
            halves.append(_Collector(True, words))
        for number, (heldout, folder, file) in enumerate(files):
            name = self._client_of(file.relative_to(folder))
            account.stored += 1
            for second, text in self._parts(name, heldout, folder, file):
                collected = halves[second]
                collected.client(name)
                for token, amount in count_tokens(text, self.tokeniser).items():
                    features = (as_word(token),) if words else features_of(token)
                    if not features:
                        account.drop((token,), amount)
                    for feature in features:
                        collected.add(name, feature, amount)
                if len(collected.codes) >= BATCH_TOKENS:
                    yield collected.batch()
            if self.progress is not None:
                self.progress(number + 1, len(files))
        for collected in halves:
            yield collected.batch()

    def _parts(self, name: str, heldout: bool, folder: Path, file: Path) -> Iterator[tuple[bool, str]]:
        """(whether it belongs to the held-out part, text) of the pieces of a client's file, at least one."""
        if self.documents == "section":
            with _opened(file) as handle:
                yield from by_half(name, sections(handle))
            return
        if self.documents == "file":
            inside = Path(*file.relative_to(folder).parts[1:]).as_posix()
            heldout = bool(second_half([(name, inside)])[0])
        for text in pieces(file):
            yield heldout, text

    def _client_of(self, relative: Path) -> str:
        if self.client == "folder" and len(relative.parts) < 2:
            raise IngestError(
                f"{relative} is next to the clients' folders in {self.folder}, not in one of them.",
                "Move it into a folder, or use client='file'.",
            )
        name = relative.as_posix() if self.client == "file" else relative.parts[0]
        return named_ids([name], self.rule)[0]
