"""From files to a population: streaming, whole clients whatever the order of the rows, memory bounded at any size.

keyed sources (client ids beside the rows)   rows are spilled and sorted by client; clients are ordered by a
                                             stable hash of their id, so that file order changes nothing
matrices with a client in each row           row order is kept, nothing is spilled
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from fedcore.errors import IngestError
from fedcore.population import layout
from fedcore.population.blocks import Kind
from fedcore.population.columns import ColumnEntry
from fedcore.population.deliveries import Delivered
from fedcore.population.ingest import append as appending
from fedcore.population.ingest import calendars, sources
from fedcore.population.ingest.batches import Account, matrix_batches
from fedcore.population.ingest.dealing import Dealing, Sharing, deal
from fedcore.population.ingest.documents import halves_of
from fedcore.population.ingest.readings import Bound
from fedcore.population.ingest.second_count import SecondCount
from fedcore.population.ingest.sources import Format, Options, Where, WhoseRows
from fedcore.population.ingest.sources_array import DenseSource
from fedcore.population.ingest.sources_frames import FrameSource
from fedcore.population.ingest.sources_table import TableSource
from fedcore.population.ingest.sources_text import Tokeniser
from fedcore.population.ingest.spill import Layout, write_clients
from fedcore.population.manifest import Halves, Provenance, total_of
from fedcore.population.periods import PeriodUnit
from fedcore.population.sizing import CLIENTS_PER_LEAF
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.storage import files

MEMORY = 512 << 20
LEAST_MEMORY = 16 << 20
LARGEST_RECORD = 1 << 30  # bytes; the places in a text of 2 GiB do not fit into Arrow's 32 bits
# Options that are facts of the manifest, or paths.
IN_THE_MANIFEST = (
    *("vocabulary", "heldout", "halves", "time", "calendar", "bounds", "units", "dates", "categories", "booleans"),
    *("readings", "unit", "image", "fold_ids"),
)
# Shares of `memory`: what a batch, the spill's buffer and an array that is being written may hold. Sorting a full
# buffer takes several times its size, which is why the shares are small.
BATCH_SHARE, SPILL_SHARE, STREAM_SHARE = 12, 16, 16


def ingest(
    source: Where,
    dest: str | Path,
    *,
    format: Format | None = None,
    kind: Kind | None = None,
    client: str | None = None,
    token: str | None = None,
    count: str | None = None,
    columns: Sequence[str] | None = None,
    features: int | None = None,
    vocabulary: str | Path | Sequence[str] | None = None,
    heldout: Where | None = None,
    dtype: str | None = None,
    array: str | None = None,
    prefix: str | None = None,
    heldout_prefix: str | None = None,
    tokeniser: Tokeniser = "words",
    delimiter: str | None = None,
    documents: str | None = None,
    halves: Halves | None = None,
    period: PeriodUnit | None = None,
    time: str | None = None,
    zone: str | None = None,
    first: str | None = None,
    through: str | None = None,
    bounds: Mapping[str, tuple[Bound, Bound]] | None = None,
    units: Mapping[str, str] | None = None,
    dates: Mapping[str, str] | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    booleans: Sequence[str] | None = None,
    na: Sequence[str] = (),
    decimal: str | None = None,
    unit: WhoseRows = "client",
    image: str | None = None,
    frames_per_client: int | None = None,
    frame_stride: int | None = None,
    fold_ids: bool = False,
    longest_record: int | None = None,
    append: bool = False,
    memory: int = MEMORY,
    tolerance: int = 0,
    clients_per_leaf: int | None = None,
    clients_per_block: int | None = None,
    nominal_clients: int | None = None,
    nominal_rows: int | None = None,
    public_for_evaluation: str | None = None,
    ledger: dict[str, str] | None = None,
    delivered: Callable[[], Delivered] | None = None,
    progress: Callable[[int, int], None] | None = None,
    sharing: Sharing | None = None,
) -> Population:
    """Makes a population from files, or with append=True a new version of the one at `dest`.

    source: a file, a folder, a glob pattern, or a list of these, or with format "sql" a query or its file; heldout: the
        same clients' held-out data, likewise
    format: csv, parquet, arrow, jsonl, sql, npz, npy, text or frames; found out from the file names if None
    kind:   counts or rows; found out if None; words keeps each client's words, for a private vocabulary

    tables (csv, parquet, arrow, jsonl, sql): client, token, count name the columns (default: client, token, and count
        if there is one, else every row counts one); tokens are looked up in `vocabulary` (a file with one token a line,
        or a sequence), and without one are whole numbers below `features`. Dense rows: `columns`, by default all but
        the client's; empty = missing. Folders called key=value below a folder that is named are columns.
    bounds: of columns of dense rows, by name, (low, high), numbers or ISO dates: a public fact, which goes into the
        manifest; values outside are clipped. units: of columns, for people. dates: the unit (seconds, minutes, hours,
        days, years) in which a column of dates is counted from 1970 on, and after a comma the form of its text, as
        strptime takes it, if it is not ISO's. categories: the public values of a column, each of which becomes a column
        of 0 and 1; a last one, `<other>`, is all others. booleans: columns of yes or no, true or false, 1 or 0. na:
        texts that stand for nothing, beside the usual ones; decimal: of csv, the sign before decimal places
    unit: "record": no column names a client, and every row is one, called FILE:NUMBER; its budget is per record
    image: "HEIGHTxWIDTH" of dense rows that are pictures, line after line from the top: a public fact in the manifest,
        by which results are shown. Arrays of shape (rows, height, width) say it themselves
    npz: dense rows `array` (default x) with ids `client` (default client); or a CSR matrix of counts, one client a
        row, as written by scipy.sparse.save_npz, or with a `prefix` (train: train_data, train_indices, train_indptr,
        train_shape) and a `heldout_prefix`; an array `vocab` is the vocabulary.
    npy: dense rows; client names the NPY file with the ids.
    text: a folder; client is "file" (default) or "folder"; tokeniser is "words" or "identifiers".

    frames: a video file, a folder of images, or with format "frames" an NPZ or NPY file (frames, height, width[, 3]);
        frames_per_client: consecutive frames that are a client (8); frame_stride: every so-many-th frame is read (1).
        Pixels become float32 of [0, 1]; see `fedcore.population.ingest.sources_frames`

    documents: deal each client's documents to two halves, its training and its held-out part
        (`fedcore.population.ingest.documents`). csv and parquet: the column of the document's id, text or whole
        numbers, which need only tell the documents of one client apart. text: "file" if a client is a folder,
        "section" if it is a file, which is then cut after each line that ends 2,000 characters or more
        (`sources_text.sections`). No id of a document is stored.
    halves: what is known of held-out data that the source brings: "document", if whole documents were dealt to it, or
        "entry", if single tokens or rows were. A public fact in the manifest, where "document" stands also if the
        documents are dealt here. What is appended must be dealt likewise.

    period: deal each client's rows to entries, one for each calendar period (day, week, month, quarter or year) that it
        has rows in; for csv and parquet. An entry is then what a client is elsewhere, and its id is LABEL/CLIENT. time:
        the column of the time stamp, as ISO text, date or timestamp; zone: whose days these are (default UTC), and
        whose clock those stamps show that do not say it; first, through: labels of the first and the last period of
        the calendar, as 2025-01 and 2026-03. Every period of it is a cohort, whoever has rows in it; rows outside of it
        are bad ones. A version made by appending may go on with the calendar (through); late rows go to their own
        period.

    fold_ids: store client ids folded, so that ids that differ only in case, width or the blanks inside them are one
        client (`fedcore.population.identifiers.folded`). What is appended later is folded too. Otherwise such ids are
        different clients, whose number of groups is in the manifest (`alike_ids`)
    longest_record: bytes of a record of csv or jsonl, 1 MiB by default. A longer one is an error, because a quotation
        mark that is not closed makes one record of many. Memory grows with it
    dtype: of dense rows; by default what holds the source's values exactly
    memory: bytes that the ingest may hold beside the interpreter, at any size of the input
    tolerance: bad rows that are left out rather than fail the ingest
    nominal_clients, nominal_rows, public_for_evaluation, ledger: see `PopulationWriter`;
        clients_per_leaf: 1024 by default, of frames as many as fill a block;
        clients_per_block: by default as suits this machine (`fedcore.population.sizing`)
    delivered: called once everything is read and written, just before the version appears: which files of a pipeline
        these are. What it raises is passed on, and nothing is then visible
    progress: called with (files done, files)
    sharing: starts other processes, which read and sort out tables of at least 16 MiB in parts; for example
        `functools.partial(fedcore.tasks.dask_backend.sharing, 2)`. Other sources, and the results of a query, are read
        by this process alone. Each of them may take `memory`; how many there are changes no bit and no error

    Appending keeps the population's id, ledger, leaf size, features and vocabulary; known clients keep their place, new
    rows are added to theirs; earlier versions stay readable. A version made by appending is public for evaluation
    only if the reason is given again. If the population has cohorts an append opens the next one, also when its source
    names nobody new (`fedcore.population.conversion.open_cohort` does without a source); nominal_clients is then the
    new total, and what it is above the total before is that of the cohort. A population of entries opens those that its
    calendar goes on with; nominal_clients is then the number of clients in each of them, when it is made as well.

    Raises IngestError if the source is unusable (bad rows are listed with file and line), PopulationError if the
    population cannot be written. Nothing is then visible.
    """
    if memory < LEAST_MEMORY:
        raise IngestError(f"The memory limit of {memory} bytes is too small.", f"Allow at least {LEAST_MEMORY} bytes.")
    if tolerance < 0:
        raise IngestError("The tolerance is a number of bad rows.", "Use 0 or more.")
    if longest_record is not None and not 0 < longest_record <= LARGEST_RECORD:
        raise IngestError(
            f"A record cannot be allowed {longest_record} bytes.", f"Use a number from 1 to {LARGEST_RECORD}."
        )
    path = layout.writable(dest)
    options = Options(
        format,
        kind,
        client,
        token,
        count,
        columns,
        features,
        vocabulary,
        heldout,
        dtype,
        array,
        prefix,
        heldout_prefix,
        tokeniser,
        delimiter,
        documents,
        halves,
        time,
        None,
        bounds,
        units,
        dates,
        categories,
        booleans,
        na,
        decimal,
        unit,
        image=image,
        frames_per_client=frames_per_client,
        frame_stride=frame_stride,
        fold_ids=fold_ids,
        longest_record=longest_record,
    )
    parent = Population.open(path) if append else None
    if parent is not None:
        appending.refuse_unchecked(parent, fold_ids)
        options = appending.completed(options, parent)
    dealt = calendars.declared(parent, period, options.time, zone, first, through, nominal_clients)
    options = replace(options, calendar=dealt.calendar)
    opened = sources.source_of(source, options, memory // BATCH_SHARE, progress, path / layout.SPILL / "query")
    entries = opened.entries if isinstance(opened, TableSource) else ()
    records = isinstance(opened, (TableSource, DenseSource)) and opened.records
    if fold_ids and (records or not opened.keyed):
        raise IngestError(
            f"The source {source} names no clients, so there is no id to fold.",
            "Leave fold_ids out, or name the clients.",
        )
    dealt_by = halves_of(documents, halves, sources.brings_heldout(opened, options))
    pictures = sources.image_of(opened, options)
    usual_leaf = opened.clients_per_leaf if isinstance(opened, FrameSource) else CLIENTS_PER_LEAF
    account = Account(tolerance, _called(options, parent))
    if parent is None:
        writer = PopulationWriter(
            path,
            opened.kind,
            opened.features,
            dtype=opened.dtype or "float32",
            clients_per_leaf=usual_leaf if clients_per_leaf is None else clients_per_leaf,
            clients_per_block=clients_per_block,
            vocabulary=opened.vocabulary,
            nominal_clients=nominal_clients,
            nominal_rows=nominal_rows,
            public_for_evaluation=public_for_evaluation,
            ledger=ledger,
            period=dealt.period,
            labels=dealt.labels,
            halves=dealt_by,
            columns=entries,
            records=records,
            image=pictures,
            fold_ids=fold_ids,
            stream_bytes=memory // STREAM_SHARE,
        )
    else:
        appending.refuse_mismatch(parent, opened, clients_per_leaf, ledger, public_for_evaluation, dealt_by)
        appending.refuse_other_columns(parent, opened, entries, records)
        appending.refuse_other_pictures(parent, pictures)
        changes = {
            "public_for_evaluation": public_for_evaluation,
            "labels": dealt.labels,
            "stream_bytes": memory // STREAM_SHARE,
        }
        if clients_per_block is not None:
            changes["clients_per_block"] = clients_per_block
        if nominal_clients is not None:
            changes["nominal_clients"] = nominal_clients
        if nominal_rows is not None:
            changes["nominal_rows"] = nominal_rows
        writer = PopulationWriter.extending(parent, **changes)
    with writer, layout.named_os_errors(path), _spill_folder(path) as folder:
        newcomers, second = None, SecondCount(opened)
        if parent is not None:
            newcomers = appending.append(writer, parent, opened, account, folder, memory, dealt.calendar, sharing)
        elif opened.keyed:
            held = Layout(opened.kind, opened.features, opened.dtype)
            dealing = Dealing(opened, held, folder, memory // SPILL_SHARE, dealt.calendar)
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
                options=_stated(options),
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


def _called(options: Options, parent: Population | None) -> str:
    """The vocabulary, as errors name it."""
    if isinstance(options.vocabulary, (str, Path)):
        return f"the vocabulary {options.vocabulary}"
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


def _stated(options: Options) -> dict[str, JsonValue]:
    """The options that were given, without paths: a manifest tells nothing about the machine."""
    stated: dict[str, JsonValue] = {}
    for name in Options.__slots__:
        value = getattr(options, name)
        if value is None or name in IN_THE_MANIFEST or (name == "na" and not value):
            continue
        if isinstance(value, str):
            stated[name] = Path(value).name if name == "client" else value
        else:
            stated[name] = value if isinstance(value, int) else [str(one) for one in value]
    return stated


def describe(population: Population) -> dict[str, JsonValue]:
    """What an operator wants to know about a population: counts, sizes, origin. Nothing of its content."""
    made = population.manifest
    heldout = sum(block.heldout.total for block in made.blocks if block.heldout is not None)
    unit = "rows" if made.kind == "rows" else "tokens"
    return {
        "path": str(population.path),
        "population_id": made.population_id,
        "version": made.version,
        "versions": list[JsonValue](population.versions()),
        "kind": made.kind,
        "dtype": made.dtype,
        "clients": made.n_clients,
        "nominal_clients": made.nominal_clients,
        **({} if made.nominal_rows is None else {"nominal_rows": made.nominal_rows}),
        "forgotten": sum(stop - first for first, stop in population.holes),
        "period": None if made.period is None else made.period.model_dump(),
        "cohorts": _cohorts(population) if made.cohorts else None,
        "features": None if made.kind == "words" else made.features,
        unit: made.n_rows,
        f"heldout_{unit}": heldout if made.has_heldout else None,
        "halves": made.halves,
        "entries": sum(block.train.entries for block in made.blocks),
        "blocks": len(made.blocks),
        "clients_per_leaf": made.clients_per_leaf,
        "bytes": sum(block.bytes for block in made.blocks),
        "vocabulary": None if made.vocabulary is None else made.vocabulary.size,
        "ledger": None if made.ledger is None else made.ledger.model_dump(),
        "public_for_evaluation": made.public_reason if made.public_for_evaluation else None,
        "sources": list(made.provenance.sources),
        "dropped_tokens": made.provenance.dropped_tokens,
        "records_counted": made.provenance.records,
        "records_stored": made.provenance.stored,
        "records_skipped": made.provenance.skipped,
        "bad_rows": made.provenance.bad_rows,
        "clipped_values": made.provenance.clipped if made.columns else None,
        "alike_ids": made.provenance.alike_ids,
        "ids": made.id_rule,
        "columns": [_column(column) for column in made.columns] or None,
        "unit": "record" if made.records else None,
        "image": None if made.image is None else f"{made.image[0]} x {made.image[1]}",
    }


def _column(column: ColumnEntry) -> JsonValue:
    """Name, unit and bounds in one line."""
    bounds = "" if column.low is None else f" from {column.low:g} to {column.high:g}"
    return f"{column.name}{f' ({column.unit})' if column.unit else ''}{bounds}"


def _cohorts(population: Population) -> list[JsonValue]:
    """What is known of each cohort; clients: those that are there and were not forgotten."""
    clients: Counter[int] = Counter()
    for number, there in population.manifest.order:
        clients[number] += there
    return [
        {
            "number": one.number,
            **({} if one.period is None else {"period": one.period}),
            "opened": one.opened,
            "nominal_clients": one.nominal,
            "clients": clients[one.number],
        }
        for one in population.manifest.cohorts
    ]
