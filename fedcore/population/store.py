"""Reading a population: open a version by its manifest, read one block without touching its neighbours."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, cast

import numpy as np
import scipy

from fedcore.errors import ChunkError, ManifestError, PopulationError, WrongKind
from fedcore.population import arrays, identifiers, layout, slots
from fedcore.population import manifest as manifests
from fedcore.population.block_table import DTYPES, BlockEntry, Blocks, PartEntry
from fedcore.population.blocks import FLOAT32_EXACT, ClientBlock, CountsBlock, Kind, RowsBlock, segment_sums
from fedcore.population.checks import Rows
from fedcore.population.chunks import first_files
from fedcore.population.cohorts import FOUNDERS, clients_of, holes_of, mask
from fedcore.population.cohorts import of_each as cohort_of_each
from fedcore.population.manifest import Manifest
from fedcore.population.periods import label_of, stored_ids
from fedcore.population.same_ids import SeenIds
from fedcore.population.slots import Slot
from fedcore.population.streaming import StoredRows
from fedcore.population.words import LONGEST, RECORD, WORD, WordsBlock, from_bytes
from fedcore.storage import files
from fedcore.storage.ranges import Ranges, in_words

TRAIN, HELDOUT = "train", "heldout"
RANGE_CLIENTS = 512  # whose counts are checked at a time
PIECE = 1 << 16  # entries
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `Population.verify` found. problems: one line for each damaged block or file; empty if all is well. remarks:
    what is no damage.
    """

    blocks: int
    bytes: int
    problems: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Population:
    """One version of a population. Open it with `Population.open`; it holds no file handles and pickles small.

    path: the population's folder, a Path or the UPath of a URL; manifest: of this version
    """

    path: layout.Place
    manifest: Manifest

    @classmethod
    def open(cls, path: str | layout.Place, version: int | None = None) -> Population:
        """The newest version, or the version of this number. path: a folder, or a URL such as s3://bucket/folder.

        Raises PopulationNotFound if there is none, ManifestError if its manifest cannot be trusted, PopulationError
        if a URL cannot be reached, ConfigError if it cannot be used.
        """
        folder = layout.place(path)
        return cls(folder, manifests.load(folder, version))

    @property
    def location(self) -> str:
        """The absolute path of the folder, or the URL: what another process can open."""
        return files.absolute(self.path)

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def id(self) -> str:
        """The population id: the same in every version; the privacy budget belongs to it."""
        return self.manifest.population_id

    @property
    def checksum(self) -> str:
        """Of the manifest, by which runs and the ledger know this version."""
        return manifests.checksum(self.manifest)

    @property
    def kind(self) -> Kind:
        return self.manifest.kind

    @property
    def n_clients(self) -> int:
        return self.manifest.n_clients

    @property
    def n_rows(self) -> int:
        return self.manifest.n_rows

    @property
    def features(self) -> int:
        return self.manifest.features

    @property
    def clients_per_leaf(self) -> int:
        return self.manifest.clients_per_leaf

    @property
    def blocks(self) -> Blocks:
        return self.manifest.blocks

    @property
    def has_heldout(self) -> bool:
        """Whether any client has held-out data."""
        return self.manifest.has_heldout

    def versions(self) -> list[int]:
        """All committed versions at this path."""
        return layout.versions(self.path)

    def checksums(self) -> dict[int, str]:
        """`checksum` of every version, by its number; also of those that were removed since."""
        there = {version: manifests.load(self.path, version) for version in self.versions()}
        return {**dict(self.manifest.removed), **{n: manifests.checksum(one) for n, one in there.items()}}

    def participants(self, cohorts: Ranges | None = None) -> Ranges:
        """Return the index ranges [first, stop) of the clients in these cohorts. The cohorts are given as ranges
        (first, last) of their numbers; None: all clients. The result is merged and ascending, without forgotten
        clients.

        Raises PopulationError for a cohort that this version does not have.
        """
        made = self.manifest
        order = made.order or ((FOUNDERS, made.n_clients),)
        most = len(made.cohorts) or FOUNDERS
        if cohorts and not (FOUNDERS <= cohorts[0][0] and cohorts[-1][1] <= most):
            raise PopulationError(
                f"Version {self.version} of {self.path} does not have all of the cohorts {in_words(cohorts)}.",
                f"It has the cohorts {in_words(((FOUNDERS, most),))}.",
            )
        return clients_of(order, ((FOUNDERS, most),) if cohorts is None else cohorts)

    @property
    def holes(self) -> Ranges:
        """Index ranges [first, stop) of clients that were forgotten: they have an empty id, and no rows."""
        return holes_of(self.manifest.order)

    def are_holes(self, first: int, clients: int) -> np.ndarray:
        """(clients,) bool: which of the clients from index `first` on were forgotten."""
        return mask(self.holes, first, clients)

    def vocabulary(self) -> tuple[str, ...] | None:
        """The tokens, one for each feature; None if the population has no vocabulary. Raises ManifestError."""
        named = self.manifest.vocabulary
        if named is None:
            return None
        file = layout.vocabulary_file(self.path, named.sha256)
        remedy = "Restore it from a backup, or ingest the population again."
        try:
            data = layout.read_bytes(file)
        except OSError as error:
            raise ManifestError(f"The vocabulary {file} cannot be read: {error.strerror}.", remedy) from error
        if hashlib.sha256(data).hexdigest() != named.sha256:
            raise ManifestError(f"The vocabulary {file} does not match its checksum.", remedy)
        return tuple(data.decode("utf-8").split("\n")[:-1])

    def read(self, index: int, heldout: bool = False) -> ClientBlock:
        """Block `index` of counts or rows, decoded. With heldout=True its `heldout` holds the same clients' held-out
        data.

        Training reads without: the held-out files are then not touched. Raises ChunkError if stored data are
        missing, truncated or altered; PopulationError if there is no such block or nothing is held out; WrongKind for
        words, which `words` reads.
        """
        entry = self._entry(index)
        if heldout and not self.has_heldout:
            raise PopulationError(
                f"The population {self.path} has no held-out part.",
                "Ingest it with one, or evaluate on the training part.",
            )
        if self.kind == "words":
            raise WrongKind(
                f"The population {self.path} holds words without a vocabulary.",
                "Release a vocabulary with `fedcore population vocabulary`, then `fedcore population encode`.",
            )
        read: Callable[..., ClientBlock] = self._counts if self.kind == "counts" else self._rows
        return self._in_block(index, self._at_once, read, entry, heldout)

    def words(self, index: int, heldout: bool = False) -> WordsBlock:
        """The words of the clients of block `index` of a population of words; heldout: those held out.

        Raises ChunkError; PopulationError for another kind.
        """
        if self.kind != "words":
            raise WrongKind(f"The population {self.path} holds {self.kind}, and no words.")
        entry = self._entry(index)
        name, part = HELDOUT if heldout else TRAIN, self._part(entry, heldout)
        return self._in_block(index, self._words_part, entry, name, part)

    def client_ids(self, index: int) -> np.ndarray:
        """(C,) str, the ids of the clients of block `index`, empty for those that were forgotten. Raises ChunkError."""
        entry = self._entry(index)
        if entry.void:
            return np.full(entry.clients, "")
        return self._in_block(index, stored_client_ids, self._slot(entry), entry)

    def decoded_bytes(self, index: int, heldout: bool = False) -> int:
        """Bytes of the training part of block `index` once decoded: rows, or counts with their tokens.

        heldout: of its held-out part as well
        """
        entry = self._entry(index)
        parts = [entry.train, entry.heldout] if heldout and entry.heldout is not None else [entry.train]
        if self.kind != "rows":
            return sum(part.entries for part in parts) * self._width
        return sum(part.entries * np.dtype(part.dtype).itemsize for part in parts) * self.features

    @property
    def _width(self) -> int:
        """Decoded bytes of an entry of counts: the count with its token, or with its word."""
        return np.dtype(RECORD).itemsize if self.kind == "words" else 8

    def sizes(self) -> list[int]:
        """`decoded_bytes` of every block."""
        numbers = self.blocks.numbers
        entries, dtypes = numbers["train.entries"].tolist(), numbers["train.dtype"].tolist()
        if self.kind != "rows":
            return [each * self._width for each in entries]
        widths = [np.dtype(dtype).itemsize * self.features for dtype in DTYPES]
        return [each * widths[dtype] for each, dtype in zip(entries, dtypes, strict=True)]

    def stream(self, index: int) -> RowsBlock:
        """Block `index` of dense rows, each read only when it is used (`StoredRows`), which may raise ChunkError."""
        if self.kind != "rows":
            raise PopulationError("Only dense rows are streamed.", "Read a block of counts with `read`.")
        entry = self._entry(index)
        part = self._part(entry)
        if part is None:
            return self._rows_part(entry, TRAIN, None)
        ptr = self._in_block(index, self._pointers, entry, TRAIN, part)
        stored = (self._slot(entry), f"{TRAIN}/x", (part.entries, self.features), part.dtype)
        chunk = self._in_block(index, arrays.chunk_length, *stored)
        read = partial(self._in_block, index, arrays.read, *stored)
        rows = StoredRows(read, part.entries, self.features, part.dtype, chunk)
        # `StoredRows` does what is done to the rows of a block: slices, selections, np.asarray.
        return RowsBlock(entry.first, entry.first // self.clients_per_leaf, ptr, cast(np.ndarray, rows))

    def client_bytes(self, index: int) -> np.ndarray:
        """(C,) int64: decoded bytes of each client of block `index`, held-out data included."""
        entry = self._entry(index)
        total = np.zeros(entry.clients, np.int64)
        for name, part in ((TRAIN, self._part(entry)), (HELDOUT, entry.heldout)):
            if part is not None:
                width = np.dtype(part.dtype).itemsize * self.features if self.kind == "rows" else self._width
                total += np.diff(self._in_block(index, self._pointers, entry, name, part)) * width
        return total

    def read_clients(
        self, index: int, start: int, stop: int, heldout: bool = False
    ) -> scipy.sparse.csr_matrix | Rows | None:
        """Clients start .. stop - 1 of block `index` as they can be written again: int64 CSR counts, (ptr, x), or (ptr,
        records) of words.

        None if the block has no held-out data and they were asked for. Raises ChunkError.
        """
        entry = self._entry(index)
        name, part = HELDOUT if heldout else TRAIN, self._part(entry, heldout)
        if part is None and not heldout:  # a void block
            if self.kind == "words":
                return np.zeros(stop - start + 1, np.int64), np.empty(0, RECORD)
            if self.kind == "counts":
                return scipy.sparse.csr_matrix((stop - start, self.features), dtype=np.int64)
            return np.zeros(stop - start + 1, np.int64), np.empty((0, self.features), self.manifest.dtype)
        if part is None:
            return None
        if self.kind == "words":
            return self.words(index, heldout).records(start, stop)
        ptr = self._in_block(index, self._pointers, entry, name, part)[start : stop + 1]
        low, high = int(ptr[0]), int(ptr[-1])

        def values(array: str, dtype: str, *tail: int) -> np.ndarray:
            stored = (self._slot(entry), f"{name}/{array}", (part.entries, *tail), dtype)
            return self._in_block(index, arrays.read, *stored, low, high)

        if self.kind == "rows":
            return ptr - low, values("x", part.dtype, self.features)
        counts = values("counts", part.dtype).astype(np.int64)
        return scipy.sparse.csr_matrix(
            (counts, values("indices", "int32"), ptr - low), shape=(stop - start, self.features)
        )

    def client_tiles(self, index: int, client: int, max_bytes: int, heldout: bool = False) -> Iterator[np.ndarray]:
        """The dense rows of one client of block `index`, in tiles of about max_bytes. Raises ChunkError."""
        entry = self._entry(index)
        name, part = HELDOUT if heldout else TRAIN, self._part(entry, heldout)
        if part is None:
            return
        low, high = self._in_block(index, self._pointers, entry, name, part)[client : client + 2].tolist()
        stored = (self._slot(entry), f"{name}/x", (part.entries, self.features), part.dtype)
        step = max(max_bytes // (np.dtype(part.dtype).itemsize * self.features), 1)
        for start in range(low, high, step):
            stop = min(start + step, high)
            yield self._in_block(index, arrays.read, *stored, start, stop)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Reads everything again: vocabulary, every file of every slot, every block and every id; no id may come twice,
        and exactly those of forgotten clients are empty.

        progress: called with (blocks done, blocks). Damage is reported, not raised; storage that cannot be reached
        raises PopulationError.
        """
        problems: list[str] = []
        total = 0
        try:
            self.vocabulary()
        except ManifestError as error:
            problems.append(error.message)
        with closing(SeenIds(folds=False)) as seen:
            for index, entry in enumerate(self.blocks):
                problem, size, ids = self._verify_block(index, entry)
                total += size
                if problem:
                    problems.append(problem)
                seen.add(ids.tolist(), entry.first)  # none of a damaged block
                if not problem and not np.array_equal(ids == "", self.are_holes(entry.first, entry.clients)):
                    problems.append(
                        f"Block {index} (slot {entry.slot}): the clients without an id are not those forgotten."
                    )
                elif not problem and (strange := self._of_another_spelling(ids)):
                    problems.append(f"Block {index} (slot {entry.slot}): {strange}")
                elif not problem and (strange := self._of_another_period(entry, ids)):
                    problems.append(f"Block {index} (slot {entry.slot}): the entry {strange!r} is not of its period.")
                if progress is not None:
                    progress(index + 1, len(self.blocks))
            if twice := seen.twice(self.blocks.first, self.client_ids):
                problems.append(f"The client id {twice!r} is there twice.")
        return VerifyReport(len(self.blocks), total, tuple(problems), self._unfinished())

    def _unfinished(self) -> tuple[str, ...]:
        if layout.read_beside(self.path, layout.FORGET) is None:
            return ()
        return (
            "Clients are being forgotten, or were and it was interrupted: versions that have them may be there still. "
            "The same command again finishes it, as does whatever writes to the population.",
        )

    def _of_another_spelling(self, ids: np.ndarray) -> str | None:
        """What is wrong with the first id that is not as the population's rule spells it; None if all are."""
        texts, entries = ids.tolist(), self.manifest.period is not None
        try:
            made = stored_ids(texts, self.manifest.id_rule, entries)
        except PopulationError as error:
            return error.message
        wrong = next((one for one, other in zip(texts, made, strict=True) if one != other), None)
        return wrong and f"the client id {wrong!r} is not in normal form ({self.manifest.id_rule})."

    def _of_another_period(self, entry: BlockEntry, ids: np.ndarray) -> str | None:
        """The first id whose label is not that of its cohort, where cohorts are calendar periods."""
        if self.manifest.period is None:
            return None
        labels = np.array(["", *(cohort.period or "" for cohort in self.manifest.cohorts)])
        each = cohort_of_each(self.manifest.order, entry.first, entry.clients)
        wrong = np.array([label_of(one) for one in ids.tolist()]) != labels[each]
        return str(ids[wrong.argmax()]) if wrong.any() else None

    def _verify_block(self, index: int, entry: BlockEntry) -> tuple[str, int, np.ndarray]:
        """(what is wrong or "", stored bytes, ids of the clients if nothing is)."""
        slot, wrong, ids = self._slot(entry), "", np.full(0, "")
        if entry.void:
            return "", 0, self.client_ids(index)
        try:
            found = slots.read(slot)
            if found.result()[0] != entry.fingerprint:
                wrong = f"the stored files do not match their checksum {found.wrong(slot)}".rstrip()
        except OSError as error:
            return f"Block {index} (slot {entry.slot}) cannot be read: {error.strerror}.", 0, ids
        except slots.SlotDamaged as damage:
            return self._damaged(index, str(damage)).message, 0, ids
        try:
            there = self.client_ids(index)
            self._read_everything(index, entry)  # which may find more exactly what is wrong
        except ChunkError as error:
            return error.message, found.bytes, ids
        if wrong:
            return f"Block {index} (slot {entry.slot}): {wrong}.", found.bytes, ids
        return "", found.bytes, there

    def _read_everything(self, index: int, entry: BlockEntry) -> None:
        if self.kind == "rows":
            for name, stored in ((TRAIN, entry.train), (HELDOUT, entry.heldout)):
                if stored is None:
                    continue
                self._in_block(index, self._pointers, entry, name, stored)
                x = (self._slot(entry), f"{name}/x", (stored.entries, self.features), stored.dtype)
                chunk = self._in_block(index, arrays.chunk_length, *x)
                for low in range(0, stored.entries, chunk):
                    self._in_block(index, arrays.read, *x, low, min(low + chunk, stored.entries))
            return
        if self.kind == "words":
            for heldout in (False, True):
                self.words(index, heldout)
            return
        for name, stored in ((TRAIN, entry.train), (HELDOUT, entry.heldout)):
            if stored is None:
                continue
            part = self._in_block(index, self._counts_part, entry, name, stored)
            if not _increasing_within_clients(part.indptr, part.indices):
                raise self._damaged(index, "the token ids of a client are not increasing")
            if int(part.totals.sum()) != stored.total:
                raise self._damaged(index, "the tokens do not add up to the number in the manifest")

    def _entry(self, index: int) -> BlockEntry:
        if not 0 <= index < len(self.blocks):
            raise PopulationError(
                f"The population {self.path} has no block {index}.", f"It has {len(self.blocks)} blocks."
            )
        return self.blocks[index]

    @staticmethod
    def _part(entry: BlockEntry, heldout: bool = False) -> PartEntry | None:
        """What is stored of the part of a block; None: nothing, its clients are all empty there."""
        return entry.heldout if heldout else None if entry.void else entry.train

    def _slot(self, entry: BlockEntry) -> Slot:
        return Slot.of(self.path, entry)

    def _in_block(self, index: int, function: Callable[..., T], *arguments: object) -> T:
        """Calls the function; damage is reported as that of block `index`."""
        try:
            return function(*arguments)
        except (slots.SlotDamaged, UnicodeDecodeError) as damage:
            raise self._damaged(index, str(damage)) from damage

    def _damaged(self, index: int, what: str) -> ChunkError:
        slot = self.blocks[index].slot
        if self.version not in (known := self._versions()) and known:
            return ChunkError(
                f"Version {self.version} of {self.path} was removed after it was opened, as clients were forgotten.",
                f"Start the run again on version {known[-1]}.",
            )
        return ChunkError(
            f"Block {index} (slot {slot}) of {self.path}, version {self.version}: {what}.",
            f"Restore the folder {layout.block_folder(self.path, slot)} from a backup, or ingest the population again.",
        )

    def _versions(self) -> list[int]:
        """Existing versions; none if this is unknown now."""
        try:
            return self.versions()
        except (PopulationError, OSError):
            return []

    def _pointers(self, entry: BlockEntry, name: str, part: PartEntry) -> np.ndarray:
        pointers = "ptr" if self.kind == "rows" else "indptr"
        ptr = arrays.read(self._slot(entry), f"{name}/{pointers}", (entry.clients + 1,), "int64")
        _check_pointers(ptr, part.entries, f"{name}/{pointers}")
        return ptr

    def _at_once(self, read: Callable[[BlockEntry, bool], T], entry: BlockEntry, heldout: bool) -> T:
        """read(entry, heldout); behind a URL the files that it needs are fetched at the same time."""
        parts = {TRAIN: self._part(entry), **({HELDOUT: entry.heldout} if heldout else {})}
        arrays_of_part = ("ptr", "x") if self.kind == "rows" else ("indptr", "indices", "counts")
        names = [f"{name}/{array}" for name, part in parts.items() if part is not None for array in arrays_of_part]
        files_of_each = [first_files(name, 2 if name.endswith("/x") else 1) for name in names]
        descriptions, chunks = zip(*files_of_each, strict=True) if names else ((), ())
        with slots.fetched(self._slot(entry), descriptions, chunks):
            return read(entry, heldout)

    def _rows(self, entry: BlockEntry, heldout: bool) -> RowsBlock:
        other = self._rows_part(entry, HELDOUT, entry.heldout) if heldout else None
        return replace(self._rows_part(entry, TRAIN, self._part(entry)), heldout=other)

    def _counts(self, entry: BlockEntry, heldout: bool) -> CountsBlock:
        other = self._counts_part(entry, HELDOUT, entry.heldout) if heldout else None
        return replace(self._counts_part(entry, TRAIN, self._part(entry)), heldout=other)

    def _rows_part(self, entry: BlockEntry, name: str, part: PartEntry | None) -> RowsBlock:
        """The rows of one part of a block; part None: no client of the block has any."""
        leaf = entry.first // self.clients_per_leaf
        if part is None:
            none = np.empty((0, self.features), self.manifest.dtype)
            return RowsBlock(entry.first, leaf, np.zeros(entry.clients + 1, np.int64), none)
        ptr = self._pointers(entry, name, part)
        x = arrays.read(self._slot(entry), f"{name}/x", (part.entries, self.features), part.dtype)
        return RowsBlock(entry.first, leaf, ptr, x)

    def _counts_part(self, entry: BlockEntry, name: str, part: PartEntry | None) -> CountsBlock:
        """The counts of one part of a block; part None: no client of the block has any."""
        leaf = entry.first // self.clients_per_leaf
        if part is None:
            ptr, indices, data = np.zeros(entry.clients + 1, np.int32), np.empty(0, np.int32), np.empty(0, np.float32)
            return CountsBlock(entry.first, leaf, ptr, indices, data, np.zeros(entry.clients), self.features)
        ptr, slot = self._pointers(entry, name, part), self._slot(entry)
        indices = arrays.read(slot, f"{name}/indices", (part.entries,), "int32")
        counts = arrays.read(slot, f"{name}/counts", (part.entries,), part.dtype)
        totals, largest = np.empty(entry.clients), 0
        for low in range(0, entry.clients, RANGE_CLIENTS):  # that stay in the processor's cache
            own = ptr[low : low + RANGE_CLIENTS + 1]
            tokens, held = indices[own[0] : own[-1]], counts[own[0] : own[-1]]
            if not len(held):
                totals[low : low + RANGE_CLIENTS] = 0.0
                continue
            if tokens.view(np.uint32).max() >= self.features:  # those below 0 are the largest of all
                raise arrays.ArrayDamaged(f"{name}/indices holds a token outside the vocabulary")
            if held.min() <= 0:
                raise arrays.ArrayDamaged(f"{name}/counts holds a count below one")
            most = int(held.max())
            dtype = np.int32 if most * len(held) < 2**31 else np.int64  # exact: a client's tokens stay below 2**53
            totals[low : low + RANGE_CLIENTS] = segment_sums(held, own - own[0], dtype)
            largest = max(largest, most)
        if part.entries <= np.iinfo(np.int32).max:
            ptr = ptr.astype(np.int32)  # SciPy copies the indices when their type differs from that of indptr
        data = _in_place(counts) if largest < FLOAT32_EXACT else counts.astype(np.float64)
        return CountsBlock(entry.first, leaf, ptr, indices, data, totals, self.features)

    def _words_part(self, entry: BlockEntry, name: str, part: PartEntry | None) -> WordsBlock:
        if part is None:
            none = np.zeros(entry.clients + 1, np.int64)
            return WordsBlock(entry.first, none, np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, WORD))
        ptr, slot = self._pointers(entry, name, part), self._slot(entry)
        indices = arrays.read(slot, f"{name}/indices", (part.entries,), "int32")
        counts = arrays.read(slot, f"{name}/counts", (part.entries,), part.dtype).astype(np.int64)
        words = from_bytes(arrays.read(slot, f"{name}/words", (part.words or 0, LONGEST), "uint8"))
        if part.entries and (indices.min() < 0 or indices.max() >= len(words)):
            raise arrays.ArrayDamaged(f"{name}/indices holds a word outside the dictionary")
        if (words[1:] <= words[:-1]).any():
            raise arrays.ArrayDamaged(f"{name}/words is not sorted")
        if not _increasing_within_clients(ptr, indices):
            raise arrays.ArrayDamaged(f"{name}/indices: the words of a client are not increasing")
        if (counts <= 0).any() or int(counts.sum()) != part.total:
            raise arrays.ArrayDamaged(f"{name}/counts does not add up to the number in the manifest")
        return WordsBlock(entry.first, ptr, indices, counts, words)


def _in_place(counts: np.ndarray) -> np.ndarray:
    """(n,) counts below 2**24 as float32, in the memory of the integers if they have as many bytes."""
    if counts.dtype.itemsize != 4:
        return counts.astype(np.float32)
    data = counts.view(np.float32)
    for low in range(0, len(counts), PIECE):
        data[low : low + PIECE] = counts[low : low + PIECE].astype(np.float32)
    return data


def stored_client_ids(slot: Slot, entry: BlockEntry) -> np.ndarray:
    """(C,) str, the ids of the clients of the block in this slot. Raises SlotDamaged, UnicodeDecodeError."""
    ptr = arrays.read(slot, "ids/ptr", (entry.clients + 1,), "int64")
    _check_pointers(ptr, entry.id_bytes, "ids/ptr")
    data = arrays.read(slot, "ids/bytes", (entry.id_bytes,), "uint8")
    return identifiers.decode(data, ptr)


def _check_pointers(ptr: np.ndarray, entries: int, name: str) -> None:
    if ptr[0] != 0 or ptr[-1] != entries or (np.diff(ptr) < 0).any():
        raise arrays.ArrayDamaged(f"{name} does not run from 0 to {entries} without going back")


def _increasing_within_clients(ptr: np.ndarray, indices: np.ndarray) -> bool:
    steps = np.diff(indices) > 0
    starts = ptr[1:-1]
    starts = starts[(starts > 0) & (starts < len(indices))]
    steps[starts - 1] = True  # the first token of a client may be anything
    return bool(steps.all())
