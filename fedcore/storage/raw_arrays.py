"""Arrays in one file in their layout in memory. This is for arrays that every round writes again, where the checksums
of a zip file and of Zarr's chunks take longer than the writing. The BLAKE3 of the file, stored elsewhere, replaces
both.

    8 bytes         MAGIC
    8 bytes         length of the header, a little-endian whole number
    header          JSON: {"schema": 1, "arrays": [[name, dtype, shape], ...]}, spaces up to a multiple of 64 bytes
    arrays          in this order, C-contiguous, little-endian, each from a multiple of 64 bytes on

Reading executes nothing, and names and sizes are checked first.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping

import numpy as np

from fedcore.storage import files
from fedcore.storage.files import Place
from fedcore.storage.parsing import parse_json

SUFFIX = ".arrays"
MAGIC = b"fedcore\n"
SCHEMA = 1
KINDS = "biuf"  # of dtypes: booleans, whole numbers, floats
ALIGNED = 64
LARGEST_HEADER = 2**20
PADDING = bytes(ALIGNED)


def pieces(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """The content of a file with these arrays, piece by piece; arrays that already have the file's layout are not
    copied."""
    listed = [[name, value.dtype.newbyteorder("<").str, list(value.shape)] for name, value in arrays.items()]
    header = json.dumps({"schema": SCHEMA, "arrays": listed}).encode()
    header += b" " * _missing(len(MAGIC) + 8 + len(header))
    yield MAGIC + len(header).to_bytes(8, "little") + header
    for value in arrays.values():
        if value.size:
            content = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
            yield content.data
            yield PADDING[: _missing(content.nbytes)]


def read_content(file: Place, most_bytes: int) -> np.ndarray:
    """(bytes,) uint8 of the file, writable. Raises OSError, EOFError, Unreachable, and ValueError for a larger one."""
    if files.is_remote(file):
        return np.frombuffer(files.read_bytes(file), np.uint8).copy()
    files.check_regular(file)
    with open(file, "rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size > most_bytes:
            raise ValueError(f"it has {size} bytes, more than {most_bytes}")
        content, done = np.empty(size, np.uint8), 0
        while done < size:
            count = opened.readinto(content[done:].data)
            if not count:
                raise EOFError("it became shorter while it was read")
            done += count
    return content


def arrays_of(content: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a file's content, (bytes,) uint8, which they share. Raises ValueError, KeyError or TypeError for
    anything else."""
    start = len(MAGIC) + 8
    length = int.from_bytes(content[len(MAGIC) : start].tobytes(), "little")
    if content[: len(MAGIC)].tobytes() != MAGIC or length > min(LARGEST_HEADER, len(content) - start):
        raise ValueError("it is no file of arrays")
    header = parse_json(content[start : start + length].tobytes())
    if header["schema"] != SCHEMA:
        raise ValueError(f"unknown schema {header['schema']!r}")
    found: dict[str, np.ndarray] = {}
    at = start + length
    for name, kind, shape in header["arrays"]:
        dtype = np.dtype(kind)
        if not isinstance(name, str) or dtype.kind not in KINDS or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(f"array {name!r} is not as declared")
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > len(content) - at:
            raise ValueError(f"array {name!r} has more bytes than there are")
        values = content[at : at + nbytes].view(dtype)
        found[name] = values.astype(dtype.newbyteorder("="), copy=False).reshape(shape)
        at += nbytes + _missing(nbytes)
    if at != len(content):
        raise ValueError(f"it has {len(content)} bytes, and its header declares {at}")
    return found


def _missing(nbytes: int) -> int:
    """Bytes up to the next multiple of ALIGNED."""
    return -nbytes % ALIGNED
