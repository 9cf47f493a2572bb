"""Arrays and scalars in one file: a zipped Zarr group, in a folder or in object storage.

Arrays and JSON only: reading executes nothing, and names and sizes are checked first. An object is built and read in
memory, so that nothing of it lies on the disk of a worker.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import google_crc32c
import numpy as np
import zarr

from fedcore import files
from fedcore.errors import RunError, Unreachable
from fedcore.files import Place, is_remote, replace_durably

SCHEMA = 1
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile, zarr.errors.BaseZarrError)
MAX_STATE_BYTES = 16 * 2**30
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@contextmanager
def writing(what: str) -> Iterator[None]:
    """A full or broken disk, or a missing permission, met inside becomes a RunError that names what was written."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {what} of the run: {error.strerror or error}.",
            "Free some space or mend the disk, then resume: committed rounds are kept.",
        ) from error


def write_values(path: Place, values: Mapping[str, Any]) -> None:
    """Arrays to Zarr, scalars (str, bool, int, float, None) to its attributes, in one zip file; durable on return.

    The file appears whole or not at all. One that exists already is replaced: it was never committed.
    """
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    scalars = {name: _scalar(name, value) for name, value in values.items() if name not in arrays}
    bad = [name for name in values if not NAME.fullmatch(name)]
    if bad:
        raise RunError(f"{bad[0]!r} cannot be the name of a stored value.")
    if is_remote(path):
        return files.write_whole(path, _zipped(arrays, scalars))
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    try:
        with writing(repr(path.name)):
            path.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(partial, "w") as archive:
                _write_group(archive, arrays, scalars)
            replace_durably(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _write_group(archive: zipfile.ZipFile, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, Any]) -> None:
    """What Zarr would write, entry by entry. Its own way to one takes a millisecond, and a state has dozens in every
    round; so Zarr describes each kind of array once, and the chunks, one for each array, are written here.
    """
    shapes = {name: list(value.shape) for name, value in arrays.items()}
    attributes = {"schema": SCHEMA, "scalars": scalars, "arrays": shapes}
    archive.writestr("zarr.json", json.dumps({**_described_group(), "attributes": attributes}))
    for name, value in arrays.items():
        archive.writestr(f"{name}/zarr.json", _described(value.shape, value.dtype))
        if value.size:
            content = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes()
            checksum = np.array(google_crc32c.value(content), "<u4").tobytes()
            archive.writestr("/".join([name, "c", *("0" for _ in value.shape)]), content + checksum)


@lru_cache
def _described_group() -> dict:
    entries: dict[str, Any] = {}
    zarr.create_group(zarr.storage.MemoryStore(entries), zarr_format=3)
    return json.loads(entries["zarr.json"].to_bytes())


@lru_cache(maxsize=1024)
def _described(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """Zarr's description of an array that is one chunk, with a checksum."""
    entries: dict[str, Any] = {}
    zarr.create_array(zarr.storage.MemoryStore(entries), shape=shape, chunks=tuple(max(1, n) for n in shape),
                      dtype=dtype, compressors=[zarr.codecs.Crc32cCodec()], zarr_format=3)  # fmt: skip
    return entries["zarr.json"].to_bytes()


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


def read_values(path: Place) -> dict[str, Any]:
    """What `write_values` wrote. Raises RunError if anything is missing, torn, too large, or of another schema."""
    try:
        with _opened(path) as (store, stored):
            group = zarr.open_group(store, mode="r", zarr_format=3)
            attributes = dict(group.attrs)
            arrays, values = attributes["arrays"], dict(attributes["scalars"])
            if type(attributes["schema"]) is int and attributes["schema"] != SCHEMA:
                raise unknown_schema(f"the file of stored values {path.name!r}", attributes["schema"])
            if attributes["schema"] != SCHEMA or not all(NAME.fullmatch(name) for name in [*arrays, *values]):
                raise ValueError("unknown schema or names")
            for name, shape in arrays.items():
                array = group[name]
                if list(array.shape) != shape or array.nbytes > MAX_STATE_BYTES or array.dtype.kind not in "biuf":
                    raise ValueError(f"array {name!r} is not as declared")
                # Zarr's own count of chunks fails on a zip when one name is the beginning of another.
                if array.size and sum(f"{entry}/".startswith(f"{name}/c/") for entry in stored) != array.nchunks:
                    raise ValueError(f"array {name!r} lacks chunks")
                values[name] = np.asarray(array[...])
    except Unreachable:
        raise
    except UNREADABLE as error:
        raise RunError(
            f"stored values {path.name!r} are unreadable ({type(error).__name__}: {error}).",
            "Restore this file of the run from a backup, or train again.",
        ) from error
    return values


def unknown_schema(what: str, found: Any) -> RunError:
    """For what another version of fedcore wrote; it is not guessed at."""
    return RunError(f"{what} has the unknown schema {found!r}; this version of fedcore knows {SCHEMA}.",
                    "Use the version of fedcore that wrote it, or a newer one.")  # fmt: skip


@contextmanager
def _opened(path: Place) -> Iterator[tuple[Any, list[str]]]:
    """(store, names of the entries) of a zip file."""
    if not is_remote(path):
        with zipfile.ZipFile(path) as archive:  # Zarr's store cannot close what it could not open
            stored = archive.namelist()
        with zarr.storage.ZipStore(path, mode="r") as store:
            yield store, stored
        return
    with zipfile.ZipFile(io.BytesIO(files.read_bytes(path))) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MAX_STATE_BYTES:
            raise ValueError("it is too large")
        whole = zarr.core.buffer.default_buffer_prototype().buffer
        entries = {name: whole.from_bytes(archive.read(name)) for name in archive.namelist()}
    yield zarr.storage.MemoryStore(entries, read_only=True), list(entries)


def state_values(state: Any) -> dict[str, Any]:
    """The fields of a state dataclass."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
