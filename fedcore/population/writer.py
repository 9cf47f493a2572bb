"""Writing a population: whole clients go in, immutable slots come out; a version appears at once or not at all."""

from __future__ import annotations

import shutil
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fedcore.errors import PopulationError
from fedcore.population import cohorts, identifiers, layout, versions
from fedcore.population import manifest as manifests
from fedcore.population.arrays import STREAM_BYTES
from fedcore.population.block_table import BlockEntry, Blocks, total_of
from fedcore.population.block_writer import BlockWriter, PartWriter
from fedcore.population.blocks import Kind
from fedcore.population.checks import Rows, bytes_of, checked_counts, checked_rows, checked_vocabulary, rows_of
from fedcore.population.cohorts import FOUNDERS, Order
from fedcore.population.columns import ColumnEntry, bounds_of
from fedcore.population.deliveries import Delivered, added
from fedcore.population.manifest import Halves, Manifest, Provenance, Vocabulary
from fedcore.population.periods import Periods, clients_of, label_of, stored_ids
from fedcore.population.same_ids import SeenIds
from fedcore.population.sizing import CLIENTS_PER_LEAF, block_limit, explicit_clients_per_block, usable_cores
from fedcore.population.slots import Slot
from fedcore.population.store import Population, stored_client_ids
from fedcore.population.words import checked_words
from fedcore.storage import digests, files

CLOSERS = 2  # threads: they wait for the disk, too


@dataclass
class _Batch:
    """Checked clients on their way into blocks. counts: CSR; rows: (ptr, x)."""

    ids: list[str]
    train: scipy.sparse.csr_matrix | Rows
    heldout: scipy.sparse.csr_matrix | Rows | None
    bytes_before: np.ndarray  # (C + 1,) int64: decoded bytes of the clients before each


