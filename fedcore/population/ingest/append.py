"""A new version with more data: known clients keep their place and get their new rows, new clients follow.

Blocks without new rows are shared with the version before; the others are written again, to new slots. New clients
first fill the last block. Everything is sorted twice: by client id, to find known clients, then by client index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fedcore.errors import IngestError, PopulationError
from fedcore.population import identifiers
from fedcore.population.block_table import BlockEntry
from fedcore.population.checks import LARGEST_COUNT, Rows, rows_of
from fedcore.population.cohorts import Order
from fedcore.population.columns import ColumnEntry
from fedcore.population.ingest.batches import Account, MatrixBatch, Source, matrix_batches, named_ids
from fedcore.population.ingest.dealing import Dealing, Sharing, deal
from fedcore.population.ingest.documents import refuse_other_halves
from fedcore.population.ingest.indices import KnownClients, Newcomers
from fedcore.population.ingest.request import IngestRequest
from fedcore.population.ingest.spill import Clients, LargeClient, Layout, Spill, keys_of, too_many, write_clients
from fedcore.population.manifest import Halves
from fedcore.population.periods import Calendar
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter

RANGE_SHARE, SPILL_SHARE = 16, 20  # two spills are alive at once


def completed(request: IngestRequest, parent: Population) -> IngestRequest:
    """The request, with what the population already fixes filled in."""
    made = parent.manifest
    changes: dict[str, Any] = {}
    if made.id_rule == identifiers.FOLDED:
        changes["fold_ids"] = True
    if request.kind is None:
        changes["kind"] = made.kind
    if request.features is None and made.kind != "words":
        changes["features"] = made.features
    if request.vocabulary is None and made.vocabulary is not None:
        changes["vocabulary"] = parent.vocabulary()
    if made.kind == "rows":
        changes["dtype"] = made.dtype
    if made.period is not None and request.time is None:
        changes["time"] = made.period.column
    if made.records:
        changes["unit"] = "record"
    return request.model_copy(update=changes)


def refuse_folding(parent: Population, fold_ids: bool) -> None:
    """Raises PopulationError if ids are to be folded, and those of the population are not."""
    if fold_ids and parent.manifest.id_rule != identifiers.FOLDED:
        raise PopulationError(
            f"The client ids of {parent.path} are not folded, and an append cannot change that.",
            "Append without --fold-ids, or ingest all sources again with it.",
        )


def refuse_mismatch(
    parent: Population, source: Source, request: IngestRequest, ledger: dict[str, str] | None, halves: Halves | None
) -> None:
    """Raises IngestError if the source or the request does not fit the population. halves: of what is appended"""
    made = parent.manifest
    if made.cohorts and (made.records or not source.keyed):
        raise IngestError(
            f"The rows of {', '.join(source.names)} have no client ids. The budget of {parent.path} is kept by cohort, "
            "and the same people in a file of another name would be new clients, with a new budget.",
            "Give the ids of the clients, in a population that has them.",
        )
    vocabulary = None if made.vocabulary is None else parent.vocabulary()
    faults = {
        "kind": source.kind != made.kind,
        "number of features": source.features != made.features,
        "vocabulary": source.vocabulary != vocabulary,
        "leaf size": request.clients_per_leaf not in (None, made.clients_per_leaf),
        "ledger": ledger is not None and (made.ledger is None or made.ledger.model_dump() != ledger),
    }
    for name, fault in faults.items():
        if fault:
            raise IngestError(
                f"The data appended to {parent.path} have another {name} than the population.",
                "Append data of the same kind, or make another population.",
            )
    refuse_other_halves(parent, halves)
    if request.public_for_evaluation is not None and not made.public_for_evaluation:
        raise IngestError(
            f"The population {parent.path} is not public for evaluation; appending cannot make it so.",
            "Leave the declaration out.",
        )


def refuse_other_columns(parent: Population, source: Source, entries: Sequence[ColumnEntry], records: bool) -> None:
    """Raises IngestError if the source has other columns than the population, or other bounds; or if it has clients and
    the population records, or the other way round.
    """
    made = parent.manifest
    if made.columns and not entries:
        raise IngestError(
            f"The columns of {parent.path} have names and bounds, and those of {', '.join(source.names)} have none.",
            "Append a table with the same columns.",
        )
    for number, (mine, theirs) in enumerate(zip(entries, made.columns, strict=False)):
        if mine != theirs:
            raise IngestError(
                f"Column {number} of what is appended to {parent.path} is {_in_words(mine)}, and there it is "
                f"{_in_words(theirs)}.",
                "Declare no columns: they are read like the population's.",
                without_values=f"Column {number} of what is appended to {parent.path} is not that of the population.",
            )
    if records != made.records:
        there, here = ("records", "clients") if made.records else ("clients", "records")
        raise IngestError(
            f"The population {parent.path} holds {there}, and {', '.join(source.names)} is read as {here}.",
            "Append data of the same kind, or make another population.",
        )


def refuse_other_pictures(parent: Population, image: tuple[int, int] | None) -> None:
    """Raises IngestError if what is appended is pictures, and the rows of the population are none, or others."""
    known = parent.manifest.image
    if image is not None and image != known:
        there = "no pictures" if known is None else f"pictures of {known[0]} x {known[1]}"
        raise IngestError(
            f"What is appended to {parent.path} is pictures of {image[0]} x {image[1]}, and its rows are {there}.",
            "Append pictures of the same size, or arrays (rows, columns), or make another population.",
        )


def _in_words(column: ColumnEntry) -> str:
    said = {name: value for name, value in column.model_dump().items() if value not in (None, "") and name != "of"}
    return ", ".join(f"{name} {value}" for name, value in said.items())


def append(
    writer: PopulationWriter,
    parent: Population,
    source: Source,
    account: Account,
    folder: Path,
    memory: int,
    calendar: Calendar | None = None,
    sharing: Sharing | None = None,
) -> Order | None:
    """Writes all clients of the new version to the writer. Settles the account before anything is written.

    calendar: of the new version, where clients are entries of calendar periods. sharing: as for `deal`. Returns the
    cohorts of the new clients in their order, as pairs (cohort, clients), if they may be of several; else None.
    """
    layout = Layout(source.kind, source.features, source.dtype)
    spill = Spill(folder / "index", layout, memory // SPILL_SHARE, 0, 2 * parent.n_clients)
    newcomers = Newcomers(parent, calendar)
    if source.keyed:
        _index_keyed(spill, parent, source, account, folder, memory, newcomers, sharing)
    else:
        _index_matrix(spill, parent, source, account, newcomers)
    n_clients = parent.n_clients + newcomers.clients
    arrivals = _Arrivals(newcomers.in_order(spill.clients()))
    for number, entry in enumerate(parent.blocks):
        stop = entry.first + entry.clients
        grows = stop == parent.n_clients < n_clients and not _full(number, entry, parent, writer)
        if arrivals.any_before(stop) or grows:
            _Rewriting(writer, parent, number, memory // RANGE_SHARE).run(arrivals)
            if not grows:
                writer.close_block()
        else:
            writer.keep(entry)
    for new in arrivals.before(None):
        write_clients(writer, new)
    return newcomers.order


def _full(number: int, entry: BlockEntry, parent: Population, writer: PopulationWriter) -> bool:
    if entry.clients % parent.clients_per_leaf:
        return False
    held = int(parent.client_bytes(number).sum())
    most = writer.limit.most_clients(entry.first, writer.clients_per_leaf)
    return entry.clients >= most or held >= writer.limit.bytes


# ---- who is known: from keys to indices


def _index_keyed(
    spill: Spill,
    parent: Population,
    source: Source,
    account: Account,
    folder: Path,
    memory: int,
    newcomers: Newcomers,
    sharing: Sharing | None,
) -> None:
    """Sorts the source by client id, finds the known clients, and spills all by client index."""
    dealing = Dealing(source, spill.layout, folder / "id", memory // SPILL_SHARE)
    by_id = deal(dealing, account, sharing)
    with closing(KnownClients(parent, folder / "known")) as known:
        for clients in by_id.clients():
            ids = [clients.id] if isinstance(clients, LargeClient) else clients.ids
            index = known.look_up(keys_of(ids))
            new = np.flatnonzero(index < 0)
            if parent.manifest.records and len(new) < len(ids):
                raise _known_rows(parent, source.names)
            index[new] = newcomers.index([ids[place] for place in new.tolist()])
            _spill_by_index(spill, index, clients)


def _index_matrix(spill: Spill, parent: Population, source: Source, account: Account, newcomers: Newcomers) -> None:
    """A matrix without ids: every row is a new client. Its ids ("file:row") must not be known."""
    known: set[str] = set()
    files = {*named_ids([f"{name}:" for name in source.names], parent.manifest.id_rule)}
    for number in range(len(parent.blocks)):
        for one in parent.client_ids(number).tolist():
            name, _, row = one.rpartition(":")
            if f"{name}:" in files and row.isdigit():
                known.add(name)
    if known:
        raise _known_rows(parent, sorted(known))
    for batch in matrix_batches(source, account, parent.manifest.id_rule):
        _spill_by_index(spill, newcomers.index(batch.ids), batch)
    account.settle()


def _known_rows(parent: Population, files: Sequence[str]) -> IngestError:
    return IngestError(
        f"Rows of {', '.join(files)} are in {parent.path} already.",
        "To add rows to known clients give client ids; if they are other clients, rename the file.",
    )


def _spill_by_index(spill: Spill, index: np.ndarray, clients: Clients | LargeClient | MatrixBatch) -> None:
    keys = np.zeros((len(index), 2), np.uint64)
    keys[:, 0] = index
    if isinstance(clients, LargeClient):
        spill.heldout |= clients.heldout is not None
        spill.add(keys, [clients.id])
        for heldout in (False, True):
            for tile in clients.tiles(heldout):
                spill.add_rows(heldout, np.repeat(keys, len(tile), axis=0), tile)
        return
    spill.heldout |= clients.heldout is not None
    spill.add(keys, clients.ids)
    for heldout, part in ((False, clients.train), (True, clients.heldout)):
        if part is None:
            continue
        if isinstance(part, tuple):
            ptr, x = part
            spill.add_rows(heldout, np.repeat(keys, np.diff(ptr), axis=0), x)
        else:
            spill.add_counts(heldout, np.repeat(keys, np.diff(part.indptr), axis=0), part.indices, part.data)


# ---- old and new data of each client together


class _Arrivals:
    """What was sorted by client index, handed out by ranges of the index."""

    def __init__(self, clients: Iterator[Clients | LargeClient]):
        self._clients = clients
        self._held: Clients | LargeClient | None = None
        self._advance()

    def _advance(self) -> None:
        self._held = next(self._clients, None)

    def _first(self) -> int | None:
        if self._held is None:
            return None
        return self._held.key if isinstance(self._held, LargeClient) else int(self._held.keys[0])

    def any_before(self, stop: int) -> bool:
        first = self._first()
        return first is not None and first < stop

    def before(self, stop: int | None) -> Iterator[Clients | LargeClient]:
        """The arrivals with an index below `stop` (None: all that are left)."""
        while self._held is not None and (stop is None or self.any_before(stop)):
            held = self._held
            if isinstance(held, LargeClient):
                yield held
                self._advance()
                continue
            cut = len(held.ids) if stop is None else int(np.searchsorted(held.keys, stop))
            if cut == len(held.ids):
                yield held
                self._advance()
            else:
                self._held = _slice(held, cut, len(held.ids))
                yield _slice(held, 0, cut)


def _slice(clients: Clients, start: int, stop: int) -> Clients:
    parts = [None if part is None else rows_of(part, start, stop) for part in (clients.train, clients.heldout)]
    return Clients(clients.keys[start:stop], clients.ids[start:stop], *parts)


@dataclass
class _Rewriting:
    """Write one block of the parent again, client range by client range, with the arrivals of its clients added."""

    writer: PopulationWriter
    parent: Population
    number: int
    range_bytes: int

    def run(self, arrivals: _Arrivals) -> None:
        entry = self.parent.blocks[self.number]
        self.first = entry.first
        self.ids = self.parent.client_ids(self.number)
        self.heldout = entry.heldout is not None
        self.bytes = np.concatenate([[0], np.cumsum(self.parent.client_bytes(self.number))])
        done = 0  # clients of the block that are written
        for arrived in arrivals.before(entry.first + entry.clients):
            if isinstance(arrived, LargeClient):
                place = arrived.key - self.first
                self._copy(done, place, None)
                self._large(place, arrived.tiles(), arrived.tiles(True) if arrived.heldout is not None else None)
                done = place + 1
            else:
                stop = int(arrived.keys[-1]) - self.first + 1
                self._copy(done, stop, arrived)
                done = stop
        self._copy(done, entry.clients, None)

    def _copy(self, start: int, stop: int, arrived: Clients | None) -> None:
        """Clients start .. stop - 1 of the block, those that arrived included, in ranges that fit."""
        while start < stop:
            room = int(np.searchsorted(self.bytes, self.bytes[start] + self.range_bytes, side="right")) - 1
            end = min(max(room, start + 1), stop)
            mine = None
            if arrived is not None:
                low, high = np.searchsorted(arrived.keys, [self.first + start, self.first + end])
                mine = _slice(arrived, int(low), int(high)) if high > low else None
            if self.parent.kind == "rows" and self.bytes[end] - self.bytes[start] > self.range_bytes:
                tiles = [None if mine is None or part is None else [part[1]] for part in _parts(mine)]
                self._large(start, *tiles)
            else:
                merged = [self._merged(start, end, mine, heldout) for heldout in (False, True)]
                self.writer.write(self.ids[start:end].tolist(), *merged)
            start = end

    def _large(self, place: int, train: Iterable[np.ndarray] | None, heldout: Iterable[np.ndarray] | None) -> None:
        """One client whose old or new rows do not fit, tile by tile."""
        old = [self.parent.client_tiles(self.number, place, self.range_bytes, part) for part in (False, True)]
        second = chain(old[1], heldout or ()) if self.heldout or heldout is not None else None
        self.writer.write_large(str(self.ids[place]), chain(old[0], train or ()), second)

    def _merged(
        self, start: int, stop: int, mine: Clients | None, heldout: bool
    ) -> scipy.sparse.csr_matrix | Rows | None:
        """Old and new data of some clients; None if neither has any held out."""
        new = _parts(mine)[heldout]
        old = self.parent.read_clients(self.number, start, stop, heldout)
        clients = stop - start
        if mine is None or new is None:
            return old
        place = mine.keys.astype(np.int64) - self.first - start
        lengths = np.zeros(clients, np.int64)
        if isinstance(new, tuple):
            ptr, x = new
            if old is None:
                old = np.zeros(clients + 1, np.int64), x[:0]
            owner = np.concatenate([np.repeat(np.arange(clients), np.diff(old[0])), np.repeat(place, np.diff(ptr))])
            order = np.argsort(owner, kind="stable")  # old rows come before new ones
            return np.searchsorted(owner[order], np.arange(clients + 1)), np.concatenate([old[1], x])[order]
        lengths[place] = np.diff(new.indptr)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        wide = scipy.sparse.csr_matrix((new.data, new.indices, indptr), shape=(clients, new.shape[1]))
        if old is None:
            return wide
        merged = old + wide
        totals = np.asarray(merged.sum(axis=1)).ravel()
        if totals.max(initial=0) > LARGEST_COUNT:
            raise too_many(self.ids[start + int(totals.argmax())])
        return merged


def _parts(
    clients: Clients | None,
) -> tuple[scipy.sparse.csr_matrix | Rows | None, scipy.sparse.csr_matrix | Rows | None]:
    return (None, None) if clients is None else (clients.train, clients.heldout)
