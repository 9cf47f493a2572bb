"""How large the blocks of a population are made, and how they are shared out.

A block is what one process reads, keeps and answers at a time. Large blocks cost least; but with fewer blocks than a
few for each core, some cores wait for others. How large a population will be is not known while it is written. So
blocks begin with a leaf and grow with the clients before them, up to a size beyond which larger ones gain nothing. What
a run computes does not depend on any of this.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CLIENTS_PER_LEAF = 1024
CLIENTS_PER_BLOCK = 8192  # at most
BLOCK_BYTES = 32 << 20  # decoded, at most, but for the leaf in which they are reached
LEAST_BYTES = 2 << 20
BLOCKS_PER_CORE = 2  # of the largest blocks that a population has
MEMORY_SHARE = 64  # a block's part of a core's memory: a process holds some copies of it, and the libraries
WORKERS = 2  # processes that answer blocks, unless their number is set
CONTROL_GROUP = Path("/sys/fs/cgroup")
CONTROLS = ("memory.max", "memory/memory.limit_in_bytes")  # version 2, version 1


@dataclass(frozen=True, slots=True)
class BlockLimit:
    """When a block closes, always at a leaf boundary.

    clients: at most; whole leaves
    bytes: decoded, with which it closes at the next boundary
    parts: at most 1 / parts of the clients before it, but a leaf at least; None: this does not matter
    """

    clients: int
    bytes: int
    parts: int | None = None

    def most_clients(self, first: int, leaf: int) -> int:
        """The largest number of clients in the block that begins with client `first`."""
        if self.parts is None:
            return self.clients
        return min(self.clients, max(1, first // leaf // self.parts) * leaf)


def block_limit(leaf: int, clients: int | None = None, size: int | None = None) -> BlockLimit:
    """The limit of blocks whose leaves hold `leaf` clients.

    clients: of a block at most, rounded up to leaves; size: decoded bytes; None: as suits this machine's cores, memory
    """
    cores = usable_cores()
    if size is None:
        size = min(BLOCK_BYTES, max(LEAST_BYTES, usable_memory() // cores // MEMORY_SHARE))
    parts = BLOCKS_PER_CORE * cores if clients is None else None
    clients = CLIENTS_PER_BLOCK if clients is None else clients
    return BlockLimit(-(-clients // leaf) * leaf, size, parts)


def explicit_clients_per_block(leaf: int, clients_per_block: int) -> int | None:
    """Return clients_per_block of a manifest if a user set it; None for the default, which depends on the machine."""
    return None if clients_per_block == block_limit(leaf).clients else clients_per_block


def blocks_of(clients: int, leaf: int, limit: BlockLimit, client_bytes: float) -> list[int]:
    """The number of clients in each block of a population of `clients` clients, each of client_bytes decoded bytes."""
    leaf_bytes = max(1e-9, leaf * client_bytes)
    most = max(1, int(-(-limit.bytes // leaf_bytes))) * leaf
    made, first = [], 0
    while first < clients:
        made.append(min(most, limit.most_clients(first, leaf), clients - first))
        first += made[-1]
    return made


def is_small(clients: float, decoded: float) -> bool:
    """Whether a population could be one block: one process has often answered it before others have started."""
    return clients <= CLIENTS_PER_BLOCK and decoded <= BLOCK_BYTES


def shared_out(sizes: Sequence[float], parts: int) -> list[list[int]]:
    """Divide the indices of `sizes` into this many parts, ascending in each part.

    No part is larger than the smallest by more than the size of one index. Neighbours stay together, because sums over
    neighbouring leaves are small (`fedcore.rounds.statistics.FloatSum`): from the end, where blocks are large, each
    part takes what fits into an equal share; what is left, at the beginning, goes one by one to the smallest part.
    """
    equal = sum(sizes) / parts * (1 + 1e-9)
    shares: list[list[int]] = [[] for _ in range(parts)]
    held = [0.0] * parts
    index = len(sizes) - 1
    for part in reversed(range(parts)):
        while index >= 0 and held[part] + sizes[index] <= equal:
            shares[part].append(index)
            held[part] += sizes[index]
            index -= 1
    for left in range(index, -1, -1):
        part = held.index(min(held))
        shares[part].append(left)
        held[part] += sizes[left]
    return [sorted(share) for share in shares]


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_memory() -> int:
    """Bytes of memory that this machine has, or that the control group of this process may take."""
    import psutil

    total = psutil.virtual_memory().total
    for name in CONTROLS:
        try:
            return min(total, int((CONTROL_GROUP / name).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return total
