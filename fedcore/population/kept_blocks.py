"""Decoded blocks in files of this machine, which the runs of one `fedcore serve` share: what one of their processes has
decoded and checked, the others map into memory.

The files lie in the cache folder of the user ($XDG_CACHE_HOME, or ~/.cache), in folders that only this user can open:

    fedcore/blocks/NAME/alive, writing            locks: held by the process that serves; held while a file is written
    fedcore/blocks/NAME/PLACE/population          where a population is
    fedcore/blocks/NAME/PLACE/SLOT.DIGEST.arrays  arrays of a block (`fedcore.storage.raw_arrays`), then their BLAKE3;
                                                  .heldout.arrays with its held-out part

All together are bounded. Each ends with the slot that it was decoded from (`drop_gone`): whoever forgets clients on
this machine removes it at once, the process that serves within a minute wherever that happened, and all when it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import ConfigError, FedcoreError
from fedcore.population import layout, slots
from fedcore.population.blocks import ClientBlock, CountsBlock, RowsBlock
from fedcore.storage import digests, files, raw_arrays

if TYPE_CHECKING:
    from fedcore.population.store import Population

VARIABLE = "FEDCORE_KEPT_BLOCKS"  # "BYTES FOLDER", set for the runs of whoever serves
WHERE, ALIVE, WRITING = "population", "alive", "writing"
DIGEST = 32  # bytes of BLAKE3
CLOCK = 1.0  # seconds that a file system's times may be behind
LOOK = 60.0  # seconds between looks at what is gone
ARRAYS = {CountsBlock: ("indptr", "indices", "data", "totals"), RowsBlock: ("ptr", "x")}


def shared(population: Population, index: int, heldout: bool, read: Callable[[], ClientBlock]) -> ClientBlock:
    """Block `index`: from the file in which it is kept; or what `read` returns, which is kept if there is room. Without
    anybody who serves with kept blocks, `read()`.

    Arrays of a kept block are a private mapping of the file, whose pages all processes share until one writes to them.
    """
    setting, entry = os.environ.get(VARIABLE), population.blocks[index]
    if not setting or entry.void or entry.digest is None:
        return read()
    kept = _of_this_process(setting)
    name = f"{entry.slot}.{entry.digest}{'.heldout' if heldout else ''}{raw_arrays.SUFFIX}"
    file = kept.place(population.location) / name
    arrays = kept.arrays(file)
    if arrays is not None:
        made = CountsBlock if population.kind == "counts" else RowsBlock
        return _block(made, population, index, arrays)
    block = read()
    kept.keep(file, population, _arrays(block))
    return block


@lru_cache(maxsize=1)
def _of_this_process(setting: str) -> Kept:
    limit, folder = setting.split(" ", 1)
    return Kept(Path(folder), int(limit))


def _arrays(block: ClientBlock) -> dict[str, np.ndarray]:
    own = {name: getattr(block, name) for name in ARRAYS[type(block)]}
    if block.heldout is None:
        return own
    return own | {f"heldout.{name}": array for name, array in _arrays(block.heldout).items()}


def _block(kind: type, population: Population, index: int, arrays: Mapping[str, np.ndarray], part: str = ""):
    """The block with these arrays. part: what the names of its arrays begin with"""
    first = population.blocks[index].first
    own: dict[str, Any] = {name: arrays[part + name] for name in ARRAYS[kind]}
    if kind is CountsBlock:
        own["features"] = population.features
    has_more = not part and f"heldout.{ARRAYS[kind][0]}" in arrays
    heldout = _block(kind, population, index, arrays, "heldout.") if has_more else None
    return kind(first=first, leaf=first // population.clients_per_leaf, heldout=heldout, **own)


@dataclass
class Kept:
    """The kept blocks as one process uses them. folder: of whoever serves; limit: bytes of all files in it."""

    folder: Path
    limit: int
    began: float = field(default_factory=lambda: time.time() - CLOCK)
    known: set[tuple[str, int]] = field(default_factory=set)  # files that this process has compared with their digest

    def place(self, location: str) -> Path:
        return self.folder / hashlib.sha256(location.encode()).hexdigest()[:32]

    def arrays(self, file: Path) -> dict[str, np.ndarray] | None:
        """What is kept in the file; None if nothing is. A damaged one is removed."""
        try:
            with open(file, "rb") as handle:
                content = np.frombuffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
                number = os.fstat(handle.fileno()).st_ino
            body, digest = content[:-DIGEST], content[-DIGEST:]
            if (str(file), number) not in self.known:
                if digests.of_data(body.data) != digest.tobytes().hex():
                    raise ValueError("not what was kept")
                os.utime(file)
                self.known.add((str(file), number))
            return raw_arrays.arrays_of(body)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            with suppress(OSError):
                file.unlink()
            return None

    def keep(self, file: Path, population: Population, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the file if there is room. Blocks of other versions and populations make way for it, if they were not
        used since this process began; what cannot be written is not kept.
        """
        pieces = list(raw_arrays.pieces(arrays))
        size = sum(memoryview(piece).nbytes for piece in pieces) + DIGEST
        partial = file.with_name(f".{secrets.token_hex(8)}{raw_arrays.SUFFIX}")  # counted, if it stays
        with suppress(OSError), open(self.folder / WRITING, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if file.exists() or not self._has_room(size, file.parent, population):
                return
            try:
                if not file.parent.is_dir():
                    file.parent.mkdir(0o700)
                    (file.parent / WHERE).write_text(population.location, "utf-8")
                with files.opened(partial, private=True) as handle:
                    for piece in pieces:
                        handle.write(piece)
                    handle.write(bytes.fromhex(digests.of_data(*pieces)))
                os.replace(partial, file)
            except OSError:  # a full disk, most likely
                partial.unlink(missing_ok=True)

    def _has_room(self, size: int, place: Path, population: Population) -> bool:
        mine = {(place, entry.slot, entry.digest) for entry in population.blocks}
        found = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in _blocks_in(self.folder))
        held = sum(bytes for _, bytes, _ in found)
        for used, bytes, file in found:
            if held + size <= self.limit or used >= self.began:
                break
            if (file.parent, *_slot_of(file)) not in mine:
                file.unlink()
                held -= bytes
        return held + size <= self.limit


