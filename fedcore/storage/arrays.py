"""Arrays and scalars in one file, in a folder or in object storage: a zipped Zarr group, or arrays in their layout in
memory (`fedcore.storage.raw_arrays`), depending on the name of the file.

Arrays and JSON only: reading executes nothing, and names and sizes are checked first. An object is built and read in
memory, so no part of it is on the disk of a worker.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import secrets
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import google_crc32c
import numpy as np

from fedcore.errors import RunError, Unreachable
from fedcore.storage import digests, files, raw_arrays
from fedcore.storage.files import Place, is_remote, replace_durably
from fedcore.storage.parsing import parse_json

SCHEMA = 1
UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error)
ANY_TIME = (1980, 1, 1, 0, 0, 0)  # of the entries: files with the same values are the same
MAX_STATE_BYTES = 16 * 2**30
CHECKSUM = 4  # bytes of CRC32C behind a chunk
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turns an OSError (full or broken disk, missing permission) into a RunError that names what was written."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {what} of the run: {error.strerror or error}.",
            "Free some space or repair the disk, then resume: committed rounds are kept.",
        ) from error


def write_values(path: Place, values: Mapping[str, Any], *, durable: bool = True, name: bool = True) -> str:
    """Write arrays and scalars to one zip file: arrays to Zarr, scalars (str, bool, int, float, None) to attributes; or
    arrays alone to a file of raw arrays.

    durable: whether the file is on the disk on return, and not only in the memory of the system; name: whether its name
    is as well, which `fedcore.storage.files.flush` of the folder does for many files at once. The file appears complete
    or not at all. One that exists already is replaced: it was never committed. The same values make the same bytes.
    Returns their BLAKE3. Raises RunError.
    """
    arrays = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
    scalars = {key: _scalar(key, value) for key, value in values.items() if key not in arrays}
    bad = [key for key in values if not NAME.fullmatch(key)]
    if bad:
        raise RunError(f"{bad[0]!r} cannot be the name of a stored value.")
    raw = path.suffix == raw_arrays.SUFFIX
    if raw and scalars:
        raise RunError(f"{next(iter(scalars))!r} cannot be stored in {path.name!r}: it is no array.")
    if odd := [key for key, value in arrays.items() if value.dtype.kind not in raw_arrays.KINDS]:
        raise RunError(f"{odd[0]!r} cannot be stored in {path.name!r}: it is of type {arrays[odd[0]].dtype}.")
    if is_remote(path):
        content = b"".join(raw_arrays.pieces(arrays)) if raw else _zipped(arrays, scalars)
        files.write_whole(path, content)
        return digests.of_data(content)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    try:
        with writing(repr(path.name)):
            files.make_folder(path.parent)
            if raw:
                digest = _write_raw(partial, arrays)
            else:
                with files.opened(partial) as file, zipfile.ZipFile(file, "w") as archive:
                    _write_group(archive, arrays, scalars)
                digest = digests.of_file(partial)
            replace_durably(partial, path, name=name) if durable else os.replace(partial, path)
            return digest
    finally:
        partial.unlink(missing_ok=True)


def _write_raw(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """BLAKE3 of the file, which is not read again."""
    hasher = digests.Hasher()
    with files.opened(path) as file:
        for piece in raw_arrays.pieces(arrays):
            hasher.update(piece)
            file.write(piece)
    return hasher.hexdigest()


def _write_group(archive: zipfile.ZipFile, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, Any]) -> None:
    """Write into the archive what Zarr would write, entry by entry.

    Zarr itself takes a millisecond for each array, and a state has dozens in every round; and its import is a sixth of
    a small run.
    """
    shapes = {name: list(value.shape) for name, value in arrays.items()}
    attributes = {"schema": SCHEMA, "scalars": scalars, "arrays": shapes}
    group = json.dumps({"attributes": attributes, "zarr_format": 3, "node_type": "group"})
    archive.writestr(zipfile.ZipInfo("zarr.json", ANY_TIME), group)
    for name, value in arrays.items():
        archive.writestr(zipfile.ZipInfo(f"{name}/zarr.json", ANY_TIME), _described(value.shape, value.dtype))
        if value.size:
            content = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
            entry = zipfile.ZipInfo(_chunk(name, value.shape), ANY_TIME)
            entry.file_size = content.nbytes + CHECKSUM
            with archive.open(entry, "w") as chunk:  # what writestr does, without copies of the content
                chunk.write(cast(bytes, content.data))
                chunk.write(google_crc32c.value(content).to_bytes(CHECKSUM, "little"))


def _chunk(name: str, shape: tuple[int, ...]) -> str:
    return "/".join([name, "c", *("0" for _ in shape)])


@lru_cache(maxsize=1024)
def _described(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """Zarr's description of an array of numbers that is one chunk, with a checksum, byte by byte."""
    return array_metadata(shape, tuple(max(1, n) for n in shape), dtype, dtype.type(0).item())


