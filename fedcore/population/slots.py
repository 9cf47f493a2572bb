"""The digests of a block's slot: which files it has, and what is in each of them.

`digests.json` of a slot lists every other file of it with its length and BLAKE3; the manifest has the BLAKE3 of this
list. So a file that was exchanged for another one, or for one of another block, is noticed when it is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedcore.errors import PopulationError
from fedcore.population import layout
from fedcore.population.block_table import BlockEntry
from fedcore.storage import digests, files
from fedcore.storage import objects as object_storage
from fedcore.storage.files import Place, is_remote

LIST = "digests.json"
SCHEMA = 2
LISTS = 2048  # kept for each process

Digests = dict[str, tuple[int, str]]  # by relative name: length, BLAKE3
_fetched: ContextVar[tuple[Place | None, Mapping[str, bytes]]] = ContextVar("fetched", default=(None, {}))


class SlotDamaged(ValueError):
    """What is stored is not what was written. Turned into ChunkError by those who know the block."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the files of a block are, and what they must be. digest: of the list; empty for a void block."""

    folder: Place
    digest: str

    @classmethod
    def of(cls, path: Place, entry: BlockEntry) -> Slot:
        """path: of the population"""
        return cls(layout.block_folder(path, entry.slot), entry.fingerprint)

    def digests(self) -> Digests:
        """Raises SlotDamaged, PopulationError."""
        return _digests(str(self.folder), self.digest, _place_of(self.folder))

    def has(self, name: str, *content: Any) -> bool:
        """Whether this is the content (bytes, or like them; pieces in order) of the file of this name. Raises what
        `digests` raises."""
        expected = self.digests()
        return name in expected and expected[name][1] == digests.of_data(*content)


@contextmanager
def fetched(slot: Slot, descriptions: Sequence[str], others: Sequence[str]) -> Iterator[None]:
    """Inside, `file_in` and `files_in` have these files of a slot behind a URL, which are fetched at the same time. One
    that is not there is left out. descriptions: those that a process reads once. Raises Unreachable.
    """
    if not is_remote(slot.folder) or not others:
        yield
        return
    read = _read(str(slot.folder), slot.digest)
    first = [name for name in (LIST, *descriptions) if name not in read]
    token = _fetched.set((slot.folder, object_storage.read_many(slot.folder, [*first, *others])))
    try:
        yield
        read.update(first)
    finally:
        _fetched.reset(token)


@lru_cache(maxsize=LISTS)
def _read(folder: str, digest: str) -> set[str]:
    """Names of the descriptions that were read of this slot."""
    return set()


def file_in(folder: Place, name: str) -> bytes:
    """A small file of a slot. Raises OSError, Unreachable."""
    known, found = _fetched.get()
    return found[name] if known == folder and name in found else files.read_bytes(files.below(folder, name))


def files_in(folder: Place, names: Sequence[str]) -> dict[str, bytes]:
    """{name: content} of those files of a slot behind a URL that exist. Raises Unreachable."""
    known, found = _fetched.get()
    here = {name: found[name] for name in names if name in found} if known == folder else {}
    missing = [name for name in names if name not in here]
    return {**here, **(object_storage.read_many(folder, missing) if missing and is_remote(folder) else {})}


def _place_of(folder: Place) -> tuple[int, ...]:
    """What is different once the folder, or something in it, is replaced by a link: then links are looked for again.
    A relative path may also be another folder than before. Empty of a URL, or if it is not there."""
    try:
        found = None if is_remote(folder) else os.lstat(folder)
    except OSError:
        return ()
    return () if found is None else (found.st_dev, found.st_ino, found.st_mtime_ns)


@lru_cache(maxsize=LISTS)
def _digests(folder: str, digest: str, place: tuple[int, ...]) -> Digests:
    where = files.place(folder)
    try:
        if not is_remote(where):
            layout.names_of(where)  # refuses links, which lead to data outside the population
        content = file_in(where, LIST)
    except PopulationError:
        raise
    except OSError as error:
        raise SlotDamaged(f"{LIST} cannot be read ({error.strerror or type(error).__name__})") from error
    if digests.of_data(content) != digest:
        raise SlotDamaged(f"{LIST} is not that of this block")
    return _decoded(content)


def _encoded(found: Digests) -> bytes:
    return digests.canonical({"schema": SCHEMA, "files": {name: list(entry) for name, entry in found.items()}})


def _decoded(content: bytes) -> Digests:
    """Of a list whose digest is right, so that a writer made it."""
    return {name: (length, digest) for name, (length, digest) in json.loads(content)["files"].items()}


def write_list(folder: Path) -> tuple[str, int]:
    """Hash and flush a finished slot, and write its list. Returns (digest of the list, bytes of all files). Raises
    OSError.
    """
    found: Digests = {}
    for name in layout.names_of(folder):
        found[name] = (folder / name).stat().st_size, digests.of_file(folder / name)
    content = _encoded(found)
    with files.opened(folder / LIST) as handle:
        handle.write(content)
    files.seal(folder)
    files.flush(folder.parent)
    return digests.of_data(content), sum(length for length, _ in found.values()) + len(content)


# --- whole slots ------------------------------------------------------------------------------------------------------


class Fingerprint:
    """(fingerprint, bytes) of a slot whose files are given one after another, in the order of their names."""

    def __init__(self) -> None:
        self.bytes = 0
        self._found: Digests = {}
        self._list = b""

    def add(self, name: str, content: bytes) -> None:
        self.bytes += len(content)
        if name == LIST:
            self._list = content
        else:
            self._found[name] = len(content), digests.of_data(content)

    def add_file(self, name: str, file: Path) -> None:
        """A file that need not fit into memory. Raises OSError."""
        if name == LIST:
            self.add(name, file.read_bytes())
            return
        size = file.stat().st_size
        self._found[name] = size, digests.of_file(file)
        self.bytes += size

    def result(self) -> tuple[str, int]:
        content = _encoded(self._found)
        return (digests.of_data(content) if content == self._list else ""), self.bytes

    def wrong(self, slot: Slot) -> str:
        """Names, in brackets, of files that are missing, unknown or not what they were. Raises SlotDamaged,
        PopulationError.
        """
        expected = slot.digests()
        names = sorted(expected.keys() | self._found.keys())
        return f"({', '.join(name for name in names if expected.get(name) != self._found.get(name))})"


def read(slot: Slot) -> Fingerprint:
    """Of what is stored. Raises OSError, PopulationError."""
    found = Fingerprint()
    if is_remote(slot.folder):
        for name, content in object_storage.contents(slot.folder):
            found.add(name, content)
    else:
        for name in layout.names_of(slot.folder):
            found.add_file(name, slot.folder / name)
    return found


def fingerprint(slot: Slot) -> tuple[str, int]:
    """(fingerprint, bytes) of what is stored; those of the manifest if all is well. Raises OSError, PopulationError."""
    return read(slot).result()
