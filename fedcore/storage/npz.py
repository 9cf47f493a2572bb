"""NPY and NPZ files that may declare anything: what their headers say is compared with what they have, before memory is
taken for it. Nothing is executed.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

BROKEN = (OSError, EOFError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)  # of damaged archives


def npy_header(file: IO[bytes], bytes_left: Callable[[int], int]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, whether it is stored column by column, dtype) of the array in this NPY file, which is read so far.

    bytes_left: of the file after a position. Raises ValueError if the header declares other bytes than there are, or
    Python objects.
    """
    try:
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(file)
    except BROKEN:
        raise
    except Exception as error:  # a header is a Python literal, and says so in many ways if it is none
        raise ValueError(f"its header is none ({type(error).__name__})") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    declared, there = math.prod(shape) * dtype.itemsize, bytes_left(file.tell())
    if any(length < 0 for length in shape) or declared != there:
        raise ValueError(f"its header declares {declared} bytes, and there are {there}")
    return shape, fortran, dtype


def read_npz(source: Path | IO[bytes], most_bytes: int) -> Mapping[str, np.ndarray]:
    """The plain arrays of an NPZ file. Raises what BROKEN lists; ValueError for more than `most_bytes`, and for arrays
    that are not what they declare.
    """
    arrays = {}
    with zipfile.ZipFile(source) as archive:
        declared = sum(entry.file_size for entry in archive.infolist())
        if declared > most_bytes:
            raise ValueError(f"it unpacks to {declared} bytes, more than {most_bytes}")
        for entry in archive.infolist():
            with archive.open(entry) as file:
                shape, fortran, dtype = npy_header(file, lambda at, size=entry.file_size: size - at)  # type: ignore[misc]
                values = np.frombuffer(file.read(), dtype)
            arrays[entry.filename.removesuffix(".npy")] = values.reshape(shape, order="F" if fortran else "C").copy()
    return arrays
