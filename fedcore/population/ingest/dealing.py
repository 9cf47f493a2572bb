"""Sorting the records of a source by client: in this process, or part by part in several, whose files are then read one
after the other, in the order of the source.

It makes no difference which process handled a part, when, and how often. The process writes to a new folder for the
part, and its answer names that folder. Records travel between processes only through these files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol, cast

from fedcore.errors import FedcoreError, IngestError, WorkerFailed
from fedcore.population.ingest import parts
from fedcore.population.ingest.batches import Account, Batch, Source, keyed_batches
from fedcore.population.ingest.buckets import LAST_KEY, Bucket
from fedcore.population.ingest.client_ids import KnownKeys
from fedcore.population.ingest.parts import Part, Portion, dealt_out
from fedcore.population.ingest.reading_ahead import nothing_ahead
from fedcore.population.ingest.sources_table import TableSource
from fedcore.population.ingest.spill import KEYS_SHARE, Layout, Spill, key_range, keys_by_period, keys_of, spill_batch
from fedcore.population.periods import Calendar
from fedcore.storage.process import keep_freed_memory

DEALT = "dealt"


class Backend(Protocol):
    def map_blocks(
        self,
        function: Callable[[Any, int], Mapping[str, Any] | None],
        message: Any,
        blocks: Sequence[int],
        sizes: Sequence[float] | None = None,
    ) -> Mapping[str, Any] | None:
        """function(message, number) for every number, merged in any order; see `fedcore.rounds.engine.Backend`."""


# Starts workers, for as long as they are wanted: a backend, and how many parts there should be for it.
Sharing = Callable[[], AbstractContextManager[tuple[Backend, int]]]


@dataclass(frozen=True)
class Dealing:
    """How records are dealt out. source: keyed; folder: for the files of the records, which is there; memory, hold: of
    a spill, in each process; calendar: if entries are sorted by period first
    """

    source: Source
    layout: Layout
    folder: Path
    memory: int
    calendar: Calendar | None = None
    hold: int = 0

    def spill(self, folder: Path) -> Spill:
        low, high = (0, LAST_KEY) if self.calendar is None else key_range(self.calendar)
        return Spill(folder, self.layout, self.memory, low, high, hold=self.hold)

    def keys(self) -> KnownKeys:
        return KnownKeys(keys_of if self.calendar is None else keys_by_period(self.calendar), self.memory // KEYS_SHARE)

    def fill(self, spill: Spill, known: KnownKeys, account: Account, part: Part | None = None) -> None:
        """part: of a table; None: all that the source holds"""
        source = self.source
        batches = source.batches(account, part) if isinstance(source, TableSource) else source.batches(account)
        for batch in keyed_batches(cast(Iterator[Batch], batches), account):
            spill_batch(spill, batch, known)


@dataclass
class DealtPart:
    """What became of a part. error: why its reading ended early, if it did"""

    account: Account
    buckets: list[Bucket] = field(default_factory=list)
    heldout: bool = False
    error: IngestError | None = None


@dataclass(slots=True)
class DealtParts:
    """By the number of the part. Answers of a backend, which merges them in any order."""

    parts: dict[int, DealtPart]

    def merge(self, other: DealtParts) -> DealtParts:
        return DealtParts(self.parts | other.parts)

    def value(self) -> list[DealtPart]:
        """In the order of the source."""
        return [self.parts[number] for number in sorted(self.parts)]


@dataclass(frozen=True)
class DealPart:
    """What a process is asked to do with each part; it may be done twice."""

    dealing: Dealing
    parts: Sequence[Part]
    _keys: list[KnownKeys] = field(default_factory=list)  # that this process knows, when they are not in use

    def __reduce__(self) -> tuple[type[DealPart], tuple[Dealing, Sequence[Part]]]:
        return type(self), (self.dealing, self.parts)

    def __call__(self, message: None, number: int) -> dict[str, DealtParts]:
        keep_freed_memory()
        place = self.dealing.folder / f"part-{number:04d}-{token_hex(4)}"
        place.mkdir()
        made, spill = DealtPart(Account()), self.dealing.spill(place)
        try:
            known = self._keys.pop()
        except IndexError:
            known = self.dealing.keys()
        known.begin_anew()
        try:
            with nothing_ahead():  # there are other processes for the other cores
                self.dealing.fill(spill, known, made.account, self.parts[number])
            made.buckets, made.heldout = spill.written(), spill.heldout
        except IngestError as error:
            made.error = error
        except (FedcoreError, OSError, MemoryError):
            raise
        except Exception as error:  # whose text may be a value of a row, and would be in the log of the worker
            raise WorkerFailed(
                f"a part of the table failed with {type(error).__name__}.", "Read it without --workers for details."
            ) from None
        self._keys.append(known)
        return {DEALT: DealtParts({number: made})}


def deal(dealing: Dealing, account: Account, sharing: Sharing | None = None) -> Spill:
    """All records of the source, by client. Settles the account. Raises IngestError, the same with other processes as
    without. sharing: asked for them if the source is a table that can be cut, and large enough
    """
    spill = dealing.spill(dealing.folder)
    portions = [] if sharing is None else _portions(dealing.source)
    worthwhile = sum(portion.span.size for portion in portions) // parts.LEAST_BYTES
    if sharing is None or min(worthwhile, len(portions)) < 2:
        dealing.fill(spill, dealing.keys(), account)
    else:
        with sharing() as (backend, most):
            dealt = _dealt(dealing, backend, dealt_out(portions, min(most, worthwhile)))
        for part in dealt:
            account.add(part.account)
            if part.error is not None:
                raise part.error
        spill.take([part.buckets for part in dealt if part.buckets], any(part.heldout for part in dealt))
    account.settle()
    return spill


def _portions(source: Source) -> list[Portion]:
    """None if it cannot be cut: who then reads all of it says what is wrong with it, if anything is."""
    try:
        return source.portions(parts.LEAST_BYTES) if isinstance(source, TableSource) else []
    except IngestError:
        return []


def _dealt(dealing: Dealing, backend: Backend, cut: Sequence[Part]) -> list[DealtPart]:
    source = copy(cast(TableSource, dealing.source))
    done, source.progress = source.progress, None
    folder = dealing.folder.absolute()
    folder.mkdir(exist_ok=True)
    asked = DealPart(replace(dealing, source=source, folder=folder), cut)
    sizes = [float(sum(portion.span.size for portion in part)) for part in cut]
    try:
        answers = backend.map_blocks(asked, None, range(len(cut)), sizes)
    except WorkerFailed as error:
        raise WorkerFailed(
            f"Workers that read parts of the table failed: {error.message}", "Use fewer, less memory for each, or none."
        ) from error
    assert answers is not None  # there are parts
    if done is not None:
        files = len(source.files) + len(source.heldout)
        done(files, files)
    return answers[DEALT].value()
