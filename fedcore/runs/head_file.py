"""The head of a run (`fedcore.runs.store`): the small file whose rename, or put, commits a round.

Before writing, a process checks that it is still the head that this process read or wrote last. A process on another
host, where locks do not reach, may have continued the run. Then nothing is overwritten.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fedcore.errors import LeaseLost
from fedcore.runs.run_files import HOLDER, read_json
from fedcore.runs.run_lock import Lock
from fedcore.storage import objects as object_storage
from fedcore.storage.arrays import writing
from fedcore.storage.files import Place, is_remote, json_bytes, write_json
from fedcore.storage.remote_lock import RemoteLock

if TYPE_CHECKING:
    from upath import UPath

NAME = "head.json"
ASIDE = "head.json.damaged"


class HeadFile:
    """head.json in the folder of a run. stored: what it holds; None: there is none yet."""

    def __init__(self, folder: Place, run_id: str, stored: dict[str, Any] | None) -> None:
        self.folder = folder
        self.run_id = run_id
        self.stored = stored
        self._version: str | None = None  # of the object that the last check saw, if the next `write` relies on that

    def check(self, lock: Lock | None, *, to_write: bool = False) -> None:
        """Raises LeaseLost if another process has continued the run. lock: that this process holds. to_write: whether
        the next `write` relies on this check, where the store compares versions.
        """
        fetched = None
        if to_write and self.stored is not None and is_remote(self.folder):
            try:
                self._version = object_storage.version(self.folder / NAME)  # before it is read: that may be a newer one
            except FileNotFoundError:
                raise self._lost() from None
        if isinstance(lock, RemoteLock) and is_remote(self.folder):
            fetched = object_storage.read_many(self.folder, (HOLDER, NAME))
            lock.check(fetched.get(HOLDER))
        if read_json(self.folder / NAME, fetched) != self.stored:
            raise self._lost()

    def write(self, head: dict[str, Any], lock: Lock | None) -> None:
        """Put this head in the place of the stored one. Raises LeaseLost as `check`, RunError if it cannot be done."""
        if is_remote(self.folder):
            self._put(self.folder / NAME, head, lock)
        else:
            self.check(lock)
            with writing(NAME):
                write_json(self.folder / NAME, head)
        self.stored = json.loads(json.dumps(head))

    def _put(self, path: UPath, head: dict[str, Any], lock: Lock | None) -> None:
        """Replace only the head that this process knows, if the store can check that."""
        content = json_bytes(head)
        try:
            if self._version is None:
                self.check(lock, to_write=True)
            version, self._version = self._version, None
            if self.stored is None:
                object_storage.create(path, content)
            else:
                object_storage.replace(path, content, version, partial(self.check, lock))
        except (FileExistsError, FileNotFoundError):
            if read_json(path) != json.loads(content):  # else: put by a request whose answer was lost
                raise self._lost() from None

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"another process has continued run {self.run_id!r}.", "This process stops; the other one continues."
        )


def set_aside(folder: Place) -> None:
    """Keep a damaged head under another name. Raises RunError."""
    if is_remote(folder):
        with suppress(FileNotFoundError):
            object_storage.write_bytes(folder / ASIDE, object_storage.read_bytes(folder / NAME))
            object_storage.remove(folder / NAME)
    elif (folder / NAME).exists():
        with writing(NAME):
            os.replace(folder / NAME, folder / ASIDE)
