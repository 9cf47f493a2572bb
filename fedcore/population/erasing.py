"""Forgetting clients: delete their data, their ids and every version that had them; the other clients keep their
places.

A forgotten client becomes a hole, a client with an empty id and no rows, so leaves and untouched blocks do not change.
A block of holes alone is void. After a kill, the order of writes lets the next writer finish or undo the change:

    forget.json -> new slots -> list of forgotten clients -> ledger -> new manifest
        -> delete earlier manifests -> delete slots and lists that no manifest names -> delete forget.json

Earlier results remain: published values, models, and what runs wrote elsewhere. Files are unlinked, not shredded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fedcore.errors import PopulationError
from fedcore.population import cohorts as of_cohorts
from fedcore.population import identifiers, layout, versions
from fedcore.population.arrays import STREAM_BYTES
from fedcore.population.block_table import BlockEntry, Blocks, PartEntry
from fedcore.population.block_writer import BlockWriter
from fedcore.population.checks import Rows
from fedcore.population.cohorts import FOUNDERS, HOLE, Cohort, Order, Runs
from fedcore.population.identifiers import Rule
from fedcore.population.manifest import Manifest, Provenance
from fedcore.population.periods import clients_of
from fedcore.population.store import Population
from fedcore.population.suppression import Suppression
from fedcore.population.writer import PopulationWriter
from fedcore.storage import files

RANGE_BYTES = 32 << 20  # decoded data that are held at a time
WORTH_COMPACTING = 0.25  # share of holes
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Erased:
    """What `forget` or `compact` did. population: its newest version; clients: forgotten now; unknown: ids that no
    client has, or has any more, or can have; freed: bytes that the folder takes less than before
    """

    population: Population
    clients: int
    unknown: int
    freed: int

    @property
    def holes(self) -> float:
        """Share of the clients of the version that were forgotten."""
        return sum(stop - first for first, stop in self.population.holes) / self.population.n_clients

    @property
    def worth_compacting(self) -> bool:
        return self.holes > WORTH_COMPACTING


def no_runs() -> Sequence[str]:
    return ()


def forget(
    population: Population,
    *,
    clients: Collection[str] = (),
    cohorts_to: int | None = None,
    without_trace: bool = False,
    open_runs: Callable[[], Sequence[str]] = no_runs,
    record: Callable[[int, str | None], object] | None = None,
    progress: Progress | None = None,
) -> Erased:
    """Make a version without these clients, and remove all earlier versions, with every slot that only they name.

    clients: ids. Unknown ones are counted, also those that the population's rule for ids refuses. For calendar
        periods, all entries of a client are forgotten
    cohorts_to: forget all clients in the cohorts 1 .. cohorts_to, whose declared size is then 0
    without_trace: leave them out of the list of forgotten clients. One who returns is then a new client with a new
        budget: the guarantee for this person covers each of the two separately, not both together.
    open_runs: called with the writer lock held; returns names of unfinished runs, which would lose their data
    record: called with the number of the new version and the sha256 of the list (None: the list is empty) before the
        version appears
    progress: called with (blocks done, blocks)

    Nothing is written if there is no client to forget and these cohorts have no declared size to subtract. Raises
    PopulationError if there are open runs, another process writes, or this is not the newest version; ConfigError for
    a URL. Nothing has changed then. After a kill or a disk failure, run the same command again: the next writer
    finishes, or undoes what was not yet visible.
    """
    if cohorts_to is not None:
        _check_cohorts(population, cohorts_to)
    with _replacing(population, open_runs) as (path, before):
        wanted, unusable = _wanted(clients, population.manifest.id_rule)
        chosen, unknown = _chosen(population, wanted, cohorts_to)
        unknown += unusable
        if not any(mask.any() for mask in chosen.values()) and not _still_declared(population, cohorts_to):
            return Erased(population, 0, unknown, 0)
        old = population.manifest
        versions.intend(path, old.version + 1)
        blocks = _rewritten(population, path, chosen, progress)
        listed = _listed(population, chosen, without_trace).write(path)
        if record is not None:
            record(old.version + 1, listed)
        made = versions.following(
            old,
            Provenance(options={"forgot": "clients" if cohorts_to is None else f"cohorts ..{cohorts_to}"}),
            blocks=blocks,
            n_rows=blocks.sum_of("train.total"),
            order=_order_without(old, chosen),
            suppression=listed,
            removed=tuple(sorted(population.checksums().items())),
            **_declared_without(old, cohorts_to),
        )
        after = versions.commit(path, made)
        versions.sweep(path)
        return Erased(after, sum(int(mask.sum()) for mask in chosen.values()), unknown, before - files.size(path))


def compact(
    population: Population, *, open_runs: Callable[[], Sequence[str]] = no_runs, progress: Progress | None = None
) -> Erased:
    """Make a version without holes, in new blocks, and remove all earlier versions.

    This is useful for a population with many holes (`WORTH_COMPACTING`), whose blocks and leaves are half empty.
    Clients get new indices: runs on earlier versions cannot be resumed, nor applied with their client memory. Raises
    the errors of `forget`, and PopulationError if no client is left.
    """
    if not population.participants():
        raise PopulationError(f"No client is left in {population.path}.", "Delete its folder.")
    path = layout.writable(population.path)
    if not population.holes:
        with versions.writing(population):  # finishes what a kill has left
            return Erased(population, 0, 0, 0)
    with _Compacting.extending(population) as writer, layout.named_os_errors(path):
        _refuse_open(population, open_runs)
        before = files.size(path)
        versions.intend(path, population.version + 1)
        runs = _runs(population.manifest)
        for index, entry in enumerate(population.blocks):
            _copy_there(writer, population, index, entry, runs)
            if progress is not None:
                progress(index + 1, len(population.blocks))
        after = writer.commit(Provenance(options={"compacted": True}))
        versions.sweep(path)
        return Erased(after, 0, 0, before - files.size(path))


# --- before and after -------------------------------------------------------------------------------------------------


@contextmanager
def _replacing(population: Population, open_runs: Callable[[], Sequence[str]]) -> Iterator[tuple[Path, int]]:
    """Holds the writer lock; yields the folder and its bytes. What was not committed is undone."""
    with versions.writing(population) as path:
        _refuse_open(population, open_runs)
        before = files.size(path)
        try:
            yield path, before
        except layout.MayBeThere:
            raise
        except BaseException:
            with suppress(Exception):  # the next writer does it
                versions.sweep(path)
            raise


def _refuse_open(population: Population, open_runs: Callable[[], Sequence[str]]) -> None:
    if runs := open_runs():
        raise PopulationError(
            f"{len(runs)} runs on {population.path} are not finished, and would lose their data: "
            f"{', '.join(sorted(runs)[:5])}{', ...' if len(runs) > 5 else ''}.",
            "Resume or abandon them first.",
        )


def _check_cohorts(population: Population, cohorts_to: int) -> None:
    known = len(population.manifest.cohorts)
    if not known:
        raise PopulationError(f"The population {population.path} has no cohorts.", "Name the clients instead.")
    if not FOUNDERS <= cohorts_to < known:
        raise PopulationError(
            f"{population.path} has the cohorts 1-{known}; ..{cohorts_to} does not leave the newest one.",
            "Name a smaller number; to remove all clients, delete the folder.",
        )


# --- who --------------------------------------------------------------------------------------------------------------


def _wanted(clients: Collection[str], rule: Rule) -> tuple[set[str], int]:
    """(ids as the population spells them, number of others, which its rule refuses, so that it has none of them)."""
    texts = [*{*clients}]
    made, faults = identifiers.spelled_or_why(texts, rule)
    pairs = zip_longest(made, faults, fillvalue="")
    return {one for one, fault in pairs if not fault}, sum(map(bool, faults))


def _chosen(population: Population, wanted: set[str], cohorts_to: int | None) -> tuple[dict[int, np.ndarray], int]:
    """({block: (C,) bool, which of its clients are forgotten}, number of wanted ids that no client has)."""
    aged = () if cohorts_to is None else population.participants(((FOUNDERS, cohorts_to),))
    chosen: dict[int, np.ndarray] = {}
    found: set[str] = set()
    blocks = population.blocks
    runs = _runs(population.manifest)
    looked_at = ~blocks.void & (bool(wanted) | blocks.overlapping(aged))
    for index in np.flatnonzero(looked_at).tolist():
        entry = blocks[index]
        cohorts = runs.of_each(entry.first, entry.clients)
        mask = (cohorts >= FOUNDERS) & (cohorts <= (cohorts_to or HOLE))
        if wanted:
            names = clients_of(population.client_ids(index).tolist(), population.manifest.period is not None)
            named = np.array([one in wanted for one in names])
            found |= wanted.intersection(names)
            mask |= named & (cohorts != HOLE)
        if mask.any():
            chosen[index] = mask
    return chosen, len(wanted - found)


def _listed(population: Population, chosen: dict[int, np.ndarray], without_trace: bool) -> Suppression:
    """The list of forgotten clients of the new version."""
    runs = _runs(population.manifest)
    ids: list[str] = []
    numbers = [np.zeros(0, np.int64)]
    for index, mask in chosen.items():
        entry = population.blocks[index]
        ids += population.client_ids(index)[mask].tolist()
        numbers.append(runs.of_each(entry.first, entry.clients)[mask])
    listed = Suppression.read(population.path, population.manifest.suppression)
    return listed.changed(ids, np.concatenate(numbers), without_trace)


def _runs(manifest: Manifest) -> Runs:
    return Runs.of(manifest.order or ((FOUNDERS, manifest.n_clients),))


def _order_without(manifest: Manifest, chosen: dict[int, np.ndarray]) -> Order:
    """Only the clients of blocks that change are looked at one by one."""
    runs, made, done = _runs(manifest), list[tuple[int, int]](), 0
    for index, mask in chosen.items():
        entry = manifest.blocks[index]
        each = np.where(mask, HOLE, runs.of_each(entry.first, entry.clients))
        starts = np.flatnonzero(np.diff(each, prepend=-1))
        lengths = np.diff(starts, append=len(each))
        made += runs.between(done, entry.first)
        made += zip(each[starts].tolist(), lengths.tolist(), strict=True)
        done = entry.first + entry.clients
    return of_cohorts.joined((*made, *runs.between(done, manifest.n_clients)))


def _declared_without(manifest: Manifest, cohorts_to: int | None) -> dict[str, Any]:
    """Declared sizes once whole cohorts are gone. Those of single clients are not taken off: they are data."""
    if cohorts_to is None:
        return {}
    gone = sum(one.nominal or 0 for one in manifest.cohorts[:cohorts_to])
    left = None if manifest.nominal_clients is None else (manifest.nominal_clients - gone) or None
    kept = manifest.cohorts[cohorts_to:]
    empty: list[Cohort] = [one.model_copy(update={"nominal": 0}) for one in manifest.cohorts[:cohorts_to]]
    return {"cohorts": (*empty, *kept), "nominal_clients": left}


def _still_declared(population: Population, cohorts_to: int | None) -> bool:
    """Whether cohorts that are forgotten still have a declared size. It is removed even if they have no clients:
    private runs are planned by declared sizes, which must not reveal whether a cohort's only client was there.
    """
    return cohorts_to is not None and any(one.nominal != 0 for one in population.manifest.cohorts[:cohorts_to])


# --- blocks -----------------------------------------------------------------------------------------------------------


def _rewritten(population: Population, path: Path, chosen: dict[int, np.ndarray], progress: Progress | None) -> Blocks:
    """All blocks of the new version; those that lose clients in new slots, at the same place."""
    blocks: dict[int, BlockEntry] = {}
    runs, made = _runs(population.manifest), 0
    for number, (index, mask) in enumerate(chosen.items()):
        entry = population.blocks[index]
        gone = mask | (runs.of_each(entry.first, entry.clients) == HOLE)
        if gone.all():
            empty = PartEntry(entries=0, total=0, dtype=entry.train.dtype)
            blocks[index] = BlockEntry(
                void=True, first=entry.first, clients=entry.clients, train=empty, id_bytes=0, bytes=0
            )
        else:
            slot = layout.block_folder(path, versions.slot_name(population.version + 1, made))
            ids = np.where(gone, "", population.client_ids(index)).tolist()
            blocks[index], made = written_again(population, index, ids, gone, slot), made + 1
        if progress is not None:
            progress(number + 1, len(chosen))
    return population.blocks.changed(blocks) if blocks else population.blocks


def written_again(population: Population, index: int, ids: list[str], gone: np.ndarray, folder: Path) -> BlockEntry:
    """Writes a block to a new slot with these ids. gone: (C,) bool, clients whose data are left out"""
    entry, made = population.blocks[index], population.manifest
    block = BlockWriter(folder, entry.first, made.kind, made.features, made.dtype, STREAM_BYTES)
    parts = [(False, block.train)] + ([(True, block.heldout_part())] if entry.heldout is not None else [])
    for start, stop in _ranges(population, index):
        for heldout, part in parts:
            if stop == start + 1 and made.kind == "rows":
                tiles = population.client_tiles(index, start, RANGE_BYTES, heldout)
                part.append_client(() if gone[start] else tiles)
                continue
            data = population.read_clients(index, start, stop, heldout)
            assert data is not None  # only of a part that is not there
            part.append(emptied(data, gone[start:stop]))
        block.add_ids(ids[start:stop])
    return block.close()


def _ranges(population: Population, index: int) -> Iterator[tuple[int, int]]:
    """Ranges of the clients of a block that can be held, at least one client each."""
    before = np.concatenate([[0], np.cumsum(population.client_bytes(index))])
    start, clients = 0, len(before) - 1
    while start < clients:
        room = int(np.searchsorted(before, before[start] + RANGE_BYTES, side="right")) - 1
        stop = min(max(room, start + 1), clients)
        yield start, stop
        start = stop


def emptied(data: scipy.sparse.csr_matrix | Rows, gone: np.ndarray) -> scipy.sparse.csr_matrix | Rows:
    """The data of some clients, of which those who are gone (C,) have none."""
    old = data[0] if isinstance(data, tuple) else data.indptr
    lengths = np.diff(old)
    kept = np.repeat(~gone, lengths)
    ptr = np.concatenate([[0], np.cumsum(np.where(gone, 0, lengths))])
    if isinstance(data, tuple):
        return ptr, data[1][kept]
    return scipy.sparse.csr_matrix((data.data[kept], data.indices[kept], ptr), shape=data.shape)


# --- compaction -------------------------------------------------------------------------------------------------------


class _Compacting(PopulationWriter):
    """Writes the parent's clients without the holes, and opens no cohort."""

    def _holes(self, clients: int) -> None:
        return None

    def _membership(self, newcomers: Order | None) -> dict[str, Any]:
        assert self.parent is not None
        old = self.parent.manifest
        order = of_cohorts.joined(run for run in old.order if run[0] != HOLE) if old.cohorts else ()
        kept: dict[str, Any] = {"cohorts": old.cohorts, "order": order, "suppression": old.suppression}
        return {**self.public, **kept, "removed": tuple(sorted(self.parent.checksums().items()))}


