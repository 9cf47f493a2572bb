"""Bringing the rows of each client together in bounded memory: an external sort by key.

Records are buffered; when the buffer is full they are distributed over files by ranges of the key (Knuth, The Art of
Computer Programming 3, section 5.4: distribution). A file that is still too large is distributed again. What is left
too large is one client, which is handed on in tiles. Rows of a client keep the order in which they came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import scipy

from fedcore.errors import IngestError
from fedcore.population import identifiers
from fedcore.population.blocks import Kind
from fedcore.population.checks import LARGEST_COUNT, Rows
from fedcore.population.ingest.batches import Batch
from fedcore.population.ingest.buckets import ID, KEY, LAST_KEY, Bucket, load, pieces
from fedcore.population.ingest.client_ids import KnownKeys, chosen, positions
from fedcore.population.ingest.reading_ahead import made_ahead
from fedcore.population.periods import Calendar
from fedcore.population.words import RECORD, checked_words
from fedcore.population.writer import PopulationWriter

FAN_OUT = 64
KEYS_SHARE = 2  # of a spill's memory, what known keys take while it is filled
ID_COST = 48  # bytes that one logged id costs while it is sorted, in addition to its record and text
ORDER_COST = 16  # the same of a record, in addition to itself and its key
PERIOD_BITS, HASH_BITS = np.uint64(16), np.uint64(48)  # of the first key of an entry; more than MOST periods
KEYS_OF = {"train": "train keys", "heldout": "heldout keys"}  # logs of records, and those of their keys
LOGS = (*KEYS_OF, *KEYS_OF.values(), "ids", "text")
SLICE = 4 << 20  # bytes of records that are brought together at once, where they are in memory
FINER = "finer"  # folder of what is distributed again


def keys_of(ids: Sequence[str]) -> np.ndarray:
    """(C, 2) uint64: a stable 128-bit name of each id (BLAKE2b). Clients are ordered by its first 64 bits."""
    digests = b"".join([hashlib.blake2b(one.encode(), digest_size=16).digest() for one in ids])
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


def keys_by_period(calendar: Calendar) -> Callable[[Sequence[str]], np.ndarray]:
    """Keys of entries by which they are sorted by period first: of 128 bits the first 16 are the period's number."""

    def keys(ids: Sequence[str]) -> np.ndarray:
        made = keys_of(ids).copy()
        made[:, 0] = (made[:, 0] >> PERIOD_BITS) | (calendar.numbers(ids).astype(np.uint64) << HASH_BITS)
        return made

    return keys


def key_range(calendar: Calendar) -> tuple[int, int]:
    """The first and the last first key that an entry can have."""
    bits = int(HASH_BITS)
    return 1 << bits, ((len(calendar.labels) + 1) << bits) - 1


@dataclass(frozen=True, slots=True)
class Layout:
    """What a record is. dtype: of dense rows; else None."""

    kind: Kind
    features: int
    dtype: str | None

    @property
    def record(self) -> np.dtype:
        """Of a record without its key."""
        if self.kind == "counts":
            return np.dtype([("token", "<i4"), ("amount", "<i8")])
        if self.kind == "words":
            return np.dtype(RECORD)
        return np.dtype((self.dtype, (self.features,)))

    @property
    def size(self) -> int:
        """Bytes of a record and its key."""
        return self.record.itemsize + KEY.itemsize


@dataclass(frozen=True, slots=True)
class Clients:
    """Whole clients in the order of their keys. keys: (C,) uint64, the first key; heldout None if none has any."""

    keys: np.ndarray
    ids: list[str]
    train: scipy.sparse.csr_matrix | Rows
    heldout: scipy.sparse.csr_matrix | Rows | None


@dataclass(frozen=True, slots=True)
class LargeClient:
    """One client with more dense rows than fit in memory; each call reads its tiles again from the disk.

    train, heldout: files of records; no files: it has no such rows. heldout None: no client has held-out rows
    """

    key: int
    id: str
    train: Sequence[Path]
    heldout: Sequence[Path] | None
    layout: Layout
    step: int

    def tiles(self, heldout: bool = False) -> Iterator[np.ndarray]:
        return pieces((self.heldout or ()) if heldout else self.train, self.layout.record, self.step)


