"""Outputs of whole blocks that wait to be put together, so that processes share the work, and none of it is lost.

    .NAME.parts/of.json      whose outputs these are: run, population, settings
    .NAME.parts/lock         held by the process that makes NAME
    .NAME.parts/000007.zip   the outputs of the clients of block 7

The folder is next to the file or folder NAME that will be made, and only its owner can read it. It remains when a
process is killed or interrupted, and the next request for the same outputs under the same name continues from it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import PopulationError, RunBusy, RunError
from fedcore.runs import run_lock
from fedcore.storage.arrays import read_values, write_values
from fedcore.storage.files import json_bytes, make_folder, write_whole
from fedcore.storage.parsing import parse_json

OF = "of.json"
PTR = "ptr-of-rows"  # among the outputs of a block; no output has a dash in its name


class Parts:
    """The folder of the parts of one output, locked.

    with Parts(path, of) as parts: ...

    After an error nothing of it stays; after an interruption all of it does, and after `finished` nothing again.
    """

    def __init__(self, path: Path, of: Mapping[str, Any]):
        self.path = path
        self.folder = path.with_name(f".{path.name}.parts")
        self.of = json_bytes(dict(of))
        self.done = False

    def __enter__(self) -> Parts:
        """Raises PopulationError if another process is at it."""
        make_folder(self.folder, private=True)
        try:
            self.lock = run_lock.take(self.folder)[0]
        except RunBusy as error:
            raise PopulationError(
                f"another process is writing {str(self.path)!r}.", "Wait for it, or name another place."
            ) from error
        if self._known() != self.of:
            self._clear()
            write_whole(self.folder / OF, self.of, private=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.done or (kind is not None and issubclass(kind, Exception)):
            shutil.rmtree(self.folder, ignore_errors=True)
        self.lock.close()

    def _known(self) -> bytes | None:
        try:
            content = (self.folder / OF).read_bytes()
            return json_bytes(parse_json(content))
        except (OSError, ValueError):
            return None

    def _clear(self) -> None:
        for entry in os.scandir(self.folder):
            if entry.name != run_lock.LOCK:
                os.unlink(entry.path)

    def finished(self) -> None:
        """All of it has got its name: the parts go."""
        self.done = True

    def there(self, blocks: int) -> list[int]:
        """Blocks of which a process has left the outputs."""
        names = set(os.listdir(self.folder))
        return [index for index in range(blocks) if part_file(self.folder, index).name in names]

    def read(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray | None] | None:
        """The outputs of a block by name, and (C + 1,) where each client's rows begin among them, of a population of
        rows. None if there are none, or not whole ones."""
        try:
            values = read_values(part_file(self.folder, index))
        except RunError:
            return None
        return values, values.pop(PTR, None)


def part_file(folder: Path, index: int) -> Path:
    """Of the outputs of a block."""
    return folder / f"{index:06d}.zip"


def write_part(folder: Path, index: int, outputs: Mapping[str, np.ndarray], ptr: np.ndarray | None) -> None:
    """Keep the outputs of a block; the file is whole or absent, and the same outputs make the same. Raises RunError."""
    values = dict(outputs) if ptr is None else {**outputs, PTR: ptr}
    write_values(part_file(folder, index), values, durable=False)


def sweep(path: Path) -> None:
    """Remove the parts of an output that is there already: a process died after it had put them together."""
    folder = path.with_name(f".{path.name}.parts")
    if path.exists() and folder.is_dir() and not run_lock.is_held(folder):
        shutil.rmtree(folder, ignore_errors=True)
