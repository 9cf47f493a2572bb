"""Zarr v3 arrays of a block: written piece by piece, read whole or by rows, never with silent fill values.

Codecs: counts and pointers blosc lz4 + shuffle, then crc32c; dense rows crc32c alone (random floats do not
compress). What is read is compared with the digests of its slot on its way from the store to the decoder, so that
nothing is read twice. `chunks` writes and decodes arrays of this machine; Zarr decodes those behind a URL and those of
slots without digests. It returns fill values for a chunk that is not there; such a store raises instead. In slots
without digests the files are looked for first; behind a URL the store itself raises, which saves a request for each.
zarr is imported when it is first needed: it would slow down the command line's start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from fedcore.errors import PopulationError
from fedcore.population import layout
from fedcore.population.chunks import ArrayDamaged, PlainArray, plain_array, write_chunk, write_metadata
from fedcore.population.slots import Slot, SlotDamaged
from fedcore.storage import objects as object_storage

CHUNK_BYTES = 8 << 20  # of a chunk of an array that has several
STREAM_BYTES = 32 << 20  # an array is buffered up to here; beyond, it is written chunk by chunk
OPEN_ARRAYS = 4096  # handles kept for each process


@dataclass
class ArrayWriter:
    """Appends along the first axis, holding at most stream_bytes, and writes the array at `close`.

    dtype: of the stored array; None for counts: int32, or int64 if a value needs it or the array was streamed
    tail:  shape of one entry, () for vectors
    stream_bytes: an array that outgrows this is written chunk by chunk
    """

    folder: Path
    dtype: np.dtype | None
    tail: tuple[int, ...] = ()
    stream_bytes: int = STREAM_BYTES
    length: int = 0
    _pieces: list[np.ndarray] = field(default_factory=list)
    _held: int = 0  # bytes in _pieces
    _chunk: int = 0  # entries of a chunk, once streaming
    _chunks: int = 0  # that are written

    def append(self, values: np.ndarray) -> None:
        if not len(values):
            return
        if self.dtype is not None:
            values = np.asarray(values, self.dtype)
        self._pieces.append(values)
        self._held += values.nbytes
        self.length += len(values)
        if self._held > self.stream_bytes:
            self._stream()

    def _stream(self) -> None:
        """Writes all whole chunks that are held."""
        dtype = np.dtype(self.dtype or np.int64)
        self._chunk = self._chunk or max(min(CHUNK_BYTES, self.stream_bytes // 2) // max(self._entry(dtype), 1), 1)
        held = np.concatenate(self._pieces)
        whole = len(held) // self._chunk * self._chunk
        self._put(held[:whole].astype(dtype, copy=False))
        rest = held[whole:].copy()
        self._pieces, self._held = [rest], rest.nbytes

    def _entry(self, dtype: np.dtype) -> int:
        return dtype.itemsize * int(np.prod(self.tail))

    def _put(self, values: np.ndarray) -> None:
        for start in range(0, len(values), self._chunk):
            write_chunk(self.folder, self._chunks, values[start : start + self._chunk], self._chunk)
            self._chunks += 1

    def close(self) -> np.dtype:
        """Writes what is held, and the metadata; returns the stored dtype."""
        held = np.concatenate(self._pieces) if self._pieces else np.zeros((0, *self.tail), self.dtype or np.int32)
        self._pieces = []
        small = not self._chunk and (not len(held) or held.max() <= np.iinfo(np.int32).max)
        dtype = np.dtype(self.dtype or (np.int32 if small else np.int64))
        if not self._chunk and dtype.kind == "f":  # equal chunks, so that the last one is not mostly padding
            self._chunk = -(-len(held) // max(-(-len(held) * self._entry(dtype) // CHUNK_BYTES), 1))
        self._chunk = self._chunk or max(len(held), 1)
        self._put(held.astype(dtype, copy=False))
        write_metadata(self.folder, (self.length, *self.tail), self._chunk, dtype)
        return dtype


@cache
def _checking_store():
    from zarr.abc.store import Store
    from zarr.storage import WrapperStore

    class CheckingStore(WrapperStore[Store]):
        """What it gives is what the slot's digests say; anything else is an error, also what is missing.

        name: of the array; below: path of the slot's folder in the store, with a slash if there is one
        """

        def __init__(self, store: Store, slot: Slot, name: str, below: str):
            super().__init__(store)
            self.slot, self.name, self.below = slot, name, below

        def _with_store(self, store):
            return type(self)(store, self.slot, self.name, self.below)

        async def get(self, key, prototype, byte_range=None):
            file = key.removeprefix(self.below)
            part = file.removeprefix(f"{self.name}/")
            what = f"{self.name}: {part if part == 'zarr.json' else f'the chunk {part}'}"
            if byte_range is not None:  # of arrays in shards, which are never written
                raise ArrayDamaged(f"{what} is a shard")
            try:
                found = await self._store.get(key, prototype)
            except FileNotFoundError:
                found = None
            if found is None:
                raise ArrayDamaged(f"{what} is missing")
            if not self.slot.has(file, found.as_numpy_array()):
                raise ArrayDamaged(f"{what} is truncated or altered, or that of another block")
            return found

    return CheckingStore


@lru_cache(maxsize=OPEN_ARRAYS)
def _open(slot: Slot, name: str):
    """The array. The slot's fingerprint is part of the cache key: two populations may share a path."""
    if slot.digest is not None and not layout.is_remote(slot.folder):
        plain = plain_array(slot, name)
        if plain is not None:
            return plain
    import zarr

    if layout.is_remote(slot.folder):
        if slot.digest is None:
            return object_storage.open_array(f"{slot.folder}/{name}")
        store, below = object_storage.array_store(str(slot.folder))
        below = f"{below}/"
        return object_storage.open_in(_checking_store()(store, slot, name, below), f"{below}{name}", str(slot.folder))
    if slot.digest is None:
        return zarr.open_array(str(slot.folder / name), mode="r")
    store = _checking_store()(zarr.storage.LocalStore(slot.folder, read_only=True), slot, name, "")
    return zarr.open_array(store=store, path=name, mode="r", zarr_format=3)


