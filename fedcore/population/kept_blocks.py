"""Decoded blocks that the runs of one `fedcore serve` share: what one of their processes has decoded and checked, the
others map into memory.

The serving process keeps them (`Keeper`) in unnamed files in the folder for temporary files (TMPDIR). No path opens
them, and they disappear when the last process that holds them ends, however it ends. Processes of its runs ask for
blocks through a socket in a folder that only their user can open, one question for each connection, JSON in a line:

    {"get": BLOCK}     answered {} with the descriptor of its file, or {"room": bytes that there are for it}
    {"keep": BLOCK}    with the descriptor of a file, which is complete; not answered

BLOCK is [the population's location, slot, digest of the slot, whether the held-out part is with it]; a file holds
arrays (`fedcore.storage.raw_arrays`). A block is dropped with its slot, so that data of forgotten clients are not kept.
In a folder, no process is given a block whose slot is gone, and the slots are checked every few seconds.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import selectors
import shutil
import socket
import stat
import tempfile
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import ConfigError, FedcoreError
from fedcore.population import layout, slots
from fedcore.population.blocks import ClientBlock, CountsBlock, RowsBlock
from fedcore.storage import digests, files, raw_arrays

if TYPE_CHECKING:
    from fedcore.population.store import Population

VARIABLE = "FEDCORE_KEPT_BLOCKS"  # the folder of the socket, for the runs of a serving process
PREFIX, SOCKET = "fedcore-blocks-", "socket"
PAUSE = 0.1  # seconds after a failed connection
PATIENCE, SILENT = 5.0, 60.0  # seconds for an answer, or for a question; without questions after none came
LONGEST = 1 << 16  # bytes of a question or an answer
LOOK, LOOK_ELSEWHERE = 5.0, 60.0  # seconds between looks for slots that are gone: in folders; behind URLs
UNUSED, UNUSED_OWN = 600.0, 86400.0  # seconds after which a block makes way: for other populations; for its own
CLOSED_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # no program that is started has the files; `recv_fds` forgets
RIGHTS, INT = (socket.SOL_SOCKET, socket.SCM_RIGHTS), array("i").itemsize
DESCRIPTORS = 4  # one in this many of a process's descriptors is spent on blocks
ARRAYS = {CountsBlock: ("indptr", "indices", "data", "totals"), RowsBlock: ("ptr", "x")}

Name = tuple[str, str, str, bool]


# --- the processes of runs --------------------------------------------------------------------------------------------


def shared(population: Population, index: int, heldout: bool, read: Callable[[], ClientBlock]) -> ClientBlock:
    """Return block `index`: the kept one, or the result of `read`, which is then kept if there is room. If no process
    serves kept blocks, return `read()`.

    Arrays of a kept block are a private mapping of its file, whose pages all processes share until one writes to them.
    """
    folder, entry = os.environ.get(VARIABLE), population.blocks[index]
    if not folder or entry.void:
        return read()
    name = (population.location, entry.slot, entry.fingerprint, heldout)
    try:
        answer, found = _ask(folder, {"get": name})
        if found is not None:
            kind = CountsBlock if population.kind == "counts" else RowsBlock
            return _block(kind, population, index, raw_arrays.arrays_of(_content(found)))
        room = int(answer.get("room", 0))
    except UNANSWERED:
        return read()
    block = read()
    if block.nbytes < room:
        with suppress(*UNANSWERED):  # or a full disk
            _keep(folder, name, block)
    return block


# No process answers, or another version of fedcore, or something else.
UNANSWERED = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
_silent_until = 0.0  # no question before: a stalled process would cost PATIENCE for every block


def _ask(folder: str, question: Mapping[str, Any], file: int | None = None) -> tuple[dict[str, Any], int | None]:
    """(the answer, a descriptor or None). file: one that goes with the question. Raises OSError, ValueError."""
    global _silent_until
    if time.monotonic() < _silent_until:
        raise TimeoutError
    place = os.stat(folder)
    if place.st_uid != os.getuid() or place.st_mode & 0o077:  # of another user, made after ours was gone
        raise PermissionError(folder)
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(PATIENCE)
            asking.connect(os.path.join(folder, SOCKET))
            _send(asking, question, file)
            return _receive(asking) if file is None else ({}, None)
    except TimeoutError:
        _silent_until = time.monotonic() + SILENT
        raise


def _send(end: socket.socket, said: Mapping[str, Any], file: int | None = None) -> None:
    socket.send_fds(end, [json.dumps(said).encode() + b"\n"], [] if file is None else [file])


def _receive(end: socket.socket) -> tuple[dict[str, Any], int | None]:
    """Raises OSError, ValueError."""
    held, found, until = b"", list[int](), time.monotonic() + PATIENCE
    try:
        while not held.endswith(b"\n"):
            end.settimeout(max(until - time.monotonic(), 1e-3))
            piece, beside, _, _ = end.recvmsg(LONGEST, socket.CMSG_LEN(INT), CLOSED_ON_EXEC)
            found += [one for level, kind, data in beside if (level, kind) == RIGHTS for one in array("i", data)]
            held += piece
            if not piece or len(held) > LONGEST:
                raise ValueError("no whole line")
        said = json.loads(held)
        if not isinstance(said, dict) or len(found) > 1:
            raise ValueError("no question and no answer")
    except BaseException:
        for one in found:
            os.close(one)
        raise
    return said, found[0] if found else None


def _keep(folder: str, name: Name, block: ClientBlock) -> None:
    with tempfile.TemporaryFile() as file:
        for piece in raw_arrays.pieces(_arrays(block)):
            file.write(piece)
        file.flush()
        _ask(folder, {"keep": name}, file.fileno())


_mappings = 0  # of this process; each has a descriptor


def _content(file: int) -> np.ndarray:
    """(bytes,) uint8 of the file, whose descriptor is closed: mapped, or read where there are many mappings already.
    Raises OSError, ValueError."""
    global _mappings
    try:
        size = os.fstat(file).st_size
        if _mappings < _most_descriptors():
            mapped = mmap.mmap(file, size, access=mmap.ACCESS_COPY)
            _mappings += 1
            weakref.finalize(mapped, _unmapped)
            return np.frombuffer(mapped, np.uint8)
        content, done = np.empty(size, np.uint8), 0
        while done < size:
            count = os.preadv(file, [content[done:].data], done)
            if not count:
                raise OSError("it became shorter")
            done += count
        return content
    finally:
        os.close(file)


def _unmapped() -> None:
    global _mappings
    _mappings -= 1


def _most_descriptors() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(0, soft // DESCRIPTORS)


def _arrays(block: ClientBlock) -> dict[str, np.ndarray]:
    own = {name: getattr(block, name) for name in ARRAYS[type(block)]}
    if block.heldout is None:
        return own
    return own | {f"heldout.{name}": array for name, array in _arrays(block.heldout).items()}


def _block(kind: type, population: Population, index: int, arrays: Mapping[str, np.ndarray], part: str = ""):
    """The block with these arrays. part: what the names of its arrays begin with. Raises KeyError."""
    first = population.blocks[index].first
    own: dict[str, Any] = {name: arrays[part + name] for name in ARRAYS[kind]}
    if kind is CountsBlock:
        own["features"] = population.features
    has_more = not part and f"heldout.{ARRAYS[kind][0]}" in arrays
    heldout = _block(kind, population, index, arrays, "heldout.") if has_more else None
    return kind(first=first, leaf=first // population.clients_per_leaf, heldout=heldout, **own)


# --- the process that serves ------------------------------------------------------------------------------------------


@dataclass
class _Held:
    file: int
    size: int
    used: float


@dataclass
class Keeper:
    """The files of kept blocks, at most `limit` bytes and `most` blocks."""

    limit: int
    most: int
    held: dict[Name, _Held] = field(default_factory=dict)
    bytes: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def get(self, name: Name) -> int | None:
        """The descriptor of the block's file."""
        with self.lock:
            found = self.held.get(name)
            if found is None:
                return None
            if not _is_remote(name) and not _is_there(name):
                self._drop(name)
                return None
            found.used = time.monotonic()
            return found.file

    def room(self, location: str) -> int:
        """Bytes that there are for one more block of a population."""
        with self.lock:
            unused = self._unused(location)
            free = self.limit - self.bytes + sum(self.held[name].size for name in unused)
            return free if len(self.held) - len(unused) < self.most else 0

    def keep(self, name: Name, file: int) -> None:
        """Take the file over, if there is room. Blocks that were not requested for a while make way for it."""
        with self.lock:
            found = os.fstat(file)
            size = found.st_size if stat.S_ISREG(found.st_mode) else 0
            wanted = name not in self.held and 0 < size <= self.room(name[0])
            if not wanted or not (_is_remote(name) or _is_there(name)):
                os.close(file)
                return
            for other in self._unused(name[0]):
                if self.bytes + size <= self.limit and len(self.held) < self.most:
                    break
                self._drop(other)
            self.held[name] = _Held(file, size, time.monotonic())
            self.bytes += size

    def drop_gone(self, remote: bool, over: Callable[[], bool] = lambda: False) -> None:
        """Drop blocks whose slot is gone, or cannot be checked. remote: True for populations behind URLs, False for
        those in folders"""
        for name in list(self.held):
            if over():
                return
            if _is_remote(name) == remote and not _is_there(name):
                with self.lock:
                    if name in self.held:
                        self._drop(name)

    def close(self) -> None:
        with self.lock:
            for name in list(self.held):
                self._drop(name)
            self.most = 0

    def _unused(self, location: str) -> list[Name]:
        """What makes way for blocks of a population, in this order. Its own rarely do: a run is about to use them."""
        now = time.monotonic()
        found = [
            (one.used, name)
            for name, one in self.held.items()
            if now - one.used >= (UNUSED_OWN if name[0] == location else UNUSED)
        ]
        return [name for _, name in sorted(found)]

    def _drop(self, name: Name) -> None:
        gone = self.held.pop(name)
        self.bytes -= gone.size
        os.close(gone.file)


