"""Ids that come twice in a version, or differ in case and blanks alone, among more clients than memory holds.

What is compared of an id are numbers of 64 bits. Up to HELD clients they are in memory. Beyond that they are in files,
each of one range of the first number, and are compared file by file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from fedcore.errors import PopulationError
from fedcore.population.identifiers import folded
from fedcore.storage.scratch import scratch_folder

HELD = 2**20  # clients in memory
FILES = 256  # of a range each
EMPTY = hash("")  # of clients who were forgotten


def _hashes(texts: Sequence[str]) -> np.ndarray:
    """(C,) int64, Python's hash of each text: for comparisons in this process only, with a key that is its own."""
    return np.fromiter(map(hash, texts), np.int64, len(texts))


class Numbers:
    """Rows of numbers of ids, in memory up to HELD rows, and beyond that in files, each of one range of the first
    number. They come back in that order.

    width: numbers of a row, uint64 or int64 of the same bits
    place: a folder to make for the files; None: a temporary folder, only for numbers that reveal no id
    """

    def __init__(self, width: int, place: Path | None = None) -> None:
        self.width, self.place = width, place
        self._held: list[np.ndarray] = []
        self._count = 0
        self._folder: Path | None = None
        self._opened = ExitStack()

    def add(self, rows: np.ndarray) -> None:
        """rows: (C, width). Raises PopulationError if temporary files find no room; OSError if those at `place`."""
        self._held.append(rows.view(np.uint64))
        self._count += len(rows)
        if self._count > HELD:
            self._write()

    def parts(self) -> Iterator[np.ndarray]:
        """(C, width) uint64, all rows, so that equal first numbers come together and no part has a first number of an
        earlier one.
        """
        if self._folder is None:
            self._held = [np.concatenate([np.zeros((0, self.width), np.uint64), *self._held])]
            yield self._held[0]
            return
        self._write()
        for at in range(FILES):
            yield np.fromfile(self._folder / str(at), np.uint64).reshape(-1, self.width)

    def close(self) -> None:
        """Remove the files."""
        self._held.clear()
        self._opened.close()

    def _write(self) -> None:
        if not self._held:
            return
        rows = np.concatenate(self._held)
        self._held.clear()
        self._count = 0
        number = rows[:, 0] >> np.uint64(64 - FILES.bit_length() + 1)
        rows = rows[np.argsort(number.astype(np.uint8), kind="stable")]
        stops = np.cumsum(np.bincount(number.astype(np.int64), minlength=FILES))
        try:
            if self._folder is None:
                self._folder = self.place or self._opened.enter_context(scratch_folder())
                if self.place is not None:
                    self.place.mkdir()
                    self._opened.callback(shutil.rmtree, self.place, ignore_errors=True)
            for at, some in enumerate(np.split(rows, stops[:-1])):
                with open(self._folder / str(at), "ab") as file:
                    file.write(some.tobytes())
        except OSError as error:
            if self.place is not None:
                raise
            raise PopulationError(
                f"The ids of clients cannot be compared in temporary files: {error.strerror}.",
                f"Set TMPDIR to a folder with {rows.itemsize * rows.shape[1]} free bytes for each client.",
            ) from error


class SeenIds:
    """Notes the ids of a version's clients and finds those that come twice.

    folds: whether to find ids that are equal once `folded` as well
    """

    def __init__(self, folds: bool) -> None:
        self.folds = folds
        self._numbers = Numbers(4 if folds else 2)  # what decides the file first, the client's index last
        self._folding_changes = False

    def add(self, ids: Sequence[str], first: int, people: Sequence[str] | None = None) -> None:
        """ids: of clients with the indices first, first + 1, ...; people: of entries, the client of each

        Raises PopulationError if there is no room for files.
        """
        own, index = _hashes(ids), np.arange(first, first + len(ids))
        columns = [own, index]
        if self.folds:
            texts = list(ids if people is None else people)
            person, other = own if people is None else _hashes(texts), folded(texts)
            self._folding_changes |= other is not texts
            columns = [person if other is texts else _hashes(other), person, own, index]
        self._numbers.add(np.stack(columns, axis=1)[own != EMPTY])

    def twice(self, first: np.ndarray, ids_of: Callable[[int], np.ndarray]) -> str | None:
        """An id that several clients have; None if there is none.

        first: (B,) the index of the first client of each block; ids_of: (C,) str, the ids of a block
        """
        clients = np.sort(np.concatenate([_indices_of_equals(rows) for rows in self._numbers.parts()]))
        block, seen = np.searchsorted(first, clients, side="right") - 1, set[str]()
        for number in np.unique(block).tolist():
            # Equal hashes are nearly always equal ids; look at the ids themselves to be sure.
            for one in ids_of(number)[clients[block == number] - first[number]].tolist():
                if one in seen:
                    return str(one)
                seen.add(one)
        return None

    def alike(self) -> int:
        """How many groups of different ids are equal once folded."""
        return sum(map(_groups_of_alike, self._numbers.parts())) if self._folding_changes else 0

    def close(self) -> None:
        """Remove the files."""
        self._numbers.close()


def _indices_of_equals(rows: np.ndarray) -> np.ndarray:
    """Of the clients whose id has the hash of another one's."""
    own = rows[:, -2]
    ordered = np.sort(own)
    return rows[np.isin(own, ordered[1:][ordered[1:] == ordered[:-1]]), -1].view(np.int64)


def _groups_of_alike(rows: np.ndarray) -> int:
    order = np.lexsort((rows[:, 1], rows[:, 0]))
    other, person = rows[order, 0], rows[order, 1]
    return len(np.unique(other[1:][(other[1:] == other[:-1]) & (person[1:] != person[:-1])]))
