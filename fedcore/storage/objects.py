"""Populations and runs behind a URL: the few operations on object storage that they need.

Everything goes through fsspec, and universal-pathlib gives its paths the look of `pathlib`. Both are imported when the
first URL is met: local populations and runs never wait for them.

What fsspec raises depends on the store (OSError, botocore's and aiohttp's own errors, ...). Here FileNotFoundError
means that there is no such object; everything else becomes `Unreachable`, which says which environment variables to
look at.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from fedcore.errors import ConfigError, FedcoreError, Unreachable, needs

if TYPE_CHECKING:
    from upath import UPath

BATCH_BYTES = 32 << 20  # objects that are fetched or stored at the same time
REASON_LENGTH = 200  # characters of a foreign error's text
PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}  # next to the extra
VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_CONNECTION_STRING",
}
# One request for each object, and no answers from an old listing. Without the former s3fs asks for the size first.
OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"max_concurrency": 1, "use_listings_cache": False},
    "gs": {"use_listings_cache": False},
}
SAME_STORE = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}
NO_SUCH_RANGE = "InvalidRange"  # S3: the object has fewer bytes
T = TypeVar("T")
_read: ContextVar[dict[tuple[str, UPath], Any] | None] = ContextVar("read", default=None)  # what was read once
REFUSED = ("PreconditionFailed", "ConditionalRequestConflict")  # S3: the object is not the one that the put was for


def place(url: str) -> UPath:
    """The folder at this URL; nothing is contacted.

    Raises ConfigError for an unknown scheme, a missing package, or a password in the URL.
    """
    scheme = url.partition("://")[0].lower()
    if "::" in url:
        raise ConfigError(f"{url} is a chain of URLs.", "Give the URL of the place itself.")
    if _password(url):
        raise ConfigError(
            f"A {scheme}:// URL of a population or of runs holds a password, which runs would write down.",
            f"Take it out and use the environment: {_variables(scheme)}.",
        )
    with needs(url, "upath"):
        from upath import UPath
    try:
        found = UPath(url, **_options(scheme))
        with reaching(found, ImportError, ValueError):
            found.fs.invalidate_cache()  # makes the file system: a package may be missing
    except ImportError as error:
        package = PACKAGES.get(scheme)
        more = f" {package}" if package else ""
        raise ConfigError(
            f"{url} needs another package ({error}).",
            f'Install it in a clone: pip install -e ".[object-storage]"{more}',
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"There is no storage for {scheme}:// URLs ({error}).", "Use s3://, gs://, az:// or a folder."
        ) from error
    return found


def _password(url: str) -> bool:
    try:
        return urlsplit(url).password is not None
    except ValueError:  # not an address of the usual form: then it holds no password of the usual form
        return False


def _options(scheme: str) -> dict[str, Any]:
    return OPTIONS.get(SAME_STORE.get(scheme, scheme), {})


def _variables(scheme: str) -> str:
    scheme = SAME_STORE.get(scheme, scheme)
    general = f"FSSPEC_{scheme.upper()}_<OPTION>"
    return f"{VARIABLES[scheme]} or {general}" if scheme in VARIABLES else general


def _unreachable(path: object, error: Exception) -> Unreachable:
    text = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
    named = text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"
    scheme = str(path).partition("://")[0]
    return Unreachable(
        f"{path} cannot be reached: {named[:REASON_LENGTH].rstrip('.')}.",
        f"Check network, permissions and credentials ({_variables(scheme)}), here and on the workers; then try again.",
    )


@contextmanager
def reaching(path: object, *allowed: type[Exception]) -> Iterator[None]:
    """Foreign errors become `Unreachable`, which names `path`; a missing or existing object stays what it is."""
    kept: tuple[type[Exception], ...] = (FedcoreError, FileNotFoundError, FileExistsError, *allowed)
    try:
        yield
    except kept:
        raise
    except Exception as error:  # each store has its own kinds
        raise _unreachable(path, error) from error


def _is_s3(path: UPath) -> bool:
    return SAME_STORE.get(path.protocol, path.protocol) == "s3"


def _missing(path: object) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


# --- what is read once ------------------------------------------------------------------------------------------------


@contextmanager
def reading_once() -> Iterator[None]:
    """Inside, this thread reads each object and lists each folder once, unless it changes some. For what shows or
    checks objects that do not change meanwhile.
    """
    token = _read.set({})
    try:
        yield
    finally:
        _read.reset(token)


def _once(what: str, path: UPath, read: Callable[[], T]) -> T:
    known = _read.get()
    if known is None:
        return read()
    if (what, path) not in known:
        try:
            known[what, path] = read()
        except FileNotFoundError as error:
            known[what, path] = error
    if isinstance(found := known[what, path], FileNotFoundError):
        raise found
    return found


def _changes(*paths: UPath) -> None:
    """What is known of these objects is read again, and every listing. Without paths: whatever is known."""
    if (known := _read.get()) is not None:
        for what, path in [*known]:
            if what == "listing" or not paths or path in paths:
                known.pop((what, path), None)  # another thread may have done it


# --- objects ----------------------------------------------------------------------------------------------------------


def read_bytes(path: UPath) -> bytes:
    """The content of an object, as the store has it now. Raises FileNotFoundError, Unreachable."""
    return _once("content", path, partial(_read_bytes, path))


def _read_bytes(path: UPath) -> bytes:
    path.fs.invalidate_cache()
    try:
        with reaching(path):
            return path.fs.cat_file(path.path)
    except FileNotFoundError:
        raise _missing(path) from None


def read_start(path: UPath, most: int) -> bytes:
    """The first `most` bytes of an object, or all of them if there are fewer. Raises FileNotFoundError, Unreachable."""
    path.fs.invalidate_cache()
    try:
        with reaching(path):
            return path.fs.cat_file(path.path, start=0, end=most)
    except FileNotFoundError:
        raise _missing(path) from None
    except Unreachable as error:
        if _code(error) != NO_SUCH_RANGE:
            raise
        return b""  # of an empty object S3 has no first byte


def write_bytes(path: UPath, content: bytes) -> None:
    """Puts a whole object: readers see the old or the new one. Raises Unreachable."""
    write_many(path.parent, {path.name: content})


def create(path: UPath, content: bytes) -> None:
    """Puts a whole object unless there is one (a conditional put where the store has it). Raises FileExistsError."""
    _changes(path)
    if exists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    try:
        with reaching(path):
            path.fs.pipe_file(path.path, content, mode="create")
    except FileNotFoundError as error:  # no such bucket
        raise _unreachable(path, error) from error
    except FileExistsError:
        with suppress(FileNotFoundError):
            if read_bytes(path) == content:  # repeated, because the answer to the first one was lost
                return
        raise


def version(path: UPath) -> str | None:
    """The version of the object as it is now, for `replace`; None where the store knows no conditional puts.

    Raises FileNotFoundError, Unreachable.
    """
    path.fs.invalidate_cache()
    try:
        with reaching(path):
            found = path.fs.info(path.path)
    except FileNotFoundError:
        raise _missing(path) from None
    return (found.get("ETag") or None) if _is_s3(path) else None


def replace(path: UPath, content: bytes, version: str | None, check: Callable[[], object] | None = None) -> None:
    """Puts a whole object over this version of it, or over any version if it is None. check: called right before it is
    put over any version because the store knows no conditions.

    Raises FileExistsError if the object is of another version by now, FileNotFoundError if it is gone, Unreachable.
    """
    _changes(path)
    try:
        with reaching(path):
            try:
                path.fs.pipe_file(path.path, content, **({} if version is None else {"IfMatch": version}))
            except OSError as error:
                if version is None or error.errno != errno.ENOSYS:
                    raise
                if check is not None:
                    check()
                path.fs.pipe_file(path.path, content)  # a store that speaks S3 and knows no conditions
    except FileNotFoundError:
        raise _missing(path) from None
    except Unreachable as error:
        if _code(error) not in REFUSED:
            raise
        if read_bytes(path) != content:  # else: repeated, because the answer to the first one was lost
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None


def _code(error: BaseException | None) -> str | None:
    """The error code of S3, from the first of the error's causes that has one."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return response.get("Error", {}).get("Code")
        error = error.__cause__
    return None