def _zipped(arrays: Mapping[str, np.ndarray], scalars: Mapping[str, Any]) -> bytes:
    """The zip file as bytes: the same entries as in a folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        _write_group(archive, arrays, scalars)
    return buffer.getvalue()


def _scalar(name: str, value: Any) -> Any:
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)) and math.isfinite(value):
        return float(value)
    raise RunError(f"{name!r} cannot be stored: a {type(value).__name__} is neither an array nor a finite scalar.")


def read_values(path: Place, digest: str | None = None) -> dict[str, Any]:
    """What `write_values` wrote, by name. digest: that it returned; None: not known, so not compared.

    Raises RunError if it is missing, torn, too large, of another schema, or another one.
    """
    try:
        if path.suffix == raw_arrays.SUFFIX:
            return _read_raw(path, digest)
        with _opened(path, digest) as archive:
            _check_sizes(archive)
            attributes = parse_json(archive.read("zarr.json"))["attributes"]
            arrays, values = attributes["arrays"], dict(attributes["scalars"])
            if type(attributes["schema"]) is int and attributes["schema"] != SCHEMA:
                raise unknown_schema(f"the file of stored values {path.name!r}", attributes["schema"])
            if attributes["schema"] != SCHEMA or not all(NAME.fullmatch(name) for name in [*arrays, *values]):
                raise ValueError("unknown schema or names")
            for name, shape in arrays.items():
                values[name] = _read_array(archive, name, tuple(shape))
    except Unreachable:
        raise
    except UNREADABLE as error:
        raise RunError(
            f"stored values {path.name!r} are unreadable ({type(error).__name__}: {error}).",
            "Restore this file of the run from a backup, or train again.",
        ) from error
    return values


def _read_raw(path: Place, digest: str | None) -> dict[str, Any]:
    """Raises what UNREADABLE lists."""
    content = raw_arrays.read_content(path, MAX_STATE_BYTES)
    if digest is not None and digest != digests.of_data(content.data):
        raise ValueError("it is not the file that was written")
    arrays = raw_arrays.arrays_of(content)
    if not all(NAME.fullmatch(name) for name in arrays):
        raise ValueError("unknown names")
    return dict(arrays)


def _check_sizes(archive: zipfile.ZipFile) -> None:
    """Raises ValueError for an archive that unpacks to more than it is: what is stored here is never compressed."""
    assert archive.fp is not None
    stored = archive.fp.seek(0, io.SEEK_END)
    declared = sum(entry.file_size for entry in archive.infolist())
    if declared > min(stored, MAX_STATE_BYTES):
        raise ValueError(f"it is too large: it has {stored} bytes and would unpack to {declared}")


def _read_array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """One array. Raises what UNREADABLE lists."""
    described = parse_json(archive.read(f"{name}/zarr.json"))
    dtype = np.dtype(described["data_type"])
    if dtype.kind not in raw_arrays.KINDS or described != json.loads(_described(shape, dtype)):
        raise ValueError(f"array {name!r} is not as declared")
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    entry, nbytes = archive.getinfo(_chunk(name, shape)), math.prod(shape) * dtype.itemsize
    if nbytes > MAX_STATE_BYTES or entry.file_size != nbytes + CHECKSUM:
        raise ValueError(f"array {name!r} is not as declared")
    content = archive.read(entry)
    values = np.frombuffer(content, dtype.newbyteorder("<"), math.prod(shape))
    if google_crc32c.value(content[:nbytes]) != int.from_bytes(content[nbytes:], "little"):
        raise ValueError(f"array {name!r} is not what its checksum says")
    return values.astype(dtype).reshape(shape)


def unknown_schema(what: str, found: Any, known: int = SCHEMA) -> RunError:
    """The error for something that another version of fedcore wrote. known: the newest schema of such things."""
    return RunError(
        f"{what} has the unknown schema {found!r}; this version of fedcore knows {known}.",
        "Use the version of fedcore that wrote it, or a newer one.",
    )


def _opened(path: Place, digest: str | None) -> zipfile.ZipFile:
    content = b""
    if is_remote(path):
        content = files.read_bytes(path)
    else:
        files.check_regular(path)
    if digest is not None:
        if digest != (digests.of_data(content) if is_remote(path) else digests.of_file(path)):
            raise ValueError("it is not the file that was written")
    return zipfile.ZipFile(io.BytesIO(content)) if is_remote(path) else zipfile.ZipFile(path)


def state_values(state: Any) -> dict[str, Any]:
    """The fields of a state dataclass by name, not copied."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


def array_metadata(
    shape: tuple[int, ...], chunk: tuple[int, ...], dtype: np.dtype, fill: Any, compressed: Sequence[dict] = ()
) -> bytes:
    """Content of `zarr.json` of an array: `described_array` as JSON."""
    return json.dumps(described_array(shape, chunk, dtype, fill, compressed), indent=2).encode()


def described_array(
    shape: tuple[int, ...], chunk: tuple[int, ...], dtype: np.dtype, fill: Any, compressed: Sequence[dict] = ()
) -> dict[str, Any]:
    """What `zarr.json` holds of an array of numbers in chunks of this shape, with a CRC32C behind each.

    fill: value of what is not stored, as JSON; compressed: codecs between bytes and checksum
    """
    order = {} if dtype.itemsize == 1 else {"configuration": {"endian": "little"}}
    return {
        "shape": [*shape],
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*chunk]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [{"name": "bytes", **order}, *compressed, {"name": "crc32c"}],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
