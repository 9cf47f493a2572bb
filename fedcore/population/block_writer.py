"""One block while it is being written: whole clients go in, an immutable slot and its manifest entry come out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import cast

import numpy as np
import scipy

from fedcore.population import identifiers, layout, slots
from fedcore.population.arrays import ArrayWriter
from fedcore.population.block_table import BlockEntry, PartEntry, StoredDtype
from fedcore.population.blocks import Kind
from fedcore.population.checks import Rows
from fedcore.population.store import HELDOUT, TRAIN
from fedcore.population.words import LONGEST, RECORD, as_bytes


class PartWriter:
    """The arrays of train/ or heldout/ of one open block."""

    def __init__(self, folder: Path, kind: Kind, features: int, dtype: str | None, stream_bytes: int):
        self.folder, self.kind = folder, kind
        layout.write_group(folder)
        self.lengths: list[np.ndarray] = []
        self.total = 0
        if kind != "rows":
            self.indices = ArrayWriter(folder / "indices", np.dtype(np.int32), (), stream_bytes)
            self.values = ArrayWriter(folder / "counts", None, (), stream_bytes)
            self.records: list[np.ndarray] = []  # of words, until the dictionary of all of them is known
        else:
            self.values = ArrayWriter(folder / "x", np.dtype(dtype), (features,), stream_bytes)

    def empty_clients(self, clients: int) -> None:
        if clients:
            self.lengths.append(np.zeros(clients, np.int64))

    def append(self, data: scipy.sparse.csr_matrix | Rows) -> None:
        """Whole clients, checked."""
        if isinstance(data, tuple):
            ptr, x = data
            if self.kind == "words":
                self.append_words(np.diff(ptr), x)
            else:
                self.append_rows(np.diff(ptr), x)
        else:
            self.append_counts(data)

    def append_client(self, tiles: Iterable[np.ndarray]) -> int:
        """One client with dense rows that need not fit in memory, checked. Returns their bytes."""
        rows, size = 0, 0
        for x in tiles:
            self.append_rows(np.zeros(0, np.int64), x)
            rows, size = rows + len(x), size + x.nbytes
        self.lengths.append(np.array([rows], np.int64))
        return size

    def append_counts(self, matrix: scipy.sparse.csr_matrix) -> None:
        self.lengths.append(np.diff(matrix.indptr).astype(np.int64))
        self.indices.append(matrix.indices.astype(np.int32, copy=False))
        self.values.append(_narrowed(matrix.data))
        self.total += int(matrix.data.sum(dtype=np.int64))

    def append_rows(self, lengths: np.ndarray, x: np.ndarray) -> None:
        self.lengths.append(lengths)
        self.values.append(x)
        self.total += len(x)

    def append_words(self, lengths: np.ndarray, records: np.ndarray) -> None:
        self.lengths.append(lengths)
        self.records.append(records)
        self.total += int(records["count"].sum(dtype=np.int64))

    def _close_words(self) -> int:
        """Writes the dictionary of the part; returns its size."""
        held = np.concatenate([np.empty(0, RECORD), *self.records])
        self.records = []
        words, which = np.unique(held["word"], return_inverse=True)
        self.indices.append(which.astype(np.int32))
        self.values.append(_narrowed(held["count"]))
        dictionary = ArrayWriter(self.folder / "words", np.dtype(np.uint8), (LONGEST,))
        dictionary.append(as_bytes(words))
        dictionary.close()
        return len(words)

    def close(self) -> PartEntry:
        words = self._close_words() if self.kind == "words" else None
        ptr = np.concatenate([[0], *self.lengths]).astype(np.int64)
        np.cumsum(ptr, out=ptr)
        pointers = ArrayWriter(self.folder / ("ptr" if self.kind == "rows" else "indptr"), np.dtype(np.int64))
        pointers.append(ptr)
        pointers.close()
        if self.kind != "rows":
            self.indices.close()
        dtype = self.values.close()
        return PartEntry(entries=int(ptr[-1]), total=self.total, dtype=cast(StoredDtype, str(dtype)), words=words)


class BlockWriter:
    """One open block: receives whole clients (or one client's rows in tiles) and becomes a BlockEntry."""

    def __init__(self, folder: Path, first: int, kind: Kind, features: int, dtype: str | None, stream_bytes: int):
        self.folder, self.first = folder, first
        self.part = (kind, features, dtype, stream_bytes)
        layout.write_group(folder)
        layout.write_group(folder / "ids")
        self.train = PartWriter(folder / TRAIN, *self.part)
        self.heldout: PartWriter | None = None
        self.clients, self.bytes = 0, 0
        self.id_lengths: list[np.ndarray] = []
        self.id_bytes = ArrayWriter(folder / "ids" / "bytes", np.dtype(np.uint8))

    def heldout_part(self) -> PartWriter:
        """The held-out part, made when it is first needed; the clients before have none."""
        if self.heldout is None:
            self.heldout = PartWriter(self.folder / HELDOUT, *self.part)
            self.heldout.empty_clients(self.clients)
        return self.heldout

    def add_ids(self, texts: list[str]) -> None:
        data, lengths = identifiers.encode(texts)
        self.id_bytes.append(data)
        self.id_lengths.append(lengths)
        self.clients += len(texts)

    def close(self) -> BlockEntry:
        ptr = np.cumsum(np.concatenate([[0], *self.id_lengths]).astype(np.int64))
        pointers = ArrayWriter(self.folder / "ids" / "ptr", np.dtype(np.int64))
        pointers.append(ptr)
        pointers.close()
        self.id_bytes.close()
        train = self.train.close()
        heldout = None if self.heldout is None else self.heldout.close()
        digest, size = slots.write_list(self.folder)
        return BlockEntry(
            slot=self.folder.name,
            first=self.first,
            clients=self.clients,
            train=train,
            heldout=heldout,
            id_bytes=int(ptr[-1]),
            bytes=size,
            digest=digest,
        )


def _narrowed(values: np.ndarray) -> np.ndarray:
    """The values as int32 if every one fits, else as int64."""
    small = not len(values) or values.max() <= np.iinfo(np.int32).max
    return values.astype(np.int32 if small else np.int64)
