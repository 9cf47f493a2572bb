"""A population compared with the sources that it was made of: every client, with the number of its rows and their sums.

Sources are read by other readers than those of an ingest (`other_readers`), as the manifests say that they were read.
Both sides are dealt to files by a hash of the client's id, and compared file by file, so that memory stays bounded.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedcore.errors import FedcoreError, IngestError
from fedcore.population import manifest as manifests
from fedcore.population.ingest import append as appending
from fedcore.population.ingest import calendars, sources
from fedcore.population.ingest.batches import Account, Batch, Source, keyed_batches, matrix_batches
from fedcore.population.ingest.ingest import IN_THE_MANIFEST
from fedcore.population.ingest.other_readers import other_reader, sums_of, sums_of_part
from fedcore.population.ingest.readings import Kept, readings_again
from fedcore.population.ingest.request import OF_SOURCE, IngestRequest, Reading, Where
from fedcore.population.ingest.sources_table import TableSource
from fedcore.population.ingest.spill import keys_of
from fedcore.population.manifest import Manifest
from fedcore.population.store import Population
from fedcore.population.suppression import Suppression

FILES = 64  # to which clients are dealt
MEMORY = 64 << 20  # bytes of a batch, and of what is read of a block
SHOWN = 10  # ids of clients that differ
STATED = {*IN_THE_MANIFEST, "kind", "features", "dtype"} - {"heldout"}  # options that the manifest decides
WRITTEN = ("marks", "spelling", "spellings")  # of columns; no manifest has them among its columns
ENTRY = np.dtype([("k1", "<u8"), ("k2", "<u8"), ("rows", "<i8"), ("sum", "<u8")])


@dataclass(frozen=True, slots=True)
class Compared:
    """Numbers of clients, and ids of some that differ, which only the operator may see.

    clients, rows: in the sources, once forgotten clients are left out; rows are tokens for counts
    missing: in the sources, not in the population; added: in the population, not in the sources
    different: with another number of rows or other values; forgotten: not compared; bad_rows: of the sources
    """

    clients: int
    rows: int
    missing: int
    added: int
    different: int
    forgotten: int
    bad_rows: int
    examples: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not (self.missing or self.added or self.different)


def compare(
    population: Population,
    where: Sequence[Where],
    said: dict[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> Compared:
    """Compares the content of a version with its sources.

    where: the source of each ingest and append, in their order (`_recorded`); said: options of the ingest, used for all
    sources, that the manifests do not keep, such as the held-out files, or all of them after clients were forgotten;
    progress: called with (steps done, steps)

    Raises IngestError if an option cannot be used or a source cannot be read, ChunkError for a damaged block.
    """
    said = checked(population, said)
    folder = Path(tempfile.mkdtemp(prefix="fedcore-against-"))
    try:
        kept = _recorded(population, where)
        opened = [_opened(population, one, {**own, **said}) for one, own in zip(where, kept, strict=True)]
        steps, bad = len(opened) + len(population.blocks), 0
        forgotten = _Forgotten(population)
        theirs, ours = _Dealt(folder / "source"), _Dealt(folder / "stored")
        for number, source in enumerate(opened):
            account = Account()
            for ids, rows, sums in _of_source(source, account, population.manifest):
                theirs.add(*forgotten.without(ids, rows, sums))
            bad += account.bad
            _tell(progress, number + 1, steps)
        for number in range(len(population.blocks)):
            for ids, rows, sums in _of_block(population, number):
                ours.add(*forgotten.without(ids, rows, sums))
            _tell(progress, len(opened) + number + 1, steps)
        compared, total, faults = 0, 0, [set[bytes](), set[bytes](), set[bytes]()]
        for number in range(FILES):
            one, other = theirs.of(number), ours.of(number)
            compared, total = compared + len(one), total + int(one["rows"].sum())
            for found, keys in zip(faults, _differences(one, other), strict=True):
                found.update(keys)
        examples = tuple(_named(population, opened, set().union(*faults)))
        missing, added, different = map(len, faults)
        return Compared(compared, total, missing, added, different, len(forgotten.seen), bad, examples)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(progress: Callable[[int, int], None] | None, done: int, steps: int) -> None:
    if progress is not None:
        progress(done, steps)


# --- options ----------------------------------------------------------------------------------------------------------


def checked(population: Population, said: dict[str, Any]) -> dict[str, Any]:
    """Options that `compare` takes, as it uses them. Raises IngestError for an option that does not exist or that the
    manifest decides, ConfigError for a value of another type.
    """
    stated = _stated(population.manifest)
    known = [name for name in (*Reading.model_fields, "columns", *WRITTEN) if name not in stated]
    for name in said:
        if name in stated:
            raise IngestError(f"The manifest of {population.path} decides the option {name!r}.", "Leave it out.")
        if name not in known:
            raise IngestError(f"There is no option {name!r}.", f"Options are {', '.join(known)}.")
    request = IngestRequest.of(said)
    return {name: getattr(request, name) for name in said}


def _stated(made: Manifest) -> set[str]:
    """Names of the options that the manifest decides."""
    return STATED | {"columns"} if made.columns else STATED


def _recorded(population: Population, where: Sequence[Where]) -> list[dict[str, Any]]:
    """For each source the options of the version that was made of it, as far as there are manifests.

    Versions are found by the names of their files. Of sources that share a name the last one belongs to the newest
    version, the one before it to the version before, and so on: if manifests are gone, they are those of the oldest
    versions. Sources with names that no version has belong to all versions in the same way.
    """
    made, stated = list[Manifest](), _stated(population.manifest)
    for version in population.versions():
        try:
            made.append(manifests.load(population.path, version))
        except FedcoreError:
            continue
    made = [one for one in made if one.provenance.sources and one.version <= population.version]
    names, found = [_names(one) for one in where], []
    for number, mine in enumerate(names):
        later = names[number + 1 :]
        versions = [one for one in made if mine & {*one.provenance.sources}]
        after = sum(bool(mine & others) for others in later) if versions else len(later)
        versions = versions or made
        options = versions[max(len(versions) - 1 - after, 0)].provenance.options if versions else {}
        found.append({name: value for name, value in options.items() if name in {*OF_SOURCE} - stated})
    return found


def _names(where: Where) -> set[str]:
    """Base names of a source, by which a manifest may know it."""
    names = {Path(str(where)).name, Path(str(where)).resolve().name}
    try:
        return names | {file.name for file in sources.files_of(where)}
    except IngestError:
        return names


# --- sources ----------------------------------------------------------------------------------------------------------


def _opened(population: Population, where: Where, given: dict[str, Any]) -> Source:
    """A source, to be read with these options. Raises IngestError."""
    request, made = appending.completed(IngestRequest.of(given), population), population.manifest
    kept = Kept(calendars.declared(population, request).calendar, readings_again(made.columns), made.id_rule)
    source = sources.source_of(where, request, MEMORY, kept=kept)
    if isinstance(source, TableSource):
        other = copy(source)
        other.files, other.heldout = ([other_reader(file) for file in held] for held in (source.files, source.heldout))
        return other
    return source


Sums = tuple[list[str], np.ndarray, np.ndarray]  # ids of clients; (C,) int64 rows or tokens; (C,) uint64 sums


def _of_source(source: Source, account: Account, made: Manifest) -> Iterator[Sums]:
    if source.keyed:
        for batch in keyed_batches(cast(Iterator[Batch], source.batches(account)), account):
            yield [*batch.ids[: len(batch.ids)]], *sums_of(batch)
        return
    for matrix in matrix_batches(source, account, made.id_rule):
        for heldout, part in ((False, matrix.train), (True, matrix.heldout)):
            if part is not None:
                yield matrix.ids, *sums_of_part(part, heldout)


def _those(chosen: Sequence[bool] | np.ndarray, ids: Sequence[str], rows: np.ndarray, sums: np.ndarray) -> Sums:
    """What belongs to some of the clients. chosen: (C,)"""
    places = np.flatnonzero(chosen)
    return [ids[place] for place in places.tolist()], rows[places], sums[places]


# --- the population ---------------------------------------------------------------------------------------------------


def _of_block(population: Population, number: int) -> Iterator[Sums]:
    ids = population.client_ids(number)
    there = ids != ""  # not forgotten
    bounds = np.concatenate([[0], np.cumsum(population.client_bytes(number))])
    start = 0
    while start < len(ids):
        stop = max(int(np.searchsorted(bounds, bounds[start] + MEMORY, side="right")) - 1, start + 1)
        chosen = there[start:stop]
        for heldout in (False, True):
            for rows, sums in _of_clients(population, number, start, stop, heldout, int(bounds[stop] - bounds[start])):
                yield ids[start:stop][chosen].tolist(), rows[chosen], sums[chosen]
        start = stop


def _of_clients(
    population: Population, number: int, start: int, stop: int, heldout: bool, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if population.kind == "rows" and size > MEMORY:  # one client
        for x in population.client_tiles(number, start, MEMORY, heldout):
            yield sums_of_part((np.array([0, len(x)]), x), heldout)
        return
    part = population.read_clients(number, start, stop, heldout)
    if part is not None:
        yield sums_of_part(part, heldout)


class _Forgotten:
    """Clients that the population has forgotten. seen: those of them that came up"""

    def __init__(self, population: Population):
        listed = population.manifest.suppression
        self.listed = None if listed is None else Suppression.read(population.path, listed)
        self.seen: set[str] = set()

    def without(self, ids: list[str], rows: np.ndarray, sums: np.ndarray) -> Sums:
        if self.listed is None:
            return ids, rows, sums
        gone = self.listed.cohorts_of(ids) > 0
        self.seen.update(ids[place] for place in np.flatnonzero(gone).tolist())
        return _those(~gone, ids, rows, sums)


# --- both -------------------------------------------------------------------------------------------------------------


class _Dealt:
    """Rows and sums of clients in files, by a hash of the id."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()

    def add(self, ids: list[str], rows: np.ndarray, sums: np.ndarray) -> None:
        entries = np.zeros(len(ids), ENTRY)
        keys = keys_of(ids)
        entries["k1"], entries["k2"], entries["rows"], entries["sum"] = keys[:, 0], keys[:, 1], rows, sums
        of = entries["k1"] % np.uint64(FILES)
        for number in np.unique(of).tolist():
            with open(self.folder / str(number), "ab") as file:
                file.write(entries[of == number].tobytes())

    def of(self, number: int) -> np.ndarray:
        """An entry for each client, by key."""
        file = self.folder / str(number)
        entries = np.frombuffer(file.read_bytes(), ENTRY) if file.exists() else np.zeros(0, ENTRY)
        entries = entries[np.lexsort((entries["k2"], entries["k1"]))]
        new = np.ones(len(entries), bool)
        new[1:] = (entries["k1"][1:] != entries["k1"][:-1]) | (entries["k2"][1:] != entries["k2"][:-1])
        made = entries[new]
        if len(made):
            starts = np.flatnonzero(new)
            made["rows"], made["sum"] = (np.add.reduceat(entries[name], starts) for name in ("rows", "sum"))
        return made


def _differences(source: np.ndarray, stored: np.ndarray) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Keys of clients: in the source alone, in the population alone, in both with other rows."""
    one, other = ({entry.tobytes()[:16]: entry.tobytes()[16:] for entry in side} for side in (source, stored))
    both = one.keys() & other.keys()
    return [*(one.keys() - both)], [*(other.keys() - both)], [key for key in both if one[key] != other[key]]


def _named(population: Population, opened: Sequence[Source], keys: set[bytes]) -> Iterator[str]:
    """Ids of some of these clients."""
    left, wanted = SHOWN, set(keys)
    for ids in _all_ids(population, opened):
        if not wanted or not left:
            return
        for one, key in zip(ids, keys_of(ids), strict=True):
            if left and key.tobytes() in wanted:
                wanted.remove(key.tobytes())
                left -= 1
                yield one


def _all_ids(population: Population, opened: Sequence[Source]) -> Iterator[list[str]]:
    for number in range(len(population.blocks)):
        yield [one for one in population.client_ids(number).tolist() if one]
    for source in opened:
        for ids, _, _ in _of_source(source, Account(), population.manifest):
            yield ids
