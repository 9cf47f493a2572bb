"""Where the files of a population are, and the few file operations that its safety rests on.

    <path>/zarr.json                    root group, marked as a fedcore population
    <path>/blocks/<slot>/...            one Zarr group for each block slot
    <path>/vocabularies/<sha256>.txt    one token a line
    <path>/versions/000001.json         the manifest of a version; what no manifest names does not exist
    <path>/forgotten/...                who was forgotten, as keyed hashes (`fedcore.population.suppression`)
    <path>/forget.json                  while clients are being forgotten: which versions are to go
    <path>/ledger-head.json             the newest record of the privacy ledger that was seen
    <path>/.writer.lock                 held by the one process that writes

A population is written in a local folder, and read from there or, by `fedcore.storage.objects`, from behind a URL.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedcore.errors import ConfigError, PopulationError
from fedcore.storage import objects as object_storage
from fedcore.storage.files import (
    PARTIAL,
    AnyPlace,
    Place,
    below,
    find_link,
    flush,
    flush_written,
    is_private,
    is_remote,
    json_bytes,
    make_folder,
    opened,
    place,
    read_bytes,
    sweep_abandoned,
    write_whole,
)
from fedcore.storage.parsing import parse_json
from fedcore.storage.shared import NO_LINKS

BLOCKS, VERSIONS, VOCABULARIES = "blocks", "versions", "vocabularies"
FORGOTTEN, KEY = "forgotten", "key"
FORGET = "forget.json"  # while clients are being forgotten: which versions are to go
MARKER = ".copying"  # names the population that is being copied to a place; gone when the manifest is there
LOCK, SPILL = ".writer.lock", ".spill"
ROOT = "zarr.json"
WITNESS = "ledger-head.json"  # the newest record of the ledger that was seen
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def writable(location: str | Place) -> Path:
    """The local folder to write a population in. Raises ConfigError for a URL."""
    path = place(location)
    if is_remote(path):
        raise ConfigError(
            f"A population cannot be written straight to {path}.",
            "Write it to a local folder, then: fedcore population copy FOLDER URL",
        )
    return path


def block_folder(path: AnyPlace, slot: str) -> AnyPlace:
    return below(path, BLOCKS, slot)


def version_file(path: AnyPlace, version: int) -> AnyPlace:
    return below(path, VERSIONS, f"{version:06d}.json")


def vocabulary_file(path: AnyPlace, sha256: str) -> AnyPlace:
    return below(path, VOCABULARIES, f"{sha256}.txt")


def read_beside(path: Place, name: str) -> bytes | None:
    """Read a small file in the population's folder that no version names; None if there is none. Raises
    PopulationError."""
    try:
        return read_bytes(path / name)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise PopulationError(f"{path / name} cannot be read: {reason}.", "Check its permissions.") from error


def write_beside(path: Place, name: str, content: bytes) -> None:
    """Replace a small file in the population's folder that no version names, as a whole. Raises OSError,
    PopulationError."""
    write_whole(path / name, content, private=is_closed(path))


def refuse_links(path: Place, depth: int = 1) -> None:
    """Raises PopulationError for a symbolic link in a folder of a population, at most `depth` levels down."""
    try:
        link = find_link(path, depth)
    except OSError as error:
        raise PopulationError(f"{path} cannot be read: {error.strerror}.", "Check its permissions.") from error
    if link:
        raise PopulationError(
            f"{path / link} is a symbolic link. A population never reads, changes or "
            "deletes what is outside its folder.",
            "Replace the link by the file or folder itself.",
        )


def is_closed(path: Place) -> bool:
    """Whether the population is for its owner's eyes only, as those with a ledger are made. The folder above its
    blocks may have been there before, with any mode.
    """
    return not is_remote(path) and (path / BLOCKS).is_dir() and is_private(below(path, BLOCKS))


def first_witness(ledger_id: str) -> bytes:
    """Of a new population: nothing of its ledger was seen yet. That it was made with one is thereby known."""
    return json_bytes({"ledger_id": ledger_id, "seq": 0, "hash": "0" * 64})


def versions(path: Place) -> list[int]:
    """The committed versions, in order; empty if there is none."""
    folder = path / VERSIONS
    if is_remote(folder):
        stems = [name.removesuffix(".json") for name in object_storage.names(folder) if name.endswith(".json")]
        return sorted(int(stem) for stem in stems if stem.isdigit())
    if not folder.is_dir():
        return []
    return sorted(int(file.stem) for file in folder.glob("*.json") if file.stem.isdigit())


def is_population_root(path: Path) -> bool:
    """Whether the root group is marked as a population's."""
    try:
        attributes = parse_json((path / ROOT).read_text("utf-8")).get("attributes", {})
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(attributes, dict) and "fedcore" in attributes


def write_group(folder: Path) -> None:
    """A Zarr v3 group at this folder (Zarr specification v3, "group metadata")."""
    make_folder(folder)
    with opened(folder / ROOT) as file:
        file.write(_group({}))


