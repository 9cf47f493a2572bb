"""From files to a population: streaming, whole clients whatever the order of the rows, memory bounded at any size.

keyed sources (client ids next to the rows)  rows are spilled and sorted by client; clients are ordered by a
                                             stable hash of their id, so that file order changes nothing
matrices with a client in each row           row order is kept, nothing is spilled
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from fedcore.errors import ConfigError, IngestError
from fedcore.population import layout
from fedcore.population.arrays import CHUNK_BYTES
from fedcore.population.block_table import total_of
from fedcore.population.deliveries import Delivered
from fedcore.population.ingest import append as appending
from fedcore.population.ingest import calendars, sources
from fedcore.population.ingest.batches import Account, matrix_batches
from fedcore.population.ingest.dealing import Dealing, Sharing, deal
from fedcore.population.ingest.documents import halves_of
from fedcore.population.ingest.readings import Kept, readings_again
from fedcore.population.ingest.request import OF_SOURCE, IngestRequest, Where
from fedcore.population.ingest.schema import with_schema
from fedcore.population.ingest.second_count import SecondCount
from fedcore.population.ingest.sources_array import DenseSource
from fedcore.population.ingest.sources_frames import FrameSource
from fedcore.population.ingest.sources_table import TableSource
from fedcore.population.ingest.spill import Layout, write_clients
from fedcore.population.manifest import Provenance
from fedcore.population.sizing import CLIENTS_PER_LEAF
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.storage import files
from fedcore.storage.process import keep_freed_memory

# Options that are facts of the manifest, or paths.
IN_THE_MANIFEST = (
    *("vocabulary", "heldout", "halves", "bounds", "units", "dates", "categories", "booleans", "unit", "image"),
    *("fold_ids", "time", "schema_file", "outside"),
)
# Shares of `memory`: what a batch, the records that are sorted at once and an array that is being written may hold.
# Sorting takes several times the size of the records, which is why the shares are small.
BATCH_SHARE, SPILL_SHARE, STREAM_SHARE = 12, 16, 16
HOLD_SHARE = 4  # what a spill may hold without files, less what everything else takes of any limit:
RESERVED = 12 << 20  # bytes


def ingest(
    source: Where,
    dest: str | Path,
    request: IngestRequest | None = None,
    *,
    append: bool = False,
    ledger: dict[str, str] | None = None,
    delivered: Callable[[], Delivered] | None = None,
    progress: Callable[[int, int], None] | None = None,
    sharing: Sharing | None = None,
    **options: Any,
) -> Population:
    """Make a population from files, or with append=True a new version of the one at `dest`.

    source: a file, a folder, a glob pattern, or a list of these, or with format "sql" a query or its file
    dest: folder of the population
    request, options: how the source is read and what is declared about it, as an `IngestRequest` or as its fields by
        name, such as client="person"; of both, the fields by name win
    ledger: of a new population, see `PopulationWriter`
    delivered: called once everything is read and written, just before the version appears: which files of a pipeline
        these are. What it raises is passed on, and nothing is then visible
    progress: called with (files done, files); of frames with (steps done, steps), 1,000 for each sequence
    sharing: starts other processes, which read and sort out tables of at least 16 MiB in parts; for example
        `functools.partial(fedcore.tasks.dask_backend.sharing, 2)`. Other sources, and the results of a query, are read
        by this process alone. Each of them may take `memory`; how many there are changes no bit and no error

    Appending keeps the population's id, ledger, leaf size, features and vocabulary. Known clients keep their place, and
    new rows are added to theirs. Earlier versions stay readable. An appended version is public for evaluation only if
    the reason is given again. If the population has cohorts, an append opens the next one, also when its source has no
    new clients (`fedcore.population.conversion.open_cohort` needs no source). declared_clients is then the new total,
    and the cohort has the difference to the earlier total. A population of calendar periods opens the periods that
    follow in its calendar. There, declared_clients is the number of clients in each period, also when the population is
    made.

    Raises ConfigError for options that do not exist or are out of range, IngestError if the source is unusable (bad
    rows are listed with file and line), PopulationError if the population cannot be written. Nothing is then visible.
    """
    if request is None or options:
        request = IngestRequest.of(request or {}, options)
    if request.workers is not None and sharing is None:
        raise ConfigError(
            "Nothing here starts the workers of an ingest.",
            f"Give sharing=functools.partial(fedcore.tasks.dask_backend.sharing, {request.workers}).",
        )
    keep_freed_memory()
    path, memory = layout.writable(dest), request.memory
    parent = Population.open(path) if append else None
    request, kept = with_schema(request, append), Kept()
    folded = request.fold_ids  # as requested, before the population's own rule is filled in
    if parent is not None:
        appending.refuse_folding(parent, folded)
        request, kept = appending.completed(request, parent), Kept(readings=readings_again(parent.manifest.columns))
    dealt = calendars.declared(parent, request)
    kept = replace(kept, calendar=dealt.calendar)
    opened = sources.source_of(source, request, memory // BATCH_SHARE, progress, path / layout.SPILL / "query", kept)
    entries = opened.entries if isinstance(opened, TableSource) else ()
    records = isinstance(opened, (TableSource, DenseSource)) and opened.records
    if folded and (records or not opened.keyed):
        raise IngestError(
            f"The source {source} names no clients, so there is no id to fold.",
            "Leave fold_ids out, or name the clients.",
        )
    dealt_by = halves_of(request.documents, request.halves, sources.brings_heldout(opened, request))
    pictures = sources.image_of(opened, request)
    account = Account(request.tolerance, _called(request, parent))
    stream_bytes = memory // STREAM_SHARE
    if isinstance(opened, FrameSource):  # whose leaf is about a block, however large the limit
        stream_bytes = min(stream_bytes, CHUNK_BYTES)
    if parent is None:
        usual_leaf = opened.clients_per_leaf if isinstance(opened, FrameSource) else CLIENTS_PER_LEAF
        writer = PopulationWriter(
            path,
            opened.kind,
            opened.features,
            dtype=opened.dtype or "float32",
            clients_per_leaf=request.clients_per_leaf or usual_leaf,
            clients_per_block=request.clients_per_block,
            vocabulary=opened.vocabulary,
            nominal_clients=request.declared_clients,
            nominal_rows=request.nominal_rows,
            public_for_evaluation=request.public_for_evaluation,
            ledger=ledger,
            period=dealt.period,
            labels=dealt.labels,
            halves=dealt_by,
            columns=entries,
            records=records,
            image=pictures,
            fold_ids=folded,
            stream_bytes=stream_bytes,
        )
    else:
        appending.refuse_mismatch(parent, opened, request, ledger, dealt_by)
        appending.refuse_other_columns(parent, opened, entries, records)
        appending.refuse_other_pictures(parent, pictures)
        declared = {name: getattr(request, name) for name in ("clients_per_block", "nominal_rows")}
        declared["nominal_clients"] = request.declared_clients
        writer = PopulationWriter.extending(
            parent,
            public_for_evaluation=request.public_for_evaluation,
            labels=dealt.labels,
            stream_bytes=stream_bytes,
            **{name: value for name, value in declared.items() if value is not None},
        )
    with writer, layout.named_os_errors(path), _spill_folder(path) as folder:
        newcomers, second = None, SecondCount(opened)
        if parent is not None:
            newcomers = appending.append(writer, parent, opened, account, folder, memory, dealt.calendar, sharing)
        elif opened.keyed:
            held = Layout(opened.kind, opened.features, opened.dtype)
            hold = memory // HOLD_SHARE - RESERVED
            dealing = Dealing(opened, held, folder, memory // SPILL_SHARE, dealt.calendar, hold)
            for clients in deal(dealing, account, sharing).clients():
                write_clients(writer, clients)
        else:
            for batch in matrix_batches(opened, account, writer.rule):
                writer.write(batch.ids, batch.train, batch.heldout)
            account.settle()
        if writer.clients == 0:
            raise IngestError(f"The source {source} holds no client.", "Give at least one good row.")
        rows, before = (0, 0) if parent is None else (total_of(parent.blocks), parent.n_clients)
        written = writer.written() - rows  # which ends the open block
        counted = second.settle(account, written, writer.clients - before if records else None)
        return writer.commit(
            Provenance(
                sources=opened.names,
                options=_stated(request),
                dropped_tokens=account.dropped_tokens,
                bad_rows=account.bad,
                clipped=account.clipped,
                records=counted,
                stored=account.stored,
                skipped=account.skipped,
            ),
            newcomers,
            None if delivered is None else delivered(),
        )


def _called(request: IngestRequest, parent: Population | None) -> str:
    """The vocabulary, as errors name it."""
    if isinstance(request.vocabulary, (str, Path)):
        return f"the vocabulary {request.vocabulary}"
    return "the vocabulary that was given" if parent is None else f"the vocabulary of the population {parent.path}"


@contextmanager
def _spill_folder(path: Path) -> Iterator[Path]:
    """A folder for spilled records, below the population; it is gone afterwards."""
    folder = path / layout.SPILL
    files.make_folder(folder, layout.is_closed(path))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stated(request: IngestRequest) -> dict[str, JsonValue]:
    """The options that were given, without paths: a manifest reveals nothing about the machine."""
    stated: dict[str, JsonValue] = {}
    for name in OF_SOURCE:
        value = getattr(request, name)
        if value is None or name in IN_THE_MANIFEST or (name == "na" and not value):
            continue
        if isinstance(value, str):
            stated[name] = Path(value).name if name == "client" else value
        else:
            stated[name] = value if isinstance(value, (int, dict)) else [str(one) for one in value]
    return stated