def _blocks_in(folder: Path) -> Iterator[Path]:
    yield from folder.glob(f"*/*{raw_arrays.SUFFIX}")


def _slot_of(file: Path) -> tuple[str, str]:
    """(name, digest) of the slot whose block is in the file."""
    slot, digest = file.name.split(".")[:2]
    return slot, digest


# --- whoever serves ---------------------------------------------------------------------------------------------------


@contextmanager
def keeping(limit: int) -> Iterator[None]:
    """Inside, runs that are started by this process share decoded blocks, of at most `limit` bytes. Raises ConfigError
    if their folder cannot be made, or others can open it.
    """
    root = _root()
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    try:
        root.mkdir(0o700, parents=True, exist_ok=True)
        if not files.is_private(root) or root.stat().st_uid != os.getuid():
            raise ConfigError(f"Others can open {root}, where blocks are kept.", f"Remove it, or: chmod 700 {root}")
        drop_gone()
        new, folder = root / f".{name}", root / name
        new.mkdir(0o700)
        (new / WRITING).touch()
        held = open(new / ALIVE, "wb")
        fcntl.flock(held, fcntl.LOCK_SH)
        new.rename(folder)  # before, nobody takes it for that of a process which has died
    except OSError as error:
        raise ConfigError(
            f"Blocks cannot be kept in {root}: {error.strerror}.", "Name another place: XDG_CACHE_HOME=FOLDER."
        ) from error
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK):
            with suppress(OSError):
                drop_gone(remote=True)

    watching = threading.Thread(target=look, name="kept-blocks", daemon=True)
    with held, _environment(f"{limit} {folder}"):
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _environment(setting: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = setting
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def drop_gone(remote: bool = False) -> None:
    """Removes what this user keeps on this machine of slots that are not there any more, or of which that cannot be
    told, and of processes that died. remote: whether populations behind URLs are asked too. Raises OSError."""
    root = _root()
    if not root.is_dir():
        return
    for folder in root.iterdir():
        if folder.name.startswith("."):
            continue
        if _has_died(folder):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        for file in _blocks_in(folder):
            with suppress(FileNotFoundError):  # somebody else was faster
                path = files.place((file.parent / WHERE).read_text("utf-8"))
                if (remote or not files.is_remote(path)) and not _is_there(path, *_slot_of(file)):
                    file.unlink()


def _root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedcore" / "blocks"


def _has_died(folder: Path) -> bool:
    try:
        with open(folder / ALIVE, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def _is_there(path: files.Place, slot: str, digest: str) -> bool:
    """Whether the population has this very slot."""
    try:
        return digests.of_data(files.read_bytes(layout.block_folder(path, slot) / slots.LIST)) == digest
    except (OSError, FedcoreError):
        return False
