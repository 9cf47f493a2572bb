"""Files in places that others can write to: created if absent, never replaced, and read within bounds.

In a folder a file is written to a temporary name, flushed, and linked to its name. Below the folder no symbolic link is
followed, so what others put there cannot lead elsewhere. In object storage a file is a conditional put.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedcore.errors import Unreachable
from fedcore.storage import objects as object_storage
from fedcore.storage.files import Place, below, is_remote, sweep_abandoned

READABLE = stat.S_IRGRP | stat.S_IROTH
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def create(place: Place, name: str, content: bytes) -> None:
    """Make the file `name` below a place, whole and durable, unless there is one. Users who can read the place can
    read the file. Missing folders are made with the permissions of the place.

    name: with slashes; chosen by this process. Raises FileExistsError, Unreachable, and OSError with one of `NO_LINKS`
    where files cannot be linked.
    """
    if is_remote(place):
        object_storage.create(below(place, *name.split("/")), content)
        return
    *folders, last = name.split("/")
    with _reaching(place), open_folder(place, *folders, make=True) as folder:
        create_in(folder, last, content, 0o600 | place.stat().st_mode & READABLE)
    sweep_abandoned(place.joinpath(*folders))


def read(place: Place, name: str, most: int) -> bytes | None:
    """The file `name` below a place, or its first `most` bytes; None if there is none.

    Raises OSError for what is no regular file, Unreachable.
    """
    if is_remote(place):
        with suppress(FileNotFoundError):
            return object_storage.read_start(below(place, *name.split("/")), most)
        return None
    *folders, last = name.split("/")
    with _reaching(place), open_folder(place) as root:
        try:
            with open_folder(Path(), *folders, inside=root) as folder:
                return _read_in(folder, last, most)
        except FileNotFoundError:
            return None


def modified(place: Place, name: str) -> float | None:
    """When the file `name` below a place was written, in seconds since 1970; None if there is none.

    By the clock of the place: for people, nothing depends on it. Raises OSError as `read` does, Unreachable.
    """
    if is_remote(place):
        return object_storage.modified(below(place, *name.split("/")))
    *folders, last = name.split("/")
    with _reaching(place), open_folder(place) as root:
        try:
            with open_folder(Path(), *folders, inside=root) as folder:
                return os.stat(last, dir_fd=folder, follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return None


@contextmanager
def open_folder(folder: Path, *names: str, make: bool = False, inside: int | None = None) -> Iterator[int]:
    """Descriptor of the folder `names` below a folder; below it no symbolic link is followed.

    make: whether missing ones are made, with the permissions of `folder`. inside: descriptor of the folder, if it is
    open already. Raises OSError.
    """
    current = os.open(folder, os.O_RDONLY | os.O_DIRECTORY) if inside is None else os.dup(inside)
    try:
        permissions = stat.S_IMODE(os.fstat(current).st_mode)
        for name in names:
            following = _open_or_make(current, name, permissions if make else None)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _open_or_make(folder: int, name: str, permissions: int | None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if permissions is None:
            raise
    made = False
    with suppress(FileExistsError):  # another process was quicker
        os.mkdir(name, dir_fd=folder)
        made = True
    found = os.open(name, flags, dir_fd=folder)
    if made:
        os.fchmod(found, permissions)  # whatever the umask
        os.fsync(folder)
    return found


def create_in(folder: int, name: str, content: bytes, permissions: int = 0o600) -> None:
    """Make a file in an open folder, whole and durable, unless there is one. Raises FileExistsError, OSError."""
    partial = f".{name}.{os.getpid()}.{secrets.token_hex(4)}.partial"
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), permissions)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        with suppress(OSError):
            os.unlink(partial, dir_fd=folder)
    os.fsync(folder)


def _read_in(folder: int, name: str, most: int) -> bytes:
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(handle)


@contextmanager
def _reaching(place: Path) -> Iterator[None]:
    """What a disk or a share refuses becomes `Unreachable`; what others have put in the way stays an OSError."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EINVAL, *NO_LINKS):
            raise
        raise Unreachable(
            f"{place} cannot be reached: {(error.strerror or type(error).__name__)}.",
            "Check that the folder is there, mounted and writable; then try again.",
        ) from error