def _is_remote(name: Name) -> bool:
    return "://" in name[0]


def _is_there(name: Name) -> bool:
    """Whether the population has this very slot."""
    location, slot, digest, _ = name
    try:
        folder = layout.block_folder(files.place(location), slot)
        return digests.of_data(files.read_bytes(folder / slots.LIST)) == digest
    except (OSError, ValueError, FedcoreError):
        return False


@contextmanager
def keeping(limit: int) -> Iterator[Keeper]:
    """Inside, runs that are started by this process share decoded blocks, of at most `limit` bytes. Raises ConfigError
    if there is no place for the socket.
    """
    listener = socket.socket(socket.AF_UNIX)
    folder = None
    try:
        _remove_dead()
        folder = os.path.abspath(tempfile.mkdtemp(prefix=PREFIX))  # which only its user can open
        listener.bind(os.path.join(folder, SOCKET))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(
            f"Blocks cannot be kept: {error.strerror or error}.", "Set another folder with a short path: TMPDIR=FOLDER."
        ) from error
    keeper, over = Keeper(limit, _most_descriptors()), threading.Event()
    woken, wake = socket.socketpair()
    threads = [
        threading.Thread(target=_answer, args=(keeper, listener, woken), name="kept-blocks", daemon=True),
        threading.Thread(target=_look, args=(keeper, over, False, LOOK), name="kept-blocks-look", daemon=True),
        threading.Thread(target=_look, args=(keeper, over, True, LOOK_ELSEWHERE), name="kept-blocks-far", daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        with _environment(folder):
            yield keeper
    finally:
        over.set()
        wake.close()
        threads[0].join(2 * PATIENCE)
        listener.close()
        woken.close()
        keeper.close()
        shutil.rmtree(folder, ignore_errors=True)


def _remove_dead() -> None:
    """Remove folders of sockets at which no process listens any more, left by killed processes."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(PATIENCE)
                try:
                    asking.connect(str(folder / SOCKET))
                except ConnectionRefusedError:
                    (folder / SOCKET).unlink()
                    folder.rmdir()


def _answer(keeper: Keeper, listener: socket.socket, woken: socket.socket) -> None:
    """Until the other end of `woken` is closed."""
    with selectors.DefaultSelector() as ready:
        for end in (listener, woken):
            ready.register(end, selectors.EVENT_READ)
        while woken not in [key.fileobj for key, _ in ready.select()]:
            try:
                asking, _ = listener.accept()
            except OSError:  # no descriptor is left, most likely
                time.sleep(PAUSE)
                continue
            with suppress(Exception), asking:  # the process that asked reads the block then
                asking.settimeout(PATIENCE)
                _answer_one(keeper, asking)


def _answer_one(keeper: Keeper, asking: socket.socket) -> None:
    question, file = _receive(asking)
    try:
        location, slot, digest, heldout = next(iter(question.values()))
        name = (str(location), str(slot), str(digest), bool(heldout))
    except BaseException:
        if file is not None:
            os.close(file)
        raise
    if file is not None:
        keeper.keep(name, file)
        return
    with keeper.lock:  # so that it is not dropped before it is sent
        found = keeper.get(name)
        _send(asking, {} if found is not None else {"room": keeper.room(name[0])}, found)


def _look(keeper: Keeper, over: threading.Event, remote: bool, seconds: float) -> None:
    while not over.wait(seconds):
        with suppress(Exception):  # at the next look, then
            keeper.drop_gone(remote, over.is_set)


@contextmanager
def _environment(folder: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = folder
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
