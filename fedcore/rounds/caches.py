"""What a process keeps from round to round, so as not to make it again: decoded blocks with what a training makes of
them, and memories of clients.

One limit holds for all together. Blocks come first; memories get what they leave. A block that is needed next is read
while the one before it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock

import numpy as np

from fedcore.population.blocks import Aside, ClientBlock

Key = tuple[object, ...]  # names what is kept; its first part is the population, or the training


class BlockCache:
    """Decoded blocks of this process, bounded by bytes."""

    def __init__(self) -> None:
        self.blocks: dict[Key, ClientBlock] = {}
        self.asides: dict[Key, Aside] = {}
        self.training = ""  # whose the asides are
        self.bytes = 0  # of both

    def get(self, key: Key, read: Callable[[], ClientBlock], limit: int) -> ClientBlock:
        if limit <= 0:
            return read()
        block = self.blocks.get(key)
        if block is None:
            block = read()
            # A scan larger than the cache would evict every block just before its next use: so keep what is there.
            if self.bytes + block.nbytes <= limit:
                self.blocks[key] = block
                self.bytes += block.nbytes
        return block

    def aside(self, key: Key, training: str, limit: int) -> Aside | None:
        """What this training keeps with the block, if the block is kept. That of the training before is dropped."""
        if not training or limit <= 0:
            return None
        if training != self.training:
            self.bytes -= sum(part.nbytes for aside in self.asides.values() for part in aside.held.values())
            self.asides.clear()
            self.training = training
        if key not in self.blocks:
            return None
        return self.asides.setdefault(key, Aside(partial(self._charge, limit)))

    def _charge(self, limit: int, size: int) -> bool:
        if size > 0 and self.bytes + size > limit:
            return False
        self.bytes += size
        return True

    def clear(self) -> None:
        self.blocks.clear()
        self.asides.clear()
        self.bytes = 0


class MemoryCache:
    """Memories of clients that this process wrote in the last round, bounded by bytes.

    Keys begin with the name of the training in whose course a memory was written, so that none is taken for that of
    another run.
    """

    def __init__(self) -> None:
        self.memories: dict[Key, Mapping[str, np.ndarray]] = {}
        self.bytes = 0

    def take(self, key: Key) -> dict[str, np.ndarray] | None:
        """What was kept, once: the round that it is for writes a new one."""
        memory = self.memories.pop(key, None)
        self.bytes -= _bytes(memory)
        return None if memory is None else dict(memory)

    def keep(self, key: Key, memory: Mapping[str, np.ndarray], limit: int) -> None:
        """Keep it if there is room, for which those of other trainings have to make way."""
        self.take(key)
        for other in [other for other in self.memories if other[0] != key[0]]:
            if self.bytes + _bytes(memory) > limit:
                self.take(other)
        if self.bytes + _bytes(memory) <= limit:
            self.memories[key] = memory
            self.bytes += _bytes(memory)

    def clear(self) -> None:
        self.memories.clear()
        self.bytes = 0


def _bytes(memory: Mapping[str, np.ndarray] | None) -> int:
    return 0 if memory is None else sum(array.nbytes for array in memory.values())


class ReadAhead:
    """Blocks that a thread reads before they are asked for: at most the one that is needed now, and the next."""

    def __init__(self) -> None:
        self.reading: dict[Key, Future[ClientBlock]] = {}
        self.thread: ThreadPoolExecutor | None = None
        self.lock = Lock()  # several threads of a process may answer

    def expect(self, key: Key, read: Callable[[], ClientBlock]) -> None:
        """Begin to read it."""
        with self.lock:
            if key in self.reading:
                return
            while len(self.reading) > 1:
                self.reading.pop(next(iter(self.reading))).cancel()
            if self.thread is None:
                self.thread = ThreadPoolExecutor(1, "read-ahead")
            self.reading[key] = self.thread.submit(read)

    def take(self, key: Key, read: Callable[[], ClientBlock]) -> ClientBlock:
        """What could not be read ahead, perhaps for a storage that was away for a moment, is read now."""
        with self.lock:
            future = self.reading.pop(key, None)
        return read() if future is None or future.cancel() or future.exception() else future.result()

    def clear(self) -> None:
        with self.lock:
            for future in self.reading.values():
                future.cancel()
            self.reading.clear()


BLOCKS, MEMORIES, AHEAD = BlockCache(), MemoryCache(), ReadAhead()