def write_many(folder: UPath, contents: Mapping[str, bytes]) -> None:
    """Puts objects below the folder by their relative names, several at a time. Raises Unreachable."""
    _changes(*(folder / name for name in contents))
    try:
        with reaching(folder):
            folder.fs.pipe({(folder / name).path: content for name, content in contents.items()})
    except FileNotFoundError as error:  # no such bucket
        raise _unreachable(folder, error) from error


def exists(path: UPath) -> bool:
    """Whether there is an object at this path; a folder is none. Raises Unreachable."""
    if _is_s3(path):  # whose `info` also looks for a folder
        try:
            read_start(path, 1)
        except FileNotFoundError:
            return False
        return True
    path.fs.invalidate_cache()
    try:
        with reaching(path):
            return path.fs.info(path.path)["type"] == "file"
    except FileNotFoundError:
        return False


def modified(path: UPath) -> float | None:
    """When the object was put, in seconds since 1970 by the clock of the store; None if there is none."""
    path.fs.invalidate_cache()
    try:
        with reaching(path):
            when: datetime = path.fs.modified(path.path)
            return when.timestamp()
    except FileNotFoundError:
        return None


def listing(folder: UPath) -> dict[str, int | None]:
    """{name: bytes, or None for a folder} directly in the folder, in order; empty if there is no such folder."""
    return _once("listing", folder, partial(_listing, folder))