class PopulationWriter:
    """Write one version of a population. Use it as a context manager:

        with PopulationWriter(path, "counts", features=1000) as writer:
            writer.write(ids, matrix)          # as often as needed, any number of whole clients each time
            population = writer.commit(Provenance(sources=("clicks.csv",)))

    Until `commit` nothing is visible; leaving without it removes everything that was written. Holds the population's
    writer lock: a second writer raises PopulationError on entry. Leftovers of a writer that died are swept on entry.

    kind, features: as in the manifest; dtype: of dense rows, "float32" or "float64"
    clients_per_leaf: L; clients_per_block: rounded up to a multiple of L; None: as suits this machine's cores
    block_bytes: decoded bytes after which a block closes at its next leaf boundary; None: as suits the machine's memory
    stream_bytes: what an array may hold in memory while it is written; larger ones are written chunk by chunk
    vocabulary: the tokens, one for each feature, or None
    nominal_clients: declared number of clients, which is public; nominal_rows: declared rows of a client (different
        tokens, of counts)
    public_for_evaluation: the reason why evaluations on these data need no budget, or None if they need one
    ledger: {"id": ..., "url": ...} or None
    period, labels: for a population of entries of one client and one calendar period: how rows are split into entries,
        and the periods that this version adds to those of the parent, each a cohort. Ids then have the form that
        `fedcore.population.periods` describes, and nominal_clients is the number in each period of `labels`
    halves: what was split into a training and a held-out part, for the manifest: "document" or "entry", or None
    columns: names, units and bounds of the columns of rows, in their order; () if they were not declared. Values
        outside the bounds are refused
    records: whether every client is one row, because no client column was declared
    image: (height, width) of the picture in a row, or None
    fold_ids: ids are stored folded, so that ids that differ in case or blanks only are one client; of a new population
    parent: the version to make a new version of (see `extending`); None makes a new population
    """

    def __init__(
        self,
        path: str | Path,
        kind: Kind,
        features: int,
        *,
        dtype: str = "float32",
        clients_per_leaf: int = CLIENTS_PER_LEAF,
        clients_per_block: int | None = None,
        block_bytes: int | None = None,
        stream_bytes: int = STREAM_BYTES,
        vocabulary: Sequence[str] | None = None,
        nominal_clients: int | None = None,
        nominal_rows: int | None = None,
        public_for_evaluation: str | None = None,
        ledger: dict[str, str] | None = None,
        period: Periods | None = None,
        labels: Sequence[str] = (),
        halves: Halves | None = None,
        columns: Sequence[ColumnEntry] = (),
        records: bool = False,
        image: tuple[int, int] | None = None,
        fold_ids: bool = False,
        parent: Population | None = None,
    ):
        if kind not in ("counts", "rows", "words"):
            raise PopulationError(f"There is no population kind {kind!r}.", "Use 'counts', 'rows' or 'words'.")
        if kind == "rows" and dtype not in ("float32", "float64"):
            raise PopulationError(f"Dense rows cannot be stored as {dtype}.", "Use float32 or float64.")
        if min(features, clients_per_leaf, 1 if clients_per_block is None else clients_per_block) < 1:
            raise PopulationError("features, clients_per_leaf and clients_per_block must be at least 1.")
        if kind == "counts" and features > np.iinfo(np.int32).max:
            raise PopulationError(f"A vocabulary of {features} tokens is too large.", "Use at most 2**31 - 1.")
        self.path, self.kind, self.features, self.parent = layout.writable(path), kind, int(features), parent
        self.dtype = dtype if kind == "rows" else None
        self.clients_per_leaf = int(clients_per_leaf)
        self.rule = parent.manifest.id_rule if parent else identifiers.FOLDED if fold_ids else identifiers.STRIPPED
        self.limit = block_limit(self.clients_per_leaf, clients_per_block, block_bytes)
        self.stream_bytes = stream_bytes
        self.tokens = None if vocabulary is None else checked_vocabulary(vocabulary, self.features)
        self.public = {
            "nominal_clients": nominal_clients,
            "nominal_rows": nominal_rows,
            "public_for_evaluation": public_for_evaluation is not None,
            "public_reason": public_for_evaluation or "",
            "ledger": ledger,
            "period": period,
            "halves": halves,
            "columns": tuple(columns),
            "records": records,
            "image": image,
        }
        self.bounds = bounds_of(columns)
        self.labels = tuple(labels)
        self._numbers = {label: n for n, label in enumerate((*_labels_of(parent), *labels), FOUNDERS)}
        self._dealt: list[tuple[int, int]] = []  # cohorts of new entries, in their order
        self.declared = nominal_clients  # for this version, not taken over from the parent
        self.day: str | None = None  # on which its cohorts open; today if None
        self.version = 1 if parent is None else parent.version + 1
        self.clients = 0
        self._blocks: list[BlockEntry] = []
        self.entries = period is not None  # whether ids are of entries
        self._seen = SeenIds(folds=self.rule != identifiers.FOLDED and not records)
        self._open: BlockWriter | None = None
        self._closer = (
            ThreadPoolExecutor(CLOSERS) if usable_cores() > 1 else None
        )  # of blocks, while the next are filled
        self._closing: deque[tuple[int, Future[BlockEntry]]] = deque()  # (bytes of the block, its entry)
        self._slots = 0
        self._made: list[Path] = []  # what disappears again without a commit
        self._lock = ExitStack()  # holds the writer lock
        self._entered = self._committed = self._failed = False

    @classmethod
    def extending(cls, parent: Population, **changes) -> PopulationWriter:
        """A writer of the next version of `parent`: same id, kind, features, leaf size, vocabulary, ledger...

        The new version must hold the parent's clients at their old indices: pass on its blocks in order with `keep`,
        or write their clients again. If the parent has cohorts, but no calendar periods, the version opens the next
        cohort. Its declared size is the difference between `nominal_clients`, the new total, and the parent's total
        (None if either is not declared).

        changes: any of the writer's other settings.
        """
        old = parent.manifest
        settings = {
            "dtype": old.dtype or "float32",
            "clients_per_leaf": old.clients_per_leaf,
            "clients_per_block": explicit_clients_per_block(old.clients_per_leaf, old.clients_per_block),
            "vocabulary": parent.vocabulary(),
            "nominal_clients": old.nominal_clients,
            "nominal_rows": old.nominal_rows,
            "public_for_evaluation": old.public_reason if old.public_for_evaluation else None,
            "ledger": None if old.ledger is None else old.ledger.model_dump(),
            "period": old.period,
            "halves": old.halves,
            "columns": old.columns,
            "records": old.records,
            "image": old.image,
            **changes,
        }
        made = cls(layout.writable(parent.path), old.kind, old.features, parent=parent, **settings)
        made.declared = changes.get("nominal_clients")
        if old.cohorts and not old.period:
            versions.opening(old, made.declared)  # refuses a total that is too small, before anything is written
        return made

    # ---- life cycle

    def __enter__(self) -> PopulationWriter:
        with ExitStack() as stack, layout.named_os_errors(self.path):
            fresh = not self.path.exists()
            if not fresh and not self.path.is_dir():
                raise PopulationError(f"{self.path} is a file.", "Name a folder for the population.")
            if not fresh and not layout.is_population_root(self.path):
                if layout.is_occupied(self.path):
                    raise PopulationError(
                        f"The folder {self.path} is not empty and holds no population.", "Name a new or empty folder."
                    )
            closed = self.parent is None and self.public["ledger"] is not None
            files.make_folder(self.path, private=closed, durable=True)
            stack.enter_context(layout.writer_lock(self.path))
            stack.callback(self._seen.close)
            versions.check_and_sweep(self.path, None if self.parent is None else self.parent.version)
            mark = {"fedcore": {"population": True, "schema_version": manifests.SCHEMA_VERSION}}
            layout.mark_root(self.path, mark, closed)
            if self.parent is None:
                self._made.append(self.path)
            self._lock, self._entered = stack.pop_all(), True
        return self

    def __exit__(self, kind, error, traceback) -> None:
        try:
            if self._closer is not None:
                self._closer.shutdown()
            if not self._committed:
                self._open = None
                for folder in reversed(self._made):
                    shutil.rmtree(folder, ignore_errors=True)
        finally:
            self._lock.close()

    # ---- clients in

    def write(
        self,
        client_ids: Sequence,
        matrix: scipy.sparse.spmatrix | Rows,
        heldout: scipy.sparse.spmatrix | Rows | None = None,
    ) -> None:
        """Adds whole clients, in this order.

        client_ids: C ids, text or whole numbers, unique in the population once they are spelled as it does; empty
            where the parent has forgotten clients
        matrix: kind counts: (C, features) sparse matrix of whole numbers >= 0
                kind rows:   (ptr (C + 1,), x (N, features)), NaN = missing
                kind words:  (ptr (C + 1,), records (N,) of `fedcore.population.words.RECORD`)
        heldout: the same clients' held-out data, in the same form, or None

        Raises PopulationError if ids, shapes or values are unusable; nothing of this call is then added.
        """
        self._ready()
        texts = self._spelled(client_ids, self._holes(len(client_ids)))
        if not texts:
            return
        train = self._checked(matrix, len(texts))
        other = None if heldout is None else self._checked(heldout, len(texts))
        sizes = bytes_of(train) + (bytes_of(other) if other is not None else 0)
        batch = _Batch(texts, train, other, np.concatenate([[0], np.cumsum(sizes)]))
        self._deal(texts)
        self._note(texts)
        with self._writing():
            done = 0
            while done < len(texts):
                block = self._current_block()
                stop = self._stop(block, batch, done)
                self._append(block, batch, done, stop)
                done = stop
                self._close_if_full(block)

    def write_large(self, client_id, tiles: Iterable[np.ndarray], heldout: Iterable[np.ndarray] | None = None) -> None:
        """Adds one client with dense rows that need not fit in memory: tiles are arrays (n, features)."""
        self._ready()
        if self.kind != "rows":
            raise PopulationError("Only dense rows are written in tiles.", "Write counts with `write`.")
        texts = self._spelled([client_id])
        self._deal(texts)
        self._note(texts)
        with self._writing():
            block = self._current_block()
            self._stream_rows(block, block.train, tiles)
            if heldout is not None:
                self._stream_rows(block, block.heldout_part(), heldout)
            elif block.heldout is not None:
                block.heldout.empty_clients(1)
            block.add_ids(texts)
            self.clients += 1
            self._close_if_full(block)

    def keep(self, entry: BlockEntry) -> None:
        """Takes over a block of the parent as it is. Call in client order, at the client where it starts."""
        self._ready()
        self._close_all()
        place = None if self.parent is None else self.parent.blocks.starting_at(self.clients)
        if self.parent is None or place is None or entry != self.parent.blocks[place]:
            raise PopulationError(f"The slot {entry.slot} does not follow client {self.clients - 1} of this version.")
        self._note(self.parent.client_ids(place).tolist())
        self._blocks.append(entry)
        self.clients += entry.clients

    def close_block(self) -> None:
        """Ends the open block here: on a leaf boundary, or after the last client. Its files are there once CLOSERS
        more are closed, or the version committed; what goes wrong with them is raised by then, if not now.
        """
        if self._open is not None:
            size = self._open.bytes
            self._await_closed(CLOSERS - 1, self.stream_bytes - size)
            with self._writing():
                if self._closer is None:
                    self._blocks.append(self._open.close())
                else:
                    self._closing.append((size, self._closer.submit(self._open.close)))
            self._open = None

    def _await_closed(self, blocks: int = 0, size: int = 0) -> None:
        """Wait until at most `blocks` blocks with at most `size` bytes are being closed."""
        while self._closing and (len(self._closing) > blocks or sum(held for held, _ in self._closing) > size):
            with self._writing():
                self._blocks.append(self._closing[0][1].result())
            self._closing.popleft()

    def _close_all(self) -> None:
        self.close_block()
        self._await_closed()

    def written(self) -> int:
        """Rows, or tokens of counts, of all clients so far, held-out ones included. Ends the open block."""
        self._close_all()
        return total_of(self._blocks)

    def commit(
        self, provenance: Provenance | None = None, newcomers: Order | None = None, delivered: Delivered | None = None
    ) -> Population:
        """Makes the version visible, durably and at once, and returns it.

        newcomers: cohorts of the clients after those of the parent, in their order, as pairs (cohort, clients); None:
            all are of the newest cohort
        delivered: files of a pipeline whose clients these are

        Raises PopulationError if there is no client, an id came twice, or another writer was first.
        """
        self._ready()
        self._close_all()
        if not self._blocks:
            raise PopulationError(f"No client was written to {self.path}.", "A population has at least one client.")
        self._refuse_duplicates()
        provenance = provenance or Provenance()
        old = None if self.parent is None else self.parent.manifest
        parent, alike = None if old is None else old.version, self._seen.alike()
        provenance = provenance.model_copy(update={"parent": parent, "alike_ids": alike})
        self.day = None if delivered is None else delivered.day
        fields = self._membership(newcomers)
        if old is not None:
            fields |= {"deliveries": old.deliveries, "occasions": old.occasions}
        if delivered is not None:
            known = (fields.get("deliveries", ()), fields.get("occasions", ()))
            fields |= added(*known, delivered, self.version, bool(fields.get("cohorts")))
        blocks = Blocks.of(self._blocks)
        made = manifests.build(
            needs=versions.needs({**fields, "blocks": blocks}, self.rule),
            population_id=self._new_id() if old is None else old.population_id,
            secret=versions.new_secret(),
            version=self.version,
            kind=self.kind,
            dtype=self.dtype,
            n_clients=self.clients,
            n_rows=blocks.sum_of("train.total"),
            features=self.features,
            clients_per_leaf=self.clients_per_leaf,
            clients_per_block=self.limit.clients,
            vocabulary=self._store_vocabulary(),
            provenance=provenance,
            blocks=blocks,
            **fields,
        )
        with layout.named_os_errors(self.path):
            if made.ledger is not None and (old is None or old.ledger is None):
                layout.write_beside(self.path, layout.WITNESS, layout.first_witness(made.ledger.id))
            self._store_manifest(made)
        self._committed = True
        return Population(self.path, made)

    # ---- inside

    def _new_id(self) -> str:
        """Of a population without a parent."""
        return uuid.uuid4().hex

    def _ready(self) -> None:
        if not self._entered or self._committed:
            raise PopulationError("This writer is not open.", "Use it inside its `with` statement, before the commit.")
        if self._failed:
            raise PopulationError("An earlier write of this writer failed half-way.", "Start again with a new writer.")

    def _holes(self, clients: int) -> np.ndarray | None:
        """(clients,) bool: which of the next clients the parent has forgotten; None: none of them."""
        if self.parent is None or not self.parent.holes:
            return None
        return self.parent.are_holes(self.clients, clients)

    def _spelled(self, client_ids: Sequence, holes: np.ndarray | None = None) -> list[str]:
        """Ids as this version stores them. Raises PopulationError."""
        return stored_ids(identifiers.as_text(client_ids, holes), self.rule, self.entries)

    def _note(self, texts: list[str]) -> None:
        """What is compared at the end, of the ids of the next clients."""
        self._seen.add(texts, self.clients, clients_of(texts, True) if self.entries and self._seen.folds else None)

    def _deal(self, texts: list[str]) -> None:
        """Notes the periods of the next clients, if the parent does not have them. Raises PopulationError."""
        if self.public["period"] is None:
            return
        known = 0 if self.parent is None else self.parent.n_clients
        new = texts[max(known - self.clients, 0) :]
        for label, entries in groupby(map(label_of, new)):
            if label not in self._numbers:
                raise PopulationError(
                    f"An entry of {self.path} is of the period {label!r}, which is not declared.", "Declare it first."
                )
            self._dealt.append((self._numbers[label], sum(1 for _ in entries)))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Inside, an error leaves the writer failed: a block that was half written is never committed."""
        before, self._failed = self._failed, True
        with layout.named_os_errors(self.path):
            yield
        self._failed = before

    def _current_block(self) -> BlockWriter:
        if self._open is None:
            folder = layout.block_folder(self.path, versions.slot_name(self.version, self._slots))
            self._slots += 1
            if self.parent is not None:
                self._made.append(folder)
            self._open = BlockWriter(folder, self.clients, self.kind, self.features, self.dtype, self.stream_bytes)
        return self._open

    def _stop(self, block: BlockWriter, batch: _Batch, start: int) -> int:
        """Where in the batch the open block ends: full, or at the first leaf boundary with enough bytes."""
        stop = min(len(batch.ids), start + self._most_clients(block) - block.clients)
        leaf = self.clients_per_leaf
        boundaries = np.arange(start + (-block.clients) % leaf, stop + 1, leaf)
        boundaries = boundaries[boundaries > start]
        room = self.limit.bytes - block.bytes
        enough = boundaries[batch.bytes_before[boundaries] - batch.bytes_before[start] >= room]
        return int(enough[0]) if len(enough) else stop

    def _most_clients(self, block: BlockWriter) -> int:
        return self.limit.most_clients(block.first, self.clients_per_leaf)

    def _append(self, block: BlockWriter, batch: _Batch, start: int, stop: int) -> None:
        parts = [(block.train, batch.train)]
        if batch.heldout is not None:
            parts.append((block.heldout_part(), batch.heldout))
        elif block.heldout is not None:
            block.heldout.empty_clients(stop - start)
        for part, data in parts:
            part.append(rows_of(data, start, stop))
        block.add_ids(batch.ids[start:stop])
        block.bytes += int(batch.bytes_before[stop] - batch.bytes_before[start])
        self.clients += stop - start

    def _stream_rows(self, block: BlockWriter, part: PartWriter, tiles: Iterable[np.ndarray]) -> None:
        block.bytes += part.append_client(self._checked((np.array([0, len(tile)]), tile), 1)[1] for tile in tiles)

    def _close_if_full(self, block: BlockWriter) -> None:
        whole = block.clients % self.clients_per_leaf == 0
        if block.clients >= self._most_clients(block) or (whole and block.bytes >= self.limit.bytes):
            self.close_block()

    def _checked(self, data: scipy.sparse.spmatrix | Rows, clients: int) -> scipy.sparse.csr_matrix | Rows:
        if self.kind == "words":
            return checked_words(data, clients)
        if self.dtype is None:
            return checked_counts(data, clients, self.features)
        ptr, x = checked_rows(data, clients, self.features, self.dtype)
        if self.bounds is not None and ((x < self.bounds.low) | (x > self.bounds.high)).any():
            raise PopulationError("A row is outside the bounds of its columns.", "Clip it, or correct the bounds.")
        return ptr, x

    def _store_vocabulary(self) -> Vocabulary | None:
        if self.tokens is None:
            return None
        data = "".join(f"{token}\n" for token in self.tokens).encode("utf-8")
        sha256 = digests.of_document(data)
        file = layout.vocabulary_file(self.path, sha256)
        if not file.exists():
            with layout.named_os_errors(self.path):
                layout.create_exclusively(file, data)
        return Vocabulary(sha256=sha256, size=len(self.tokens))

    def _membership(self, newcomers: Order | None) -> dict[str, Any]:
        """Public fields and those about cohorts. A version opens the next cohort, also without new clients."""
        if self.public["period"] is not None:
            return {**self.public, **self._calendar()}
        if self.parent is None:
            return dict(self.public)
        old = self.parent.manifest
        number = len(old.cohorts) + 1 if old.cohorts else FOUNDERS
        came = newcomers or ((number, self.clients - old.n_clients),)
        fields: dict[str, Any] = {"cohorts": (), "order": cohorts.joined((*old.order, *came)) if old.order else ()}
        if old.cohorts:
            fields = versions.opening(old, self.declared, came, self.day)
        fields |= {"suppression": old.suppression, "removed": old.removed}
        return {**self.public, **fields}

    def _calendar(self) -> dict[str, Any]:
        """Fields about cohorts where each is a calendar period: the declared ones, with or without data."""
        old = None if self.parent is None else self.parent.manifest
        known, before = ((), ()) if old is None else (old.cohorts, old.order)
        fields = versions.declaring(known, self.labels, self.declared, (*before, *self._dealt), self.day)
        suppressed = None if old is None else old.suppression
        return {**fields, "suppression": suppressed}

    def _store_manifest(self, made: Manifest) -> None:
        written, self._made = self._made, []  # what a manifest names, or may name, does not disappear
        try:
            versions.commit(self.path, made)
        except layout.MayBeThere:
            raise
        except FileExistsError as error:
            self._made = written
            raise PopulationError(
                f"Another writer was first to make version {made.version} of {self.path}.",
                "Run the same command again.",
            ) from error
        except BaseException:
            self._made = written
            raise

    def _refuse_duplicates(self) -> None:
        first = np.array([block.first for block in self._blocks])
        if one := self._seen.twice(first, self._ids_of):
            raise PopulationError(
                f"The client id {one!r} was written twice.", "Give all data of a client in one call of `write`."
            )

    def _ids_of(self, number: int) -> np.ndarray:
        block = self._blocks[number]
        if block.void:
            return np.full(block.clients, "")
        return stored_client_ids(Slot.of(self.path, block), block)


def _labels_of(population: Population | None) -> list[str]:
    """Of the calendar periods that a population declares."""
    known = () if population is None else population.manifest.cohorts
    return [cohort.period for cohort in known if cohort.period is not None]
