"""Other readers of tables, to compare the usual ones with. They are slow, and find records and fields by code of
their own: Python's `csv` and `json`, and `pyarrow.dataset` for Parquet and Arrow files.

Two readers are compared by sums for each client: of hashes of its rows, or of hashes of its tokens times their counts.
Any difference in a value changes the sums, and the order of the records does not.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import BinaryIO, cast

import numpy as np
import scipy

from fedcore.errors import IngestError
from fedcore.population.checks import Rows
from fedcore.population.ingest.batches import Account, Batch
from fedcore.population.ingest.encodings import LONGEST_MARK, stored_as
from fedcore.population.ingest.partitions import Partitioned
from fedcore.population.ingest.parts import Span
from fedcore.population.ingest.table_files import As, CsvFile, JsonFile, Piece, TableFile, _Kept, arrow_type
from fedcore.population.ingest.typed_files import PAGES, ArrowFile, ParquetFile
from fedcore.population.words import LONGEST

RECORDS = 4096  # of CSV and JSON lines in a piece; rows of other files, where they can be chosen
HELDOUT = np.uint64(0x9E3779B97F4A7C15)  # what distinguishes the sums of held-out records


def other_reader(file: TableFile) -> TableFile:
    """The other reader of a file; the file itself if there is none: the rows of a query."""
    if isinstance(file, Partitioned):
        made = copy(file)
        made.file = other_reader(file.file)
        return made
    if isinstance(file, (CsvFile, JsonFile)):
        return _Texts(file)
    if isinstance(file, Limited):
        return Limited(other_reader(file.file), file.rows)
    return _Typed(file) if isinstance(file, (ParquetFile, ArrowFile)) else file


class _Other:
    """A reader of the records of `file`."""

    def __init__(self, file: TableFile):
        self.name, self.names = file.name, file.names

    def spans(self, size: int, numbered: bool) -> list[Span]:
        return []


class _Texts(_Other):
    """Of CSV and JSON lines, a record at a time."""

    def __init__(self, file: CsvFile | JsonFile):
        super().__init__(file)
        self.file = file

    def pieces(
        self, wanted: Mapping[str, As], size: int, account: Account, span: Span | None = None
    ) -> Iterator[Piece]:
        decimal = self.file.decimal if isinstance(self.file, CsvFile) else "."
        records = enumerate(self._records([*wanted], span), 0 if span is None else span.first)
        while held := list(islice(records, RECORDS)):
            if (columns := self._at_once(wanted, [fields for _, fields in held], decimal)) is not None:
                yield Piece(columns, self._where, np.array([number for number, _ in held], np.int64))
                continue
            kept = _Kept(wanted, self.name, self.file.missing, decimal)
            for number, fields in held:
                if fields is None:
                    account.reject(f"{self.name}, record {number}", "not a record with these columns", number)
                else:
                    kept.add(number, number, fields, account)
            yield kept.piece()

    def _at_once(self, wanted: Mapping[str, As], records: list[Sequence | None], decimal: str) -> list | None:
        """Arrow arrays of the columns; None if a record is bad or unusual, which is for `_Kept` to say."""
        import pyarrow as pa

        if None in records or decimal != ".":
            return None
        made, missing = [], self.file.missing
        try:
            for kind, column in zip(wanted.values(), zip(*cast(list[Sequence], records), strict=True), strict=True):
                values: Sequence = column
                if kind == "number" and isinstance(self.file, CsvFile):
                    if "_" in "".join(column):
                        return None
                    values = [math.nan if one in missing else float(one) for one in column]
                elif kind == "whole":
                    return None
                coded = pa.dictionary(pa.int32(), pa.string()) if kind == "id" else arrow_type(kind)
                made.append(pa.array(values, coded))
        except (ValueError, TypeError, OverflowError):
            return None
        return made

    def _where(self, row: int) -> str:
        return f"{self.name}, record {row}"

    def _records(self, wanted: list[str], span: Span | None) -> Iterator[Sequence | None]:
        """The wanted fields of every record; None of a bad one."""
        try:
            with open(self.file.path, "rb") as opened:
                handle: BinaryIO = opened
                codec, mark = stored_as(opened.read(LONGEST_MARK), self.file.encoding)
                opened.seek(mark if span is None else span.start)
                if span is not None:
                    handle = io.BytesIO(opened.read(span.stop - span.start))
                if isinstance(self.file, JsonFile):
                    yield from self._objects(handle if codec == "utf-8" else _utf8_lines(handle, codec), wanted)
                    return
                text = io.TextIOWrapper(handle, codec, newline="")
                rows = filter(None, csv.reader(text, delimiter=self.file.delimiter, strict=True))
                if span is None:
                    next(rows, None)
                places = [self.names.index(name) for name in wanted]
                for row in rows:
                    yield [row[place] for place in places] if len(row) == len(self.names) else None
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise IngestError(
                f"{self.file.path} cannot be read ({type(error).__name__}).", "Check the file."
            ) from error

    @staticmethod
    def _objects(lines: Iterable[bytes], wanted: list[str]) -> Iterator[Sequence | None]:
        for data in lines:
            for line in data.splitlines():
                if line.strip():
                    try:
                        value = json.loads(line.decode("utf-8"))
                    except UnicodeDecodeError:
                        raise
                    except (ValueError, RecursionError):
                        value = None
                    yield [value.get(name) for name in wanted] if isinstance(value, dict) else None


def _utf8_lines(handle: BinaryIO, codec: str) -> Iterator[bytes]:
    """The lines of a text, each in UTF-8."""
    yield from (line.encode() for line in io.TextIOWrapper(handle, codec, newline=""))


class _Typed(_Other):
    """Of Parquet and Arrow files; a part of them, and Arrow streams, are read a record batch at a time."""

    def __init__(self, file: ParquetFile | ArrowFile):
        super().__init__(file)
        self.file = file

    def pieces(
        self, wanted: Mapping[str, As], size: int, account: Account, span: Span | None = None
    ) -> Iterator[Piece]:
        first = 0 if span is None else span.first
        with self.file._whole():
            for batch in self._batches(wanted, span):
                columns = [self.file._cast(name, kind, batch.column(name)) for name, kind in wanted.items()]
                yield Piece(columns, self.file._where(first), np.arange(first, first + batch.num_rows))
                first += batch.num_rows

    def _batches(self, wanted: Mapping[str, As], span: Span | None) -> Iterator:
        import pyarrow.parquet as parquet

        columns = [*wanted]
        if isinstance(self.file, ParquetFile):
            if span is not None:
                with parquet.ParquetFile(self.file.path, pre_buffer=False, buffer_size=PAGES) as opened:
                    groups = [*range(span.start, span.stop)]
                    yield from opened.iter_batches(RECORDS, groups, columns, use_threads=False)
                return
            form = "parquet"
        elif span is not None or self.file.is_stream:
            yield from self.file._records(wanted, RECORDS, span)
            return
        else:
            form = "ipc"
        import pyarrow.dataset as datasets

        dataset = datasets.dataset(self.file.path, format=form)
        yield from dataset.to_batches(
            columns=columns, batch_size=RECORDS, use_threads=False, batch_readahead=0, fragment_readahead=0
        )


class Limited(_Other):
    """The first rows of a file, or of a part of it."""

    def __init__(self, file: TableFile, rows: int):
        super().__init__(file)
        self.file, self.rows = file, rows

    def pieces(
        self, wanted: Mapping[str, As], size: int, account: Account, span: Span | None = None
    ) -> Iterator[Piece]:
        left = self.rows
        for piece in self.file.pieces(wanted, size, account, span):
            yield Piece([column[:left] for column in piece.columns], piece.where, piece.records[:left])
            left -= len(piece.records)
            if left <= 0:
                return


# --- sums -------------------------------------------------------------------------------------------------------------


def _mixed(bits: np.ndarray) -> np.ndarray:
    """uint64 hashes of uint64 (the finaliser of SplitMix64: Steele, Lea and Flood, OOPSLA 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _hashes(bits: np.ndarray) -> np.ndarray:
    """(n,) uint64 hashes of rows (n, D) uint64."""
    places = _mixed(np.arange(1, bits.shape[1] + 1, dtype=np.uint64) * HELDOUT)
    return _mixed(_mixed(bits ^ places).sum(axis=1, dtype=np.uint64))


def _added(clients: int, codes: np.ndarray, hashes: np.ndarray, amounts: np.ndarray, heldout: bool):
    rows, sums = np.zeros(clients, np.int64), np.zeros(clients, np.uint64)
    np.add.at(rows, codes, amounts)
    np.add.at(sums, codes, (_mixed(hashes ^ HELDOUT) if heldout else hashes) * amounts.astype(np.uint64))
    return rows, sums


def _of_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(hashes, amounts) of dense rows or of records of words."""
    if x.dtype.names:
        words = np.ascontiguousarray(x["word"]).view(np.uint64).reshape(len(x), LONGEST // 8)
        return _hashes(words), x["count"]
    values = np.where(np.isnan(x), np.nan, x).astype(np.float64)
    return _hashes(values.view(np.uint64)), np.ones(len(x), np.int64)


def sums_of(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """(rows or tokens, sums) of each client of a batch: (C,) int64 and (C,) uint64."""
    if batch.x is not None:
        return _added(len(batch.ids), batch.codes, *_of_rows(batch.x), batch.heldout)
    assert batch.tokens is not None and batch.amounts is not None
    hashes = _mixed(batch.tokens.astype(np.uint64) + np.uint64(1))
    return _added(len(batch.ids), batch.codes, hashes, batch.amounts, batch.heldout)


def sums_of_part(part: scipy.sparse.csr_matrix | Rows, heldout: bool) -> tuple[np.ndarray, np.ndarray]:
    """The same of whole clients."""
    ptr = part[0] if isinstance(part, tuple) else part.indptr
    codes = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    if isinstance(part, tuple):
        return _added(len(ptr) - 1, codes, *_of_rows(part[1]), heldout)
    hashes = _mixed(part.indices.astype(np.uint64) + np.uint64(1))
    return _added(len(ptr) - 1, codes, hashes, part.data.astype(np.int64), heldout)