def _listing(folder: UPath) -> dict[str, int | None]:
    folder.fs.invalidate_cache()
    try:
        with reaching(folder):
            found = folder.fs.ls(folder.path, detail=True)
    except FileNotFoundError:
        return {}
    own = folder.path.strip("/")
    there = {
        info["name"].rstrip("/").rpartition("/")[2]: None if info["type"] == "directory" else int(info["size"])
        for info in found
        if info["name"].strip("/") != own
    }
    return dict(sorted(there.items()))


def names(folder: UPath) -> list[str]:
    """Names directly in the folder, in order; empty if there is no such folder or bucket."""
    return list(listing(folder))


def read_many(folder: UPath, wanted: Sequence[str]) -> dict[str, bytes]:
    """{relative name: content} of the wanted objects below the folder that exist, fetched several at a time."""
    by_path = {(folder / name).path.strip("/"): name for name in wanted}
    folder.fs.invalidate_cache()
    with reaching(folder):
        found = folder.fs.cat([(folder / name).path for name in wanted], on_error="return") if wanted else {}
        for content in found.values():
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
    there = {by_path[path.strip("/")]: content for path, content in found.items()}
    return {name: there[name] for name in wanted if isinstance(there.get(name), bytes)}


def sizes(folder: UPath) -> dict[str, int]:
    """{relative name: bytes} of every object below the folder, in the order of the names."""
    folder.fs.invalidate_cache()
    try:
        with reaching(folder):
            found = folder.fs.find(folder.path, detail=True)
    except FileNotFoundError:
        return {}
    start = len(folder.path.strip("/")) + 1
    return dict(sorted((name.lstrip("/")[start:], int(info["size"])) for name, info in found.items()))


def contents(folder: UPath) -> Iterator[tuple[str, bytes]]:
    """(relative name, content) of every object below the folder, in the order of the names.

    Fetches several at a time, and holds at most one batch. Raises FileNotFoundError if one vanishes meanwhile.
    """
    batch: list[str] = []
    held = 0
    for name, size in sizes(folder).items():
        if batch and held + size > BATCH_BYTES:
            yield from _fetch(folder, batch)
            batch, held = [], 0
        batch.append(name)
        held += size
    yield from _fetch(folder, batch)


def _fetch(folder: UPath, batch: list[str]) -> Iterator[tuple[str, bytes]]:
    paths = [(folder / name).path for name in batch]
    if not paths:
        return
    try:
        with reaching(folder):
            found = folder.fs.cat(paths)  # a dictionary, by names that may lack the leading slash
    except FileNotFoundError:
        raise _missing(folder) from None
    by_path = {path.strip("/"): content for path, content in found.items()}
    for name, path in zip(batch, paths, strict=True):
        yield name, by_path[path.strip("/")]


def remove(path: UPath) -> None:
    """Removes an object, or a folder with all below it; nothing happens if there is none."""
    _changes()
    path.fs.invalidate_cache()
    try:
        with reaching(path):
            path.fs.rm(path.path, recursive=True)
    except FileNotFoundError:
        return


def remove_file(path: UPath) -> None:
    """Removes an object, in one request; nothing happens if there is none."""
    _changes(path)
    with suppress(FileNotFoundError), reaching(path):
        path.fs.rm_file(path.path)
