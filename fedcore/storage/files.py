"""Files that must be complete or absent, in a folder or behind a URL: the few operations that both have.

In a folder a file is written to a temporary name, flushed and renamed. In object storage it is put, which is atomic and
durable by itself; folders exist there only in the names of the objects that they hold.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from urllib.parse import unquote

from fedcore.errors import ConfigError
from fedcore.storage import objects as object_storage
from fedcore.storage.scratch import is_scratch

if TYPE_CHECKING:
    from typing_extensions import TypeIs
    from upath import UPath

Place: TypeAlias = "Path | UPath"  # both have /, name, stem, suffix, parent and str(); this module does the rest
AnyPlace = TypeVar("AnyPlace", bound=Place)

OTHERS = stat.S_IRWXG | stat.S_IRWXO  # what a private file or folder does not allow
LONGEST_NAME = 255  # bytes of a file's name, for most file systems
ODD_FILES = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
PARTIAL = re.compile(r"\.(?P<name>.+)\.\d+(\.[0-9a-f]{8})?\.partial")  # of a file that is being written
FLUSHED_AT_ONCE = 8  # files whose flushing is awaited together, for which a journal commits once
ABANDONED = 3600.0  # seconds after which a write of milliseconds must have ended
LOST_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")  # what pathlib makes of a URL


# --- where ------------------------------------------------------------------------------------------------------------


def is_url(location: str) -> bool:
    """Whether this is a URL, and not a local path."""
    return "://" in location


def is_remote(path: Place) -> TypeIs[UPath]:
    """Whether the path is behind a URL; if not, it is a `Path`."""
    return not isinstance(path, Path)


def place(location: str | Place) -> Place:
    """A local path (also for file:// URLs), or a path behind any other URL.

    Nothing is contacted. Raises ConfigError if the URL cannot be used.
    """
    if not isinstance(location, (str, Path)):
        return location
    text = str(location)
    if why := impossible(text):
        raise ConfigError(f"{shortened(text)!r} {why}.", "No file has such a name.")
    if text.startswith("file://"):
        host, slash, path = text.removeprefix("file://").partition("/")
        if host not in ("", "localhost") or not slash:
            raise ConfigError(f"{text} names a host.", "Write file:/// and then the whole path.")
        return Path("/" + unquote(path))
    if is_url(text):
        return object_storage.place(text)
    local = Path(location)
    if LOST_SLASH.match(text) and not local.exists():
        raise ConfigError(f"{text} looks like a URL that lost a slash.", "Give a URL as text, with :// in it.")
    return local


def impossible(text: str) -> str:
    """Why no file can have this name; empty if one can."""
    if "\0" in text:
        return "contains a NUL character"
    try:
        longest = max(map(len, os.fsencode(text).split(b"/")))
    except UnicodeEncodeError:
        return "contains half a character"
    return f"has a part of {longest} bytes, and {LONGEST_NAME} are the most" if longest > LONGEST_NAME else ""


def shortened(text: str) -> str:
    """For a message."""
    return text if len(text) <= 200 else f"{text[:200]}..."


def below(path: AnyPlace, *names: str) -> AnyPlace:
    """path / name / ...; a path of the same kind, which a type checker does not see where `/` is applied to a Place."""
    return path.joinpath(*names)  # type: ignore[return-value]


def absolute(path: Place) -> str:
    """The absolute path, or the URL: what another process can open."""
    return str(path if is_remote(path) else path.resolve())


def at_once(where: Place, *calls: Callable[[], Any]) -> list[Any]:
    """What the calls return, in order. Behind a URL they wait for their requests at the same time, each in a thread of
    its own. Raises the error of the first that failed, when all have ended.
    """
    if not is_remote(where):
        return [call() for call in calls]
    from concurrent.futures import ThreadPoolExecutor  # late: local runs do not need it

    with ThreadPoolExecutor(len(calls)) as pool:  # in this context, so that a change is known to `reading_once`
        return [future.result() for future in [pool.submit(copy_context().run, call) for call in calls]]


# --- looking ----------------------------------------------------------------------------------------------------------


def read_bytes(file: Place) -> bytes:
    """Raises OSError, or Unreachable if the storage cannot be reached."""
    if is_remote(file):
        return object_storage.read_bytes(file)
    check_regular(file)
    return file.read_bytes()


def check_regular(file: Path) -> None:
    """Raises OSError for a FIFO, a socket or a device."""
    if odd := not_regular(file):
        raise OSError(errno.EINVAL, f"it is a {odd}, not a regular file")


def not_regular(path: Path) -> str:
    """Kind of a special file at the path, which may block or be read without end. Empty for a regular file, a folder,
    and where there is nothing.
    """
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return ""
    return ODD_FILES.get(kind, "")


def is_file(path: Place) -> bool:
    return object_storage.exists(path) if is_remote(path) else path.is_file()


def is_folder(path: Place) -> bool:
    """Whether there is such a folder; in object storage, whether there is anything below it."""
    return bool(object_storage.listing(path)) if is_remote(path) else path.is_dir()


def listing(folder: Place) -> dict[str, int | None]:
    """{name: bytes, or None for a folder} directly in the folder, in order; empty if there is no such folder."""
    if is_remote(folder):
        return object_storage.listing(folder)
    if not folder.is_dir():
        return {}
    found: dict[str, int | None] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # a temporary file that was renamed meanwhile
                found[entry.name] = None if entry.is_dir() else entry.stat().st_size
    return dict(sorted(found.items()))


def find_link(folder: Place, depth: int) -> str:
    """Relative name of a symbolic link in a local folder, at most `depth` levels down; empty if there is none. Reading,
    writing and deleting by names would follow it out of the folder. Raises OSError.
    """
    if is_remote(folder):
        return ""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):  # it is not there any more
        return ""
    for entry in entries:
        if entry.is_symlink():
            return entry.name
        if depth > 1 and entry.is_dir() and (link := find_link(folder / entry.name, depth - 1)):
            return f"{entry.name}/{link}"
    return ""


def size(path: Place) -> int:
    """Bytes of a file, or of all files below a folder; 0 if there is neither."""
    return path.stat().st_size if not is_remote(path) and path.is_file() else sum(sizes(path).values())


def sizes(folder: Place) -> dict[str, int]:
    """{relative name: bytes} of all files below a folder; empty if there is no such folder. A file that vanishes
    meanwhile is left out. Raises OSError, or Unreachable if the storage cannot be reached.
    """
    if is_remote(folder):
        return object_storage.sizes(folder)
    found = {}
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            status = file.stat()
            if stat.S_ISREG(status.st_mode):
                found[file.relative_to(folder).as_posix()] = status.st_size
    return found


# --- writing ----------------------------------------------------------------------------------------------------------


def flush(path: Place) -> None:
    """Make the content of a file durable, or the renames inside a folder."""
    if is_remote(path) or is_scratch(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_written(file: IO[bytes], path: Path) -> None:
    """Make what was written into the open file of this path durable."""
    file.flush()
    if not is_scratch(path):
        os.fsync(file.fileno())


def is_private(folder: Path) -> bool:
    """Whether only its owner may look into the folder. Files below such a folder are private as well, with any umask,
    and stay so when they are moved out.
    """
    return not stat.S_IMODE(os.stat(folder).st_mode) & OTHERS


def make_folder(folder: Path, private: bool = False, *, durable: bool = False) -> None:
    """Make a folder, and those above it, if there is none. It is private if it is to be, or if the one above it is;
    folders that are there stay as they are. durable: whether a new one survives a loss of power. Raises OSError.
    """
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent, durable=durable)
    try:
        os.mkdir(folder, 0o700 if private or is_private(folder.parent) else 0o777)
    except FileExistsError:
        if not folder.is_dir():
            raise
    if durable:
        flush(folder.parent)


def opened(path: Path, mode: Literal["wb", "ab", "w"] = "wb", private: bool = False) -> IO[Any]:
    """A local file to write to; if it is new, it is private if it is to be, or if its folder is. A symbolic link is not
    followed. Raises OSError.
    """
    permissions = 0o600 if private or is_private(path.parent) else 0o666
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, permissions))


def seal(folder: Path) -> None:
    """Make a local folder durable with all below it, and private with all below it if it is private itself: for what
    a library has written there. Nothing may count on any part of it before.
    """
    private, found = is_private(folder), list[Path]()
    for where, _, names in os.walk(folder):
        inside = [Path(where, name) for name in names]
        if private:
            os.chmod(where, 0o700)
            for file in inside:
                os.chmod(file, 0o600)
        found += [*inside, Path(where)]
    if FLUSHED_AT_ONCE == 1:
        return _flush_all(found)
    from concurrent.futures import ThreadPoolExecutor  # late: most commands seal nothing

    shares = [found[first::FLUSHED_AT_ONCE] for first in range(min(FLUSHED_AT_ONCE, len(found)))]
    with ThreadPoolExecutor(len(shares)) as pool:
        for _ in pool.map(_flush_all, shares):
            pass


def _flush_all(paths: Iterable[Path]) -> None:
    for path in paths:
        flush(path)


def sweep_partials(path: Path) -> None:
    """Remove, as far as possible, what processes of this host that died left of a file or folder of this name."""
    from psutil import pid_exists  # late: every command loads this module, and hardly any needs that

    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        process = partial.name.removeprefix(f".{path.name}.").split(".")[0]
        if process.isdigit() and not pid_exists(int(process)):
            with suppress(OSError):
                remove(partial)


def write_whole(path: Place, content: bytes, *, private: bool = False) -> None:
    """Replace a file by new content, atomically and durably. private: as in `opened`.

    What dead processes left of the same file goes.
    """
    if is_remote(path):
        return object_storage.write_bytes(path, content)
    sweep_abandoned(path.parent, f".{glob.escape(path.name)}.*.partial")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with opened(partial, private=private) as file:
            file.write(content)
            flush_written(file, partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    flush(path.parent)


def sweep_abandoned(folder: Path, pattern: str = ".*.partial") -> None:
    """Remove half-written files of this pattern whose writers must be dead by now, as far as possible."""
    with suppress(OSError):
        for partial in folder.glob(pattern):
            if time.time() - partial.stat().st_mtime > ABANDONED:
                partial.unlink(missing_ok=True)


def json_bytes(value: Any) -> bytes:
    """The value as indented JSON with sorted keys. Raises ValueError for NaN and infinities."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def write_json(path: Place, value: Any) -> None:
    """Replace a file by the value as JSON, atomically and durably."""
    write_whole(path, json_bytes(value))


def replace_durably(partial: Path, path: Path, *, name: bool = True) -> None:
    """Flush a finished local file and rename it to its name. name: whether the name is made durable too; if not, its
    folder is to be flushed before anything counts on it."""
    flush(partial)
    os.replace(partial, path)
    if name:
        flush(path.parent)


def remove(path: Place) -> None:
    """Removes a file, or a folder with all below it; nothing happens if there is none."""
    if is_remote(path):
        object_storage.remove(path)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
