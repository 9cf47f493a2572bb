"""Chunks of Zarr v3 arrays as `fedcore.population.arrays` writes them, decoded straight to where they are wanted.

Zarr reads and writes every array, and takes for each a thread, an event loop and some milliseconds: longer than a chunk
takes to encode or decode. So arrays are written here, byte by byte as Zarr would, and read here, in a folder or behind
a URL. Any Zarr reads them; arrays of other writers are refused.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from fedcore.population.slots import Slot, SlotDamaged, file_in, files_in
from fedcore.storage import files
from fedcore.storage import objects as object_storage
from fedcore.storage.arrays import array_metadata, described_array
from fedcore.storage.files import check_regular

METADATA = "zarr.json"
TYPES = ("uint8", "int32", "int64", "float32", "float64")
CODEC, LEVEL = "lz4", 5  # of Blosc
CHECKSUM = 4  # bytes of CRC32C behind a chunk, which BLAKE3 of the whole file covers
HEADER = struct.Struct("<4x3I")  # of a Blosc buffer: decoded bytes, block size, stored bytes


class ArrayDamaged(SlotDamaged):
    """What is stored is not the array that was expected."""


@dataclass(frozen=True, slots=True)
class PlainArray:
    """An array whose chunks are regular, little-endian, and compressed by Blosc or not at all, with a CRC32C behind.

    shape, chunks: of the array and of each chunk, which differ along the first axis only
    """

    slot: Slot
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...]
    compressed: bool

    def read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start, ...) entries; start < stop. Raises SlotDamaged, PopulationError, OSError, ValueError or
        RuntimeError.
        """
        values, rows = np.empty((stop - start, *self.shape[1:]), self.dtype), self.chunks[0]
        for number, content in self._stored(range(start // rows, -(-stop // rows))):
            low, high = number * rows, (number + 1) * rows
            if start <= low and high <= stop:
                self._decode(number, content, values[low - start : high - start])
                continue
            whole = np.empty(self.chunks, self.dtype)
            self._decode(number, content, whole)
            first, last = max(start, low), min(stop, high)
            values[first - start : last - start] = whole[first - low : last - low]
        return values

    def _stored(self, numbers: range) -> Iterator[tuple[int, bytes | None]]:
        """The numbers of chunks; behind a URL with their files, which are fetched several at a time."""
        folder = self.slot.folder
        if not files.is_remote(folder):
            yield from ((number, None) for number in numbers)
            return
        at_once = max(object_storage.BATCH_BYTES // max(math.prod(self.chunks) * self.dtype.itemsize, 1), 1)
        for first in range(0, len(numbers), at_once):
            names = {number: f"{self.name}/{self._key(number)}" for number in numbers[first : first + at_once]}
            found = files_in(folder, [*names.values()])
            for number, name in names.items():
                if name not in found:
                    raise ArrayDamaged(f"{self.name}: the chunk {self._key(number)} is missing")
                yield number, found[name]

    def _key(self, number: int) -> str:
        return _key(number, len(self.shape))

    def _decode(self, number: int, content: bytes | None, values: np.ndarray) -> None:
        """Fills values, of one chunk, if its file is the one that the slot's digests name. content: None if the file is
        on this machine"""
        key, room = self._key(number), memoryview(values.data).cast("B")
        if content is None:
            file = Path(str(self.slot.folder)) / self.name / key
            check_regular(file)
            with open(file, "rb") as handle:  # buffered: fills what it can, where the system hands out less at a time
                if not self.compressed:
                    read = handle.readinto(room)
                    behind = handle.read()
                    self._check(key, room[:read], behind)
                    if (read, len(behind)) != (len(room), CHECKSUM):
                        raise ValueError("another number of bytes")
                    return
                content = handle.read()
        self._check(key, content)
        if self.compressed:
            _decompress(memoryview(content)[:-CHECKSUM], values)
        elif len(content) == len(room) + CHECKSUM:
            room[:] = content[:-CHECKSUM]
        else:
            raise ValueError("another number of bytes")

    def _check(self, key: str, *content: Any) -> None:
        if not self.slot.has(f"{self.name}/{key}", *content):
            raise ArrayDamaged(f"{self.name}: the chunk {key} is truncated or altered, or that of another block")


def _decompress(stored: memoryview, values: np.ndarray) -> None:
    from numcodecs import blosc

    # Blosc gets where its buffer begins, and believes the header where it ends.
    if len(stored) < HEADER.size or HEADER.unpack_from(stored)[::2] != (values.nbytes, len(stored)):
        raise ValueError("another number of bytes")
    blosc.decompress(stored, values)


# --- writing ----------------------------------------------------------------------------------------------------------


def write_chunk(folder: Path, number: int, pieces: list[np.ndarray], rows: int) -> None:
    """Write one chunk of an array. Floats are stored as they are, whole numbers compressed. Raises OSError.

    pieces: its entries, of one dtype; rows: entries of a chunk, up to which the last one is filled
    """
    first, missing = pieces[0], rows - sum(map(len, pieces))
    if missing:
        pieces = [*pieces, np.full((missing, *first.shape[1:]), _fill(first.dtype), first.dtype)]
    stored = first.dtype.newbyteorder("<")
    contents: list[Any]
    if first.dtype.kind == "f":
        contents = [np.ascontiguousarray(piece, stored).reshape(-1).view(np.uint8) for piece in pieces]
    else:
        contents = [_compress(np.ascontiguousarray(np.concatenate(pieces), stored))]
    file, checksum = folder / _key(number, first.ndim), 0
    files.make_folder(file.parent)
    with files.opened(file) as handle:
        for content in contents:
            handle.write(content)
            checksum = google_crc32c.extend(checksum, content)
        handle.write(checksum.to_bytes(CHECKSUM, "little"))


def write_metadata(folder: Path, shape: tuple[int, ...], rows: int, dtype: np.dtype) -> None:
    """Of an array whose chunks are written. rows: entries of a chunk. Raises OSError."""
    blosc = {"typesize": dtype.itemsize, "cname": CODEC, "clevel": LEVEL, "shuffle": "shuffle", "blocksize": 0}
    compressed = [] if dtype.kind == "f" else [{"name": "blosc", "configuration": blosc}]
    fill = "NaN" if dtype.kind == "f" else 0
    files.make_folder(folder)
    with files.opened(folder / METADATA) as handle:
        handle.write(array_metadata(shape, (rows, *shape[1:]), dtype, fill, compressed))


def _compress(values: np.ndarray) -> bytes:
    from numcodecs import blosc

    blosc.use_threads = False  # with several, what comes first into the buffer is a matter of luck
    made: bytes = blosc.Blosc(CODEC, LEVEL, blosc.SHUFFLE).encode(values)
    return made


def _fill(dtype: np.dtype) -> float:
    return np.nan if dtype.kind == "f" else 0


def first_files(name: str, dimensions: int) -> tuple[str, str]:
    """Names of the description of an array and of its first chunk."""
    return f"{name}/{METADATA}", f"{name}/{_key(0, dimensions)}"


def _key(number: int, dimensions: int) -> str:
    return "/".join(map(str, ("c", number, *(0 for _ in range(dimensions - 1)))))


# --- reading ----------------------------------------------------------------------------------------------------------


def plain_array(slot: Slot, name: str) -> PlainArray:
    """The array of this name in a slot.

    Raises SlotDamaged, Unreachable, OSError; KeyError, TypeError or ValueError for an array of another writer.
    """
    try:
        content = file_in(slot.folder, f"{name}/{METADATA}")
    except FileNotFoundError:
        raise ArrayDamaged(f"{name}: {METADATA} is missing") from None
    if not slot.has(f"{name}/{METADATA}", content):
        raise ArrayDamaged(f"{name}: {METADATA} is truncated or altered, or that of another block")
    found = json.loads(content)
    shape, dtype = tuple(found["shape"]), np.dtype(found["data_type"])
    chunks, between = tuple(found["chunk_grid"]["configuration"]["chunk_shape"]), found["codecs"][1:-1]
    ours = (
        found == described_array(shape, chunks, dtype, found["fill_value"], between)
        and [codec["name"] for codec in between] in ([], ["blosc"])
        and dtype.name in TYPES
        and min(chunks[:1]) > 0
        and chunks[1:] == shape[1:]
        and sys.byteorder == "little"
    )
    if not ours:
        raise ValueError("it is not stored as fedcore stores arrays")
    return PlainArray(slot, name, shape, dtype, chunks, bool(between))
