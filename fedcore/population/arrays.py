"""Zarr v3 arrays of a block: written piece by piece, read whole or by rows, never with silent fill values.

Codecs: counts and pointers blosc lz4 + shuffle, then crc32c; dense rows crc32c alone (random floats do not
compress). `chunks` writes and reads them. What is read is compared with the digests of its slot on its way from the
store to the decoder, so that nothing is read twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedcore.errors import PopulationError
from fedcore.population.chunks import ArrayDamaged, PlainArray, plain_array, write_chunk, write_metadata
from fedcore.population.slots import Slot, SlotDamaged

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
        rest = self._put(dtype)
        self._pieces, self._held = [piece.copy() for piece in rest], sum(piece.nbytes for piece in rest)

    def _entry(self, dtype: np.dtype) -> int:
        return dtype.itemsize * int(np.prod(self.tail))

    def _put(self, dtype: np.dtype) -> list[np.ndarray]:
        """Writes all whole chunks of what is held; returns the rest."""
        chunk, missing = list[np.ndarray](), self._chunk
        for piece in self._pieces:
            while len(piece) >= missing:
                self._write([*chunk, piece[:missing]], dtype)
                chunk, piece, missing = [], piece[missing:], self._chunk
            if len(piece):
                chunk.append(piece)
                missing -= len(piece)
        return chunk

    def _write(self, chunk: list[np.ndarray], dtype: np.dtype) -> None:
        write_chunk(self.folder, self._chunks, [piece.astype(dtype, copy=False) for piece in chunk], self._chunk)
        self._chunks += 1

    def close(self) -> np.dtype:
        """Writes what is held, and the metadata; returns the stored dtype."""
        held = sum(len(piece) for piece in self._pieces)
        largest = max((piece.max() for piece in self._pieces), default=0) if self.dtype is None else 0
        small = not self._chunk and largest <= np.iinfo(np.int32).max
        dtype = np.dtype(self.dtype or (np.int32 if small else np.int64))
        if not self._chunk and dtype.kind == "f":  # equal chunks, so that the last one is not mostly padding
            self._chunk = -(-held // max(-(-held * self._entry(dtype) // CHUNK_BYTES), 1))
        self._chunk = self._chunk or max(held, 1)
        if rest := self._put(dtype):
            self._write(rest, dtype)
        self._pieces = []
        write_metadata(self.folder, (self.length, *self.tail), self._chunk, dtype)
        return dtype


_open = lru_cache(maxsize=OPEN_ARRAYS)(plain_array)  # the slot's digest distinguishes two populations of one path


def open_array(slot: Slot, name: str, shape: tuple[int, ...], dtype: str) -> PlainArray:
    """The stored array of this name, such as train/x, checked against the manifest's shape and dtype.

    Raises SlotDamaged, and PopulationError if its storage cannot be reached.
    """
    try:
        array = _open(slot, name)
    except (PopulationError, SlotDamaged):
        raise
    except Exception as error:  # metadata that are unreadable, or an array's of another writer
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
    try:
        return array.read(start, stop)
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
