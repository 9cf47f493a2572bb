"""Text as a source: one file, or one sub-folder, is one client; its tokens are counted against a vocabulary."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.blocks import Kind
from fedcore.population.ingest.batches import Account, Batch, refuse_odd

Tokeniser = Literal["words", "identifiers"]
WORDS = re.compile(r"[a-z]+(?:'[a-z]+)*")  # of lower-cased text; apostrophes only between letters
IDENTIFIERS = re.compile(r"[A-Za-z_]+")
INSIDE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_'")
PIECE = 1 << 20  # characters read at a time
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


def count_tokens(file: Path, tokeniser: Tokeniser) -> Iterator[Counter[str]]:
    """Counts of the tokens in the pieces of a file; a piece ends between two words. Raises IngestError."""
    pattern = WORDS if tokeniser == "words" else IDENTIFIERS
    rest = ""
    try:
        with open(file, encoding="utf-8-sig") as handle:
            while piece := handle.read(PIECE):
                text = rest + (piece.lower() if tokeniser == "words" else piece)
                cut = len(text)
                while cut and text[cut - 1] in INSIDE:  # the last token may go on in the next piece
                    cut -= 1
                text, rest = text[:cut], text[cut:]
                yield Counter(pattern.findall(text))
            yield Counter(pattern.findall(rest))
    except UnicodeDecodeError as error:
        raise IngestError(
            f"{file} is not UTF-8 text (byte {error.start}).", "Convert it to UTF-8, or move it away."
        ) from error
    except OSError as error:
        raise IngestError(f"{file} cannot be read: {error.strerror}.", "Check its permissions.") from error


@dataclass
class _Collector:
    """Counts on their way into a batch."""

    heldout: bool
    ids: dict[str, int] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    amounts: list[int] = field(default_factory=list)

    def client(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids))

    def add(self, name: str, token: int, amount: int) -> None:
        self.codes.append(self.client(name))
        self.tokens.append(token)
        self.amounts.append(amount)

    def batch(self) -> Batch:
        """What was collected; starts anew."""
        codes, tokens = np.array(self.codes, np.int64), np.array(self.tokens, np.int32)
        made = Batch(self.heldout, list(self.ids), codes, tokens, np.array(self.amounts, np.int64))
        for collected in (self.ids, self.codes, self.tokens, self.amounts):
            collected.clear()
        return made


@dataclass
class TextSource:
    """A folder of text files.

    client: "file" (id = relative path) or "folder" (id = name of the first sub-folder)
    heldout: a folder with the same clients' held-out text, or None
    """

    folder: Path
    vocabulary: tuple[str, ...]
    tokeniser: Tokeniser = "words"
    client: str = "file"
    heldout: Path | None = None
    progress: Callable[[int, int], None] | None = None

    kind: Kind = "counts"
    dtype: None = None
    keyed: bool = True

    def __post_init__(self):
        if self.tokeniser not in ("words", "identifiers"):
            raise IngestError(f"There is no tokeniser {self.tokeniser!r}.", "Use 'words' or 'identifiers'.")
        if self.client not in ("file", "folder"):
            raise IngestError(
                f"In a folder of text a client is a file or a folder, not {self.client!r}.",
                "Use client='file' or 'folder'.",
            )
        for folder in (self.folder, self.heldout):
            if folder is not None and not folder.is_dir():
                raise IngestError(f"{folder} is not a folder.", "Name a folder of text files.")
        if not text_files(self.folder):
            raise IngestError(f"The folder {self.folder} holds no file.", "Name a folder of text files.")

    @property
    def features(self) -> int:
        return len(self.vocabulary)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.folder.resolve().name,)

    def batches(self, account: Account) -> Iterator[Batch]:
        index = {token: number for number, token in enumerate(self.vocabulary)}
        parts = [(False, self.folder)] + ([(True, self.heldout)] if self.heldout is not None else [])
        files = [(heldout, folder, file) for heldout, folder in parts for file in text_files(folder)]
        collected = _Collector(False)
        for number, (heldout, folder, file) in enumerate(files):
            if heldout != collected.heldout:
                yield collected.batch()
                collected = _Collector(heldout)
            name = self._client_of(file.relative_to(folder))
            collected.client(name)
            for counted in count_tokens(file, self.tokeniser):
                for token, amount in counted.items():
                    feature = index.get(token)
                    if feature is None:
                        account.drop((token,), amount)
                    else:
                        collected.add(name, feature, amount)
                if len(collected.codes) >= BATCH_TOKENS:
                    yield collected.batch()
            if self.progress is not None:
                self.progress(number + 1, len(files))
        yield collected.batch()

    def _client_of(self, relative: Path) -> str:
        if self.client == "file":
            return relative.as_posix()
        if len(relative.parts) < 2:
            raise IngestError(
                f"{relative} lies beside the clients' folders in {self.folder}.",
                "Move it into a folder, or use client='file'.",
            )
        return relative.parts[0]
