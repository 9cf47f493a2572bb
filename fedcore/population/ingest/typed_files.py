"""Tables that know the types of their columns, as Arrow's record batches: Parquet, Arrow (Feather), the rows of a SQL
query.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.ingest.batches import NUMBERS, Account, left_out, listed
from fedcore.population.ingest.parts import Span, joined
from fedcore.population.ingest.reading_ahead import read_ahead, read_at_once
from fedcore.population.ingest.table_files import As, Piece, Where, arrow_type
from fedcore.population.ingest.time_stamps import is_stamp

PAGES = 1 << 18  # bytes of a column of Parquet that are read ahead, in place of all of it in a row group
AS_CODES = ("id", "any")  # what a column of text is read as, where the file's own codes of its texts are of use
CODED_GROUP = 1 << 15  # rows of a row group, at least, in the mean, whose texts are read as codes
QUERY_BYTES = 256 << 20  # memory that DuckDB may hold; with one thread it needs little


class _Typed(ABC):
    """A table that comes as Arrow's record batches. schema: its Arrow schema; path: for messages"""

    path: Path | str
    name: str
    schema: Any
    names: list[str]

    @abstractmethod
    def _records(self, wanted: Mapping[str, As], rows: int, span: Span | None) -> Iterator[Any]:
        """Record batches of about `rows` rows with these columns, and maybe others."""

    @abstractmethod
    def spans(self, size: int, numbered: bool) -> list[Span]:
        """See `TableFile`."""

    def pieces(
        self, wanted: Mapping[str, As], size: int, account: Account, span: Span | None = None
    ) -> Iterator[Piece]:
        self._refuse_words(wanted, account)
        rows, first = max(size * 24 // (32 * (len(wanted) + 4) * read_at_once()), 64), 0 if span is None else span.first
        with self._whole():
            for batch in self._records(wanted, rows, span):
                for start in range(0, batch.num_rows, rows):
                    part = batch.slice(start, rows)
                    columns = [self._cast(name, kind, part.column(name)) for name, kind in wanted.items()]
                    yield Piece(columns, self._where(first), np.arange(first, first + part.num_rows))
                    first += part.num_rows

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Inside, what Arrow cannot read is an IngestError."""
        import pyarrow as pa

        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise IngestError(f"{self.path} is truncated or damaged.", "Copy or download it again.") from error

    def _where(self, first: int) -> Where:
        return lambda row: f"{self.name}, row {first + row}"

    def _refuse_words(self, wanted: Mapping[str, As], account: Account) -> None:
        """Raises IngestError if there are columns of numbers that hold none."""
        words = {}
        for name, kind in wanted.items():
            if kind == "number" and account.columns and not _numeric(held := _held(self.schema.field(name).type)):
                words[name] = held
        if words:
            raise IngestError(
                f"{self.path}: {listed(f'{name} ({kind})' for name, kind in words.items())} hold no numbers.",
                left_out(account.columns, words),
                without_values=f"{self.path}: columns that should hold numbers hold none.",
                remedy_without_values=NUMBERS,
            )

    def _cast(self, name: str, kind: As, column):
        """The column in the type that is needed. Raises IngestError for the wrong type."""
        import pyarrow as pa
        import pyarrow.compute as compute

        if pa.types.is_dictionary(column.type):
            coded = kind in AS_CODES and column.type == _codes() and not column.dictionary.null_count
            column = _of_use(column) if coded else column.dictionary_decode()
        held = _held(column.type)
        text = pa.types.is_string(held) or pa.types.is_large_string(held)
        whole = pa.types.is_integer(held)
        if text:
            column.validate(full=True)  # raises ArrowInvalid for bytes that are not UTF-8
            if pa.types.is_dictionary(column.type):
                return column
        if kind == "stamp":
            if is_stamp(held):
                return column
            raise IngestError(f"{self.path}: the column {name!r} is of type {held}.", "It should hold dates or times.")
        if kind == "any":
            if text or whole or pa.types.is_boolean(held):
                return column
            raise IngestError(
                f"{self.path}: the column {name!r} is of type {held}.",
                "It should hold text, whole numbers or booleans.",
            )
        fine = whole
        if kind in ("text", "id"):
            fine = text or (whole and kind == "id")
        elif kind == "amount" and text:
            return column
        elif kind in ("number", "amount"):
            kind, fine = "number", _numeric(held)
            if pa.types.is_boolean(held):
                column = column.cast(pa.int8())
            if column.type in _narrow() and not column.null_count:
                return column
        wanted = arrow_type(kind)
        if not fine:
            raise IngestError(
                f"{self.path}: the column {name!r} is of type {held}.", f"It should be {wanted}; convert it."
            )
        if whole and kind == "id":  # which makes each text once
            coded = column.dictionary_encode()
            return pa.DictionaryArray.from_arrays(coded.indices, compute.cast(coded.dictionary, wanted))
        return compute.cast(column, wanted, safe=False)


def _narrow():
    """Types of numbers that NumPy widens to float64 exactly, when they are copied to where they are wanted."""
    import pyarrow as pa

    return pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.float32()


def _codes():
    """The type of columns that are read as codes."""
    import pyarrow as pa

    return pa.dictionary(pa.int32(), pa.string())


def _of_use(column):
    """A column of codes and its texts, without texts that no code stands for: those of other rows of the file."""
    import pyarrow as pa

    texts = len(column.dictionary)
    codes = column.indices.fill_null(texts).to_numpy(zero_copy_only=False)
    used = np.zeros(texts + 1, bool)
    used[codes] = True
    if used[:texts].all():
        return column
    places = (np.cumsum(used, dtype=np.int32) - 1).take(codes)
    missing = codes == texts if column.null_count else None
    kept = column.dictionary.take(pa.array(np.flatnonzero(used[:texts])))
    return pa.DictionaryArray.from_arrays(pa.array(places, mask=missing), kept)


def _held(kind):
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _numeric(kind) -> bool:
    import pyarrow as pa

    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(numeric or pa.types.is_decimal(kind))


class ParquetFile(_Typed):
    def __init__(self, path: Path):
        import pyarrow as pa
        import pyarrow.parquet as parquet

        self.path, self.name = path, path.name
        try:
            metadata = parquet.read_metadata(path)
            self.schema = metadata.schema.to_arrow_schema()
        except (OSError, pa.ArrowException) as error:
            raise IngestError(f"{path} cannot be read as a Parquet file.", "Check that the file is whole.") from error
        self.names = self.schema.names
        # Arrow reads codes of one row group at a time, which costs more than it saves where these are small.
        self.coded = (metadata.num_row_groups - 1) * CODED_GROUP <= metadata.num_rows

    def spans(self, size: int, numbered: bool) -> list[Span]:
        with self._whole():
            return joined(self._row_groups(), size)

    def _row_groups(self) -> Iterator[Span]:
        import pyarrow.parquet as parquet

        metadata, first = parquet.read_metadata(self.path), 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            yield Span(number, number + 1, group.total_byte_size, first=first)
            first += group.num_rows

    def _records(self, wanted: Mapping[str, As], rows: int, span: Span | None) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        of_use = [name for name, kind in wanted.items() if self.coded and kind in AS_CODES]
        texts = [name for name in of_use if self.schema.field(name).type == pa.string()]
        with parquet.ParquetFile(self.path, buffer_size=PAGES, pre_buffer=False, read_dictionary=texts) as opened:
            groups = range(opened.num_row_groups) if span is None else range(span.start, span.stop)
            yield from read_ahead(opened.iter_batches(rows, [*groups], columns=[*wanted], use_threads=False))


class ArrowFile(_Typed):
    """Arrow's IPC format, as a file (Feather 2) or as a stream; its record batches are read one by one."""

    def __init__(self, path: Path):
        self.path, self.name = path, path.name
        with self._opened() as (reader, _):
            self.schema = reader.schema
            self.is_stream = not hasattr(reader, "num_record_batches")
        self.names = self.schema.names

    @contextmanager
    def _opened(self, span: Span | None = None, columns: Sequence[int] = ()) -> Iterator[tuple[Any, Any]]:
        """(the reader, an iterator of record batches). columns: those that are read, by default all"""
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions(included_fields=[*columns])

        try:
            with pa.OSFile(os.fspath(self.path)) as file:
                whole = file.read(6) == b"ARROW1"
                file.seek(0)
                if whole:
                    reader = pa.ipc.open_file(file, options=options)
                    here = range(reader.num_record_batches)
                    yield reader, map(reader.get_batch, here if span is None else here[span.start : span.stop])
                else:
                    stream = pa.ipc.open_stream(file)
                    yield stream, iter(stream)
        except (OSError, pa.ArrowException) as error:
            raise IngestError(
                f"{self.path} cannot be read as an Arrow or Feather file, or is damaged.",
                "Check that the file is whole; Feather 1 has to be written again as Feather 2.",
            ) from error

    def spans(self, size: int, numbered: bool) -> list[Span]:
        return joined(self._batches(), size)

    def _batches(self) -> Iterator[Span]:
        """A stream is not known before it is read, and is one span."""
        first, whole = 0, os.stat(self.path).st_size
        with self._opened(columns=[0]) as (reader, batches):
            if self.is_stream:
                yield Span(0, 1, whole)
                return
            for number, batch in enumerate(batches):
                yield Span(number, number + 1, max(whole // reader.num_record_batches, 1), first=first)
                first += batch.num_rows

    def _records(self, wanted: Mapping[str, As], rows: int, span: Span | None) -> Iterator[Any]:
        with self._opened(span) as (_, batches):
            yield from read_ahead(batches)


class SqlQuery(_Typed):
    """The rows of a query, which DuckDB runs: of tables in files that the query names, or in a DuckDB database.

    path: a file with the query, or the query itself. What DuckDB does not hold it writes to the folder `spill`
    """

    def __init__(self, path: Path | str, spill: Path | None = None):
        self.path, self.spill = "The query", spill
        self.name = path.name if isinstance(path, Path) else "query"
        try:
            self.query = path.read_text("utf-8-sig") if isinstance(path, Path) else path
        except (OSError, UnicodeDecodeError) as error:
            raise IngestError(f"The query {path} cannot be read.", "Give a UTF-8 file with one SELECT.") from error
        self.query = self.query.strip().rstrip(";")
        with self._run(f"SELECT * FROM ({self.query}) LIMIT 0", 1) as reader:
            self.schema = reader.schema
        self.names = self.schema.names
        if len(set(self.names)) != len(self.names):
            raise IngestError("The query names a column twice.", "Give every column its own name (AS).")

    @contextmanager
    def _run(self, query: str, rows: int) -> Iterator[Any]:
        duckdb = importlib.import_module("duckdb")  # without types
        settings: dict[str, Any] = {"memory_limit": f"{QUERY_BYTES}B", "threads": 1}
        settings |= {"autoinstall_known_extensions": False}
        if self.spill is not None:
            settings["temp_directory"] = str(self.spill)
        try:
            with duckdb.connect(config=settings) as connection:
                yield connection.sql(query).to_arrow_reader(rows)
        except duckdb.Error as error:
            raise IngestError(f"The query failed: {error}", "Correct it; DuckDB's SQL is at duckdb.org.") from error

    def spans(self, size: int, numbered: bool) -> list[Span]:
        return []  # other processes would run all of it again, in another order perhaps

    def _records(self, wanted: Mapping[str, As], rows: int, span: Span | None) -> Iterator[Any]:
        import pyarrow as pa

        with self._run(self.query, rows) as reader:
            try:
                yield from reader
            except (OSError, pa.ArrowException) as error:
                raise IngestError(f"The query failed: {error}", "Correct it, or the files that it reads.") from error
