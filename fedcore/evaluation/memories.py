"""What the clients of a run remember, for scores on the population that it was trained on.

Clients keep their numbers when clients or rows are appended to a population, and what is appended comes behind. So the
memories of a run are those of the first clients of every version of its population; later clients have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcore.population.store import Population
from fedcore.rounds.clients import read_memory
from fedcore.rounds.method import Memory
from fedcore.rounds.scores import KnownMemories
from fedcore.runs.store import Run
from fedcore.training.spec import recorded_request


@dataclass(frozen=True, slots=True)
class Remembered:
    """folder: of the memories of a run; blocks: (first client, clients) of each block that it was trained on; digests:
    of the files in the folder, None if they are not known.
    """

    folder: str
    blocks: tuple[tuple[int, int], ...]
    digests: Mapping[str, str] | None = None

    def of(self, first: int, clients: int) -> KnownMemories | None:
        """Of the clients first ... first + clients - 1; None if none of them has one. Raises RunError for files that
        are lost or damaged.
        """
        memory: Memory = {}
        known = np.zeros(clients, bool)
        for index, (start, count) in enumerate(self.blocks):
            low, high = max(start, first), min(start + count, first + clients)
            if low >= high:
                continue
            known[low - first : high - first] = True
            for name, values in read_memory(self.folder, index, count, self.digests).items():
                if name not in memory:
                    memory[name] = np.zeros((clients, *values.shape[1:]), values.dtype)
                memory[name][low - first : high - first] = values[low - start : high - start]
        return KnownMemories(memory, known) if known.any() else None


def remembered_of(run: Run, population: Population) -> Remembered | None:
    """The memories of the run's clients, if this is the population that it was trained on, in that version or a later
    one; None if it is another one, no longer has that version, or the run keeps no memories. Raises RunError if they
    are lost.
    """
    trained = recorded_request(run)["population"]
    if trained["id"] != population.id or population.version < trained["version"]:
        return None
    if trained["version"] not in population.versions():
        return None
    folder = run.memories()
    if folder is None:
        return None
    store = Population.open(population.location, version=trained["version"])
    if trained.get("manifest") != store.checksum:  # a branch of it, with other clients
        return None
    blocks = tuple((block.first, block.clients) for block in store.blocks)
    return Remembered(str(folder), blocks, run.memory_digests())