@dataclass
class _Held:
    """Records in one array, which is used again once they were taken.

    usual: how many there may be without another array; its pages cost nothing until they are filled
    """

    dtype: np.dtype
    usual: int
    count: int = 0
    _array: np.ndarray | None = None

    def room(self, records: int) -> np.ndarray:
        """(records,), where the next ones are to be written."""
        start, stop = self.count, self.count + records
        if self._array is None or stop > len(self._array):
            larger = np.empty(max(self.usual, stop), self.dtype)
            if self._array is not None:
                larger[:start] = self._array[:start]
            self._array = larger
        self.count = stop
        return self._array[start:stop]

    def all(self) -> np.ndarray:
        """All of them, until the next are written over them."""
        return np.empty(0, self.dtype) if self._array is None else self._array[: self.count]

    def release(self) -> None:
        self.count, self._array = 0, None


@dataclass
class Spill:
    """Collect records by key, and yield whole clients in the order of (k1, k2).

    folder: for its files, made when needed; memory: bytes that are sorted at once (a few times this while sorting)
    low, high: expected range of the first keys; keys outside are allowed
    hold: bytes up to which there are no files, unless one client has more than `memory`; at least `memory`
    """

    folder: Path
    layout: Layout
    memory: int
    low: int = 0
    high: int = LAST_KEY
    heldout: bool = False  # whether there is a held-out part, if only an empty one
    fan_out: int = FAN_OUT
    hold: int = 0
    _held: dict[str, _Held] = field(default_factory=dict)
    _size: int = 0
    _buckets: list[Bucket] | None = None

    def __post_init__(self) -> None:
        self.hold = max(self.hold, self.memory)
        for log in LOGS:
            dtype = self._dtype(log)
            self._held[log] = _Held(dtype, self.hold // dtype.itemsize)

    # ---- in

    def add(self, keys: np.ndarray, ids: Sequence[str]) -> None:
        """Names clients: keys (C, 2), ids (C). Every client must be named at least once."""
        if not len(ids):
            return
        text, lengths = identifiers.encode(list(ids))
        named = np.empty(len(ids), ID)
        named["k1"], named["k2"], named["length"] = keys[:, 0], keys[:, 1], lengths
        self._add_names(named, text)

    def _add_names(self, named: np.ndarray, text: np.ndarray) -> None:
        """named: records of ID, of which text (B,) has the bytes"""
        self._make_room(len(named) * (ID.itemsize + ID_COST) + text.nbytes)
        self._held["ids"].room(len(named))[:] = named
        self._held["text"].room(len(text))[:] = text

    def add_counts(self, heldout: bool, keys: np.ndarray, tokens: np.ndarray, amounts: np.ndarray) -> None:
        """keys (n, 2), tokens (n,), amounts (n,) int64: one count each."""
        record = self._record(heldout, keys)
        record["token"], record["amount"] = tokens, amounts

    def add_rows(self, heldout: bool, keys: np.ndarray, x: np.ndarray) -> None:
        """keys (n, 2), x (n, D) or (n,) records of words: one dense row, or one word, each."""
        self._record(heldout, keys)[:] = x

    def _record(self, heldout: bool, keys: np.ndarray) -> np.ndarray:
        """(n,) records with these keys, which are to be written."""
        log = "heldout" if heldout else "train"
        self._make_room(len(keys) * (self.layout.size + ORDER_COST))
        self._held[KEYS_OF[log]].room(len(keys))[:] = keys
        return self._held[log].room(len(keys))

    def _make_room(self, size: int) -> None:
        """Empties the buffer into files if it cannot take `size` more bytes. Ids and their text, and records and their
        keys, are then all there.
        """
        if self._size and self._size + size > self.hold:
            self._distribute()
        self._size += size

    def _distribute(self) -> None:
        """Empties the buffer into the files of the buckets."""
        if self._buckets is None:
            self._buckets = [Bucket((self.folder / f"{number:02d}",)) for number in range(self.fan_out)]
            for bucket in self._buckets:
                bucket.folders[-1].mkdir(parents=True, exist_ok=True)
        most = max(self.memory // self.layout.size, 1)
        for log, keys_log in KEYS_OF.items():
            records, keys = self._held[log].all(), self._held[keys_log].all()
            order, bounds = self._ranges(keys[:, 0])
            for bucket, low, high in zip(self._buckets, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                for start in range(low, high, most):
                    chosen = order[start : min(start + most, high)]
                    bucket.append(keys_log, keys.take(chosen, axis=0))
                    bucket.append(log, records.take(chosen, axis=0))
                bucket.size += (high - low) * self.layout.size
        ids, text = self._held["ids"].all(), self._held["text"].all()
        starts = np.concatenate([[0], np.cumsum(ids["length"])])
        order, bounds = self._ranges(ids["k1"])
        for bucket, low, high in zip(self._buckets, bounds[:-1], bounds[1:], strict=True):
            if high > low:
                chosen = order[low:high]
                bucket.append("ids", ids[chosen])
                bucket.append("text", text[_spans(starts[chosen], ids["length"][chosen])])
                bucket.note(ids[chosen])
                bucket.size += len(chosen) * (ID.itemsize + ID_COST)
        self._size = 0
        for held in self._held.values():
            held.count = 0

    def _ranges(self, k1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(stable order by bucket, bounds (fan_out + 1,) of the buckets in that order)."""
        width = np.uint64((self.high - self.low) // self.fan_out + 1)
        inside = np.clip(k1, np.uint64(self.low), np.uint64(self.high))
        inside -= np.uint64(self.low)
        inside //= width
        number = inside.astype(np.uint8)
        order = np.argsort(number, kind="stable")
        return order, np.concatenate([[0], np.cumsum(np.bincount(number, minlength=self.fan_out))])

    def written(self) -> list[Bucket]:
        """All that was added, in files; no buckets if nothing was. Nothing is held any more."""
        if self._size:
            self._distribute()
        self._release()
        return self._buckets or []

    def _release(self) -> None:
        for held in self._held.values():
            held.release()

    def take(self, parts: Sequence[Sequence[Bucket]], heldout: bool) -> None:
        """What other spills like this one have `written`, in the order in which it was to be added."""
        self._buckets = [Bucket.joined(ranges) for ranges in zip(*parts, strict=True)] or None
        self.heldout |= heldout

    # ---- out

    def clients(self) -> Iterator[Clients | LargeClient]:
        """Every client once, in the order of (k1, k2); empties the spill."""
        if self._buckets is None and not self._size:
            return
        if self._buckets is None and self._size <= self.hold:
            held = self._sorted({log: held.all() for log, held in self._held.items()})
            if held.largest <= self.memory:
                yield from held.slices(min(self.memory, SLICE))
                self._release()
                return
            del held
        named = [bucket for bucket in self.written() if bucket.one_client is not None]
        for bucket, clients in made_ahead(iter(named), self._loaded, most=1):
            if clients is not None:
                yield clients
            elif not bucket.many:
                yield self._large(bucket)
            else:
                yield from self._again(bucket)
            bucket.remove()

    def _loaded(self, bucket: Bucket) -> Clients | None:
        """The clients of a bucket; None if they do not fit."""
        if bucket.size <= self.memory or (bucket.many and bucket.low == bucket.high):
            return self._sorted({log: load(bucket.files(log), self._dtype(log)) for log in LOGS}).whole()
        return None

    def _dtype(self, log: str) -> np.dtype:
        if log in KEYS_OF:
            return self.layout.record
        return {"ids": ID, "text": np.dtype(np.uint8)}.get(log, KEY)

    def _again(self, bucket: Bucket) -> Iterator[Clients | LargeClient]:
        """Distributes a bucket that is too large over a finer range."""
        parts = min(2 * bucket.size // max(self.memory, 1) + 2, FAN_OUT)
        finer = Spill(self.folder / FINER, self.layout, self.memory, bucket.low, bucket.high, self.heldout, parts)
        step = max(self.memory // 4, 1)
        for log, keys_log in KEYS_OF.items():
            most = max(step // self.layout.size, 1)
            logs = [pieces(bucket.files(one), self._dtype(one), most) for one in (keys_log, log)]
            for keys, records in zip(*logs, strict=True):
                finer._record(log == "heldout", keys)[:] = records
            for file in (*bucket.files(log), *bucket.files(keys_log)):
                file.unlink()
        for ids, text in bucket.names(max(step // ID_COST, 1)):
            finer._add_names(ids, text)
        yield from finer.clients()

    def _large(self, bucket: Bucket) -> Clients | LargeClient:
        """One client whose records do not fit. Counts do, once added up."""
        ids, text = next(bucket.names(1))
        first, name = ids[0], text.tobytes().decode("utf-8")
        step = max(self.memory // 2 // self.layout.size, 1)
        files = [bucket.files(log) for log in ("train", "heldout")]
        if self.layout.kind == "rows":
            held = files[1] if self.heldout else None
            return LargeClient(int(first["k1"]), name, files[0], held, self.layout, step)
        if self.layout.kind == "words":
            parts = [self._words_of(each, step) for each in files]
            return Clients(np.array([first["k1"]]), [name], parts[0], parts[1] if self.heldout else None)
        sums = []
        for each in files:
            total, exact = np.zeros(self.layout.features, np.int64), 0
            for records in pieces(each, self.layout.record, step):
                exact += sum(records["amount"].tolist())
                if exact > LARGEST_COUNT:
                    raise too_many(name)
                np.add.at(total, records["token"], records["amount"])
            sums.append(scipy.sparse.csr_matrix(total))
        return Clients(np.array([first["k1"]]), [name], sums[0], sums[1] if self.heldout else None)

    def _words_of(self, files: Sequence[Path], step: int) -> Rows:
        """The words of one client, added up piece by piece: only the distinct ones must fit."""
        held = checked_words((np.zeros(2, np.int64), np.empty(0, RECORD)), 1)
        for records in pieces(files, self.layout.record, step):
            both = np.concatenate([held[1], records])
            held = checked_words((np.array([0, len(both)]), both), 1)
        return held

    def _sorted(self, logs: dict[str, np.ndarray]) -> _Sorted:
        """logs: all records of some clients, and the names of these"""
        ids, text = logs["ids"], logs["text"]
        starts = np.concatenate([[0], np.cumsum(ids["length"])])
        order = np.argsort(ids["k1"])
        k1 = ids["k1"][order]
        if (k1[1:] == k1[:-1]).any():
            order = np.lexsort((ids["k2"], ids["k1"]))
            k1 = ids["k1"][order]
        k2 = ids["k2"][order]
        new = np.ones(len(order), bool)
        new[1:] = (k1[1:] != k1[:-1]) | (k2[1:] != k2[:-1])
        chosen, k1, k2 = order[new], k1[new], k2[new]
        raw, ends = text.tobytes(), zip(starts[chosen].tolist(), starts[chosen + 1].tolist(), strict=True)
        if raw.isascii():
            letters = raw.decode("ascii")
            names = [letters[start:stop] for start, stop in ends]
        else:
            names = [raw[start:stop].decode("utf-8") for start, stop in ends]
        if (k1[1:] == k1[:-1]).any():  # two ids with the same first 64 bits: the id decides their order
            order = np.array(sorted(range(len(names)), key=lambda i: (int(k1[i]), names[i])))
            k1, k2, names = k1[order], k2[order], [names[i] for i in order]
        parts = [_SortedPart.of(logs[log], logs[keys], k1, k2) for log, keys in KEYS_OF.items()]
        return _Sorted(k1, names, parts[0], parts[1] if self.heldout else None, self.layout)


@dataclass(frozen=True, slots=True)
class _SortedPart:
    """The order of records by client. order: (n,) int64, their positions; ptr: (C + 1,) int64, where each client's
    begin in that order
    """

    records: np.ndarray
    order: np.ndarray
    ptr: np.ndarray

    @classmethod
    def of(cls, records: np.ndarray, keys: np.ndarray, k1: np.ndarray, k2: np.ndarray) -> _SortedPart:
        """keys: (n, 2), of the records; k1, k2: (C,) the keys of the clients, in their order"""
        position = positions(k1, keys[:, 0])
        if (k1[1:] == k1[:-1]).any():
            place = {pair: i for i, pair in enumerate(zip(k1.tolist(), k2.tolist(), strict=True))}
            position = np.array([place[pair] for pair in map(tuple, keys.tolist())], np.int64)
        ptr = np.concatenate([[0], np.cumsum(np.bincount(position, minlength=len(k1)))])
        small = position.astype(np.uint16) if len(k1) <= 1 << 16 else position  # which NumPy sorts by radix
        return cls(records, np.argsort(small, kind="stable"), ptr)

    def clients(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """(ptr, records) of some clients."""
        chosen = self.order[self.ptr[start] : self.ptr[stop]]
        return self.ptr[start : stop + 1] - self.ptr[start], self.records.take(chosen, axis=0)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Clients whose records are in memory, in no order. keys: (C,) uint64, the first key of each client"""

    keys: np.ndarray
    names: list[str]
    train: _SortedPart
    heldout: _SortedPart | None
    layout: Layout

    @property
    def _bytes(self) -> np.ndarray:
        """(C + 1,) int64, of the records of the clients before each."""
        ends = [part.ptr for part in (self.train, self.heldout) if part is not None]
        return np.sum(ends, axis=0) * self.layout.size

    @property
    def largest(self) -> int:
        """Bytes of the records of one client, at most."""
        return int(np.diff(self._bytes).max())

    def slices(self, size: int) -> Iterator[Clients]:
        """All clients, about `size` bytes of records at a time."""
        ends, start = self._bytes, 0
        while start < len(self.names):
            stop = int(np.searchsorted(ends, ends[start] + size))
            stop = min(max(stop, start + 1), len(self.names))
            yield self._clients(start, stop)
            start = stop

    def whole(self) -> Clients:
        return self._clients(0, len(self.names))

    def _clients(self, start: int, stop: int) -> Clients:
        names = self.names[start:stop]
        parts = [
            None if one is None else self._part(*one.clients(start, stop), names) for one in (self.train, self.heldout)
        ]
        assert parts[0] is not None
        return Clients(self.keys[start:stop], names, parts[0], parts[1])

    def _part(self, ptr: np.ndarray, records: np.ndarray, names: list[str]) -> scipy.sparse.csr_matrix | Rows:
        if self.layout.kind != "counts":
            return ptr, records
        totals = np.bincount(
            np.repeat(np.arange(len(names)), np.diff(ptr)), weights=records["amount"], minlength=len(names)
        )
        if len(totals) and totals.max() > LARGEST_COUNT:
            raise too_many(names[int(totals.argmax())])
        shape = (len(names), self.layout.features)
        counts = scipy.sparse.csr_matrix((records["amount"], records["token"], ptr), shape=shape)
        counts.sum_duplicates()
        return counts


def _spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Positions of several spans, one after another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def too_many(name: str) -> IngestError:
    """Return the error for a client whose total count is too large for a float to hold exactly."""
    return IngestError(
        f"The counts of the client {name!r} add up to more than 2**53.",
        "Check the count column; scale the counts down.",
        without_values="The counts of a client add up to more than 2**53.",
    )


def spill_batch(spill: Spill, batch: Batch, known: KnownKeys) -> None:
    """Adds a batch of a keyed source, by the hash of its client ids."""
    keys, new = known(batch.ids)
    spill.heldout |= batch.heldout
    spill.add(keys[new], chosen(batch.ids, np.flatnonzero(new)))
    if batch.x is not None:
        spill.add_rows(batch.heldout, keys.take(batch.codes, axis=0), batch.x)
    elif batch.tokens is not None and batch.amounts is not None:
        spill.add_counts(batch.heldout, keys.take(batch.codes, axis=0), batch.tokens, batch.amounts)


def write_clients(writer: PopulationWriter, clients: Clients | LargeClient) -> None:
    """Writes what came out of a spill."""
    if isinstance(clients, LargeClient):
        heldout = clients.tiles(heldout=True) if clients.heldout is not None else None
        writer.write_large(clients.id, clients.tiles(), heldout)
    else:
        writer.write(clients.ids, clients.train, clients.heldout)
