"""Files of records whose keys are in one range of a spill. Each process writes to one folder; the folders of several
processes are read one after the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

KEY = np.dtype(("<u8", (2,)))
ID = np.dtype([("k1", "<u8"), ("k2", "<u8"), ("length", "<i8")])  # of a client; the text of its id is in another file
LAST_KEY = 2**64 - 1


@dataclass
class Bucket:
    """folders: in the order of the source; the last one is written to. size: bytes that its records take while they are
    sorted. low, high: of the first keys. one_client: the key of the first; many: whether there are others
    """

    folders: tuple[Path, ...]
    size: int = 0
    low: int = LAST_KEY
    high: int = 0
    one_client: tuple[int, int] | None = None
    many: bool = False

    @classmethod
    def joined(cls, parts: Sequence[Bucket]) -> Bucket:
        """What several processes have written of this range."""
        named = [part for part in parts if part.one_client is not None]
        clients = {part.one_client for part in named}
        return cls(
            tuple(folder for part in named for folder in part.folders),
            sum(part.size for part in named),
            min((part.low for part in named), default=LAST_KEY),
            max((part.high for part in named), default=0),
            named[0].one_client if named else None,
            len(clients) > 1 or any(part.many for part in named),
        )

    def files(self, log: str) -> tuple[Path, ...]:
        """Those that there are of this log."""
        return tuple(file for folder in self.folders if (file := folder / log).exists())

    def append(self, log: str, records: np.ndarray) -> None:
        with open(self.folders[-1] / log, "ab") as handle:
            handle.write(np.ascontiguousarray(records).view(np.uint8).data)

    def note(self, ids: np.ndarray) -> None:
        """Clients that were added, records of ID."""
        self.low, self.high = min(self.low, int(ids["k1"].min())), max(self.high, int(ids["k1"].max()))
        first = (int(ids["k1"][0]), int(ids["k2"][0]))
        self.one_client = self.one_client or first
        self.many = (
            self.many or first != self.one_client or bool(((ids["k1"] != first[0]) | (ids["k2"] != first[1])).any())
        )

    def names(self, clients: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield pairs of at most `clients` records of ID and the bytes of their texts, until all were read."""
        for folder in self.folders:
            if (folder / "ids").exists():
                with open(folder / "text", "rb") as text:
                    for ids in pieces([folder / "ids"], ID, clients):
                        yield ids, np.frombuffer(text.read(int(ids["length"].sum())), np.uint8)

    def remove(self) -> None:
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def load(files: Sequence[Path], dtype: np.dtype) -> np.ndarray:
    """Their records, file by file."""
    if len(files) == 1:
        return np.fromfile(files[0], dtype)
    held = np.empty(sum(file.stat().st_size for file in files) // dtype.itemsize, dtype)
    raw, start = held.reshape(-1).view(np.uint8), 0
    for file in files:
        with open(file, "rb", buffering=0) as handle:
            while read := handle.readinto(raw[start:].data):
                start += read
    return held


def pieces(files: Sequence[Path], dtype: np.dtype, records: int) -> Iterator[np.ndarray]:
    """Yield their records, at most `records` at a time."""
    for file in files:
        with open(file, "rb") as handle:
            while len(piece := np.fromfile(handle, dtype, records)):
                yield piece
