"""Which index a client of a source has in the new version: who is known, who was forgotten, who is new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedcore.population.cohorts import Order
from fedcore.population.ingest.spill import Clients, LargeClient, keys_of
from fedcore.population.periods import Calendar
from fedcore.population.same_ids import Numbers
from fedcore.population.store import Population
from fedcore.population.suppression import Suppression


class KnownClients:
    """Looks up clients of a population by their keys, which must come in increasing order; holds a part at a time.

    folder: to make for the keys of many clients, in the population's own folder. A guess of an id can be compared with
        its key, so the files of a killed process must go with the population's other leftovers.
    """

    def __init__(self, parent: Population, folder: Path):
        self._numbers = Numbers(3, folder)  # the key, and the client's index
        for number, entry in enumerate(parent.blocks):
            ids = parent.client_ids(number)
            there = np.flatnonzero(ids != "")  # not forgotten
            index = (entry.first + there).astype(np.uint64)
            self._numbers.add(np.column_stack([keys_of(ids[there].tolist()), index]))
        self._parts = self._numbers.parts()
        self._keys = np.zeros((0, 2), np.uint64)
        self._index = np.zeros(0, np.int64)

    def close(self) -> None:
        """Remove the files."""
        self._numbers.close()

    def _next(self) -> bool:
        part = next(self._parts, None)
        if part is None:
            return False
        part = part[np.argsort(part[:, 0])]
        self._keys, self._index = part[:, :2], part[:, 2].astype(np.int64)
        return True

    def look_up(self, keys: np.ndarray) -> np.ndarray:
        """(C,) int64 index of each client, -1 if it is not known."""
        found = np.full(len(keys), -1, np.int64)
        if not len(keys):
            return found
        last = keys[-1, 0]
        while True:
            place = np.searchsorted(self._keys[:, 0], keys[:, 0])
            if len(self._keys):
                for shift in (0, 1):  # two clients may share the first 64 bits
                    at = np.minimum(place + shift, len(self._keys) - 1)
                    same = (self._keys[at] == keys).all(axis=1)
                    found[same] = self._index[at[same]]
                if self._keys[-1, 0] >= last:  # the next keys may begin with the same
                    return found
            if not self._next():
                return found


class Newcomers:
    """Indices of clients that are not in the parent, in the order of their hashes: first those that were forgotten, by
    their old cohorts, then new ones; entries of calendar periods by period.

    How many there are of each cohort is known only in the end; until then an index is the number of parent's clients,
    plus COHORT for each cohort before, plus how many of the same cohort came before.
    """

    COHORT = 1 << 40  # more than the clients of any population

    def __init__(self, parent: Population, calendar: Calendar | None):
        made = parent.manifest
        self.calendar, self.first = calendar, parent.n_clients
        self.number = len(made.cohorts) + 1 if calendar is None else len(calendar.labels)  # of the newest cohort
        suppressed = made.suppression is not None and bool(made.cohorts) and calendar is None
        self.forgotten = Suppression.read(parent.path, made.suppression) if suppressed else None
        self.counts: Counter[int] = Counter()  # of each cohort

    @property
    def clients(self) -> int:
        return self.counts.total()

    @property
    def order(self) -> Order | None:
        return tuple(sorted(self.counts.items())) if self.several else None

    @property
    def several(self) -> bool:
        """Whether they may be of several cohorts."""
        return self.forgotten is not None or self.calendar is not None

    def index(self, ids: Sequence[str]) -> np.ndarray:
        """(C,) int64 preliminary indices."""
        cohorts = np.full(len(ids), self.number) if self.calendar is None else self.calendar.numbers(ids)
        if self.forgotten is not None:
            old = self.forgotten.cohorts_of(ids)
            cohorts = np.where(old > 0, old, self.number)
        index = np.zeros(len(ids), np.int64)
        for cohort in np.unique(cohorts).tolist():
            mine = np.flatnonzero(cohorts == cohort)
            before = self.COHORT * cohort if self.several else 0
            index[mine] = self.first + before + self.counts[cohort] + np.arange(len(mine))
            self.counts[cohort] += len(mine)
        return index

    def in_order(self, clients: Iterator[Clients | LargeClient]) -> Iterator[Clients | LargeClient]:
        """The clients, which come in the order of their preliminary indices, with those that they have in the end."""
        if not self.several:
            return clients
        before, starts = self.first, np.zeros(self.number + 1, np.int64)
        for cohort, count in sorted(self.counts.items()):
            starts[cohort], before = before, before + count
        return (self._placed(one, starts) for one in clients)

    def _placed(self, clients: Clients | LargeClient, starts: np.ndarray) -> Clients | LargeClient:
        keys = np.array([clients.key] if isinstance(clients, LargeClient) else clients.keys, np.int64)
        cohort, place = np.divmod(np.maximum(keys - self.first, 0), self.COHORT)
        keys = np.where(keys < self.first, keys, starts[cohort] + place)
        if isinstance(clients, LargeClient):
            return replace(clients, key=int(keys[0]))
        return replace(clients, keys=keys.astype(np.uint64))