def _copy_there(writer: PopulationWriter, population: Population, index: int, entry: BlockEntry, runs: Runs) -> None:
    """Writes the clients of a block that were not forgotten."""
    if entry.void:
        return
    ids = population.client_ids(index)
    there = runs.of_each(entry.first, entry.clients) != HOLE
    for start, stop in _ranges(population, index):
        mine = np.flatnonzero(there[start:stop])
        if not len(mine):
            continue
        if population.kind == "rows" and stop == start + 1:
            train, heldout = (population.client_tiles(index, start, RANGE_BYTES, part) for part in (False, True))
            writer.write_large(str(ids[start]), train, None if entry.heldout is None else heldout)
            continue
        parts = [population.read_clients(index, start, stop, heldout) for heldout in (False, True)]
        writer.write(ids[start:stop][mine].tolist(), *(None if part is None else _some(part, mine) for part in parts))


def _some(data: scipy.sparse.csr_matrix | Rows, chosen: np.ndarray) -> scipy.sparse.csr_matrix | Rows:
    """The data of some of the clients."""
    if not isinstance(data, tuple):
        return data[chosen]
    ptr, x = data
    lengths = np.diff(ptr)
    mask = np.zeros(len(lengths), bool)
    mask[chosen] = True
    return np.concatenate([[0], np.cumsum(lengths[chosen])]), x[np.repeat(mask, lengths)]