def _chunk_files(array, folder: Path, start: int, stop: int) -> Iterable[Path]:
    rows = array.chunks[0]
    tail = (0,) * (len(array.shape) - 1)
    for chunk in range(start // rows, -(-stop // rows)):
        yield folder / array.metadata.encode_chunk_key((chunk, *tail))


def open_array(slot: Slot, name: str, shape: tuple[int, ...], dtype: str):
    """The stored array of this name, such as train/x, checked against the manifest's shape and dtype.

    Raises SlotDamaged, and PopulationError if its storage cannot be reached.
    """
    try:
        array = _open(slot, name)
    except (PopulationError, SlotDamaged):
        raise
    except Exception as error:  # zarr raises many kinds for unreadable metadata
        raise ArrayDamaged(f"{name} cannot be opened ({type(error).__name__})") from error
    if array.shape != shape or array.dtype != np.dtype(dtype) or array.chunks[1:] != shape[1:]:
        raise ArrayDamaged(f"{name} is {array.dtype}{array.shape}, the manifest says {dtype}{shape}")
    return array


def read(
    slot: Slot, name: str, shape: tuple[int, ...], dtype: str, start: int = 0, stop: int | None = None
) -> np.ndarray:
    """Entries start .. stop - 1 (default: all) of a stored array.

    Raises SlotDamaged if a chunk is missing, truncated, altered or another one, PopulationError if its storage cannot
    be reached.
    """
    array = open_array(slot, name, shape, dtype)
    stop = shape[0] if stop is None else stop
    if start >= stop:
        return np.empty((0, *shape[1:]), dtype)
    if slot.digest is None and not layout.is_remote(slot.folder):
        folder = slot.folder / name
        for file in _chunk_files(array, folder, start, stop):
            if not file.is_file():
                raise ArrayDamaged(f"{name}: the chunk {file.relative_to(folder)} is missing")
    try:
        if isinstance(array, PlainArray):
            return array.read(start, stop)
        return array[...] if stop - start == shape[0] else array[start:stop]
    except (PopulationError, SlotDamaged):
        raise
    except FileNotFoundError as error:
        chunk = str(error.filename).rpartition(f"{name}/")[2]
        raise ArrayDamaged(f"{name}: the chunk {chunk} is missing") from error
    except Exception as error:  # each codec has its own error for damaged bytes
        raise ArrayDamaged(f"{name}: a chunk is truncated or altered ({type(error).__name__})") from error


def chunk_length(slot: Slot, name: str, shape: tuple[int, ...], dtype: str) -> int:
    """The number of entries in one stored chunk."""
    return open_array(slot, name, shape, dtype).chunks[0]