def mark_root(path: Path, attributes: dict, private: bool = False) -> None:
    """Makes the folder a population's, and then the group of its blocks. Each is whole and durable, or absent: what a
    process that dies later leaves here is always known as a population's.
    """
    if not is_population_root(path):
        write_whole(path / ROOT, _group(attributes), private=private)
    if not (path / BLOCKS / ROOT).is_file():
        make_folder(path / BLOCKS, private)
        write_whole(path / BLOCKS / ROOT, _group({}), private=private)


def _group(attributes: dict) -> bytes:
    text = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=2)
    return f"{text}\n".encode()


def is_occupied(path: Path) -> bool:
    """Whether the folder holds anything but what a process left that died before it made anything of it."""
    return any(entry.name != LOCK and not PARTIAL.fullmatch(entry.name) for entry in path.iterdir())


class MayBeThere(OSError):
    """The disk refused to make a file durable and to remove it: whether it will be there is unknown."""


def create_exclusively(file: Path, data: bytes) -> None:
    """Makes `file` with this content, whole and durable, or raises FileExistsError and leaves it as it was.

    The name of its folder is not flushed, if it is new. After any other error than MayBeThere the file is not there.
    """
    private = is_closed(file.parent) or is_closed(file.parent.parent)
    make_folder(file.parent, private)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    made: os.stat_result | None = None
    try:
        try:
            with opened(partial, private=private) as handle:
                made = os.fstat(handle.fileno())
                handle.write(data)
                flush_written(handle, partial)
            _name(partial, file)
        finally:
            with suppress(OSError):  # the next writer sweeps it
                partial.unlink(missing_ok=True)
        flush(file.parent)
    except BaseException as error:
        if made is not None and _is(file, made):
            _take_back(file, error)
        raise


def _name(partial: Path, file: Path) -> None:
    try:
        os.link(partial, file)
    except OSError as error:
        if _is(file, partial.stat()):  # done by a request whose answer was lost
            return
        if error.errno not in NO_LINKS:
            raise
        # A file system without hard links: the writer lock makes test-then-rename safe.
        if file.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file)) from error
        os.rename(partial, file)


def _is(file: Path, made: os.stat_result) -> bool:
    return file.exists() and os.path.samestat(file.stat(), made)


def _take_back(file: Path, error: BaseException) -> None:
    """Removes a file that this process has just made. Raises MayBeThere."""
    try:
        file.unlink()
        flush(file.parent)
    except OSError as again:
        raise MayBeThere(again.errno, again.strerror, str(file)) from error


def names_of(folder: Path) -> list[str]:
    """Relative paths of all files below the folder, in order. Raises OSError for a symbolic link there."""
    if os.path.islink(folder):
        raise _holds_a_link()
    return sorted(_names_below(os.fspath(folder)))


def files_of(folder: Path) -> list[Path]:
    """The paths of `names_of`."""
    return [folder / name for name in names_of(folder)]


def _names_below(folder: str, at: str = "") -> Iterator[str]:
    """In no order; none if there is no such folder."""
    try:
        entries = [*os.scandir(os.path.join(folder, at))]
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_symlink():
            raise _holds_a_link()
        if entry.is_dir():
            yield from _names_below(folder, f"{at}{entry.name}/")
        else:
            yield f"{at}{entry.name}"


def _holds_a_link() -> OSError:
    return OSError(errno.ELOOP, "it is a symbolic link, or holds one")


def contents(folder: Place) -> Iterator[tuple[str, bytes]]:
    """(relative path, content) of every file below the folder, in the order of the relative paths."""
    if is_remote(folder):
        yield from object_storage.contents(folder)
    else:
        for name in names_of(folder):
            yield name, (folder / name).read_bytes()


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Holds the population's writer lock, or raises PopulationError at once: another process is writing."""
    handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise PopulationError(
                f"Another process is writing to the population {path}.", "Wait until it has finished, then try again."
            ) from error
        yield
    finally:
        os.close(handle)


@contextmanager
def named_os_errors(path: Place) -> Iterator[None]:
    """Turns a full disk, or any other OSError met while writing, into a PopulationError. Nothing became visible, except
    by a file that could not be taken back.
    """
    try:
        yield
    except MayBeThere as error:
        raise PopulationError(
            f"{error.filename} was written, but it could neither be made durable nor be taken back: {error.strerror}. "
            "It may or may not be there.",
            "Check the disk. Then see by `fedcore population describe` whether the version is there; run the same "
            "command again only if it is not.",
        ) from error
    except OSError as error:
        if error.errno in FULL:
            raise PopulationError(
                f"There is no room left to write the population {path}; nothing of this version is visible.",
                "Free some space (or write elsewhere), then run the same command again.",
            ) from error
        reason = error.strerror or type(error).__name__
        raise PopulationError(
            f"The population {path} could not be written: {reason}; nothing of this version is visible.",
            "Check the path and its permissions.",
        ) from error


def sweep(path: Path, left: Iterable[Path]) -> None:
    """Remove these leftovers, and spill files and partial files.

    Call with the writer lock held: then no live writer owns any of it.
    """
    for one in left:
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    if (path / VERSIONS).is_dir():
        for file in (path / VERSIONS).glob(".*.partial"):
            file.unlink()
    sweep_abandoned(path)  # here private runs write what they saw of the ledger, and they do not hold the lock
    shutil.rmtree(path / SPILL, ignore_errors=True)
