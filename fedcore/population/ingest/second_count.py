"""The second count: an ingest counts the records of its files again, by code that the ingest itself does not use.

Before the ingest reads, each file is read once for a digest and for the number of its records: the bytes of CSV and
JSON lines are scanned, Parquet, Arrow and NumPy files state their own numbers. After the ingest has read, the files are
compared with what they were, the records that were stored, invalid or skipped must add up to the second count, and what
was stored must be in the blocks. A sample of the parts of each table is read again by other readers (`other_readers`).
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedcore.errors import IngestError, SourceChanged
from fedcore.population.ingest.batches import Account, Source, keyed_batches
from fedcore.population.ingest.encodings import LONGEST_MARK, stored_as
from fedcore.population.ingest.other_readers import Limited, other_reader, sums_of
from fedcore.population.ingest.partitions import Partitioned
from fedcore.population.ingest.parts import Portion, Span
from fedcore.population.ingest.reading_ahead import nothing_ahead
from fedcore.population.ingest.sources_array import DenseSource, MatrixSource
from fedcore.population.ingest.sources_frames import ARRAYS, VIDEOS, FrameSource, frames_array
from fedcore.population.ingest.sources_table import TableSource
from fedcore.population.ingest.sources_text import TextSource
from fedcore.population.ingest.table_files import CsvFile, JsonFile, TableFile
from fedcore.population.ingest.typed_files import ArrowFile, ParquetFile
from fedcore.storage.digests import Hasher

LF, CR, QUOTE, SPACE = b'\n\r" '
OTHER, DELIMITER = 0xFF, 0xFE  # bytes in place of two of UTF-16, for a character that is not of ASCII
PIECE = 1 << 18  # bytes that are scanned at once
LEAST_SAMPLE, MOST_SAMPLE, OF_THE_FILE = 1 << 14, 1 << 16, 1200  # bytes of a part of the sample; 1/1200 of the file
MOST_ROWS = 1 << 9  # of a part of the sample in other files
MOST_FILES = 64  # of which a sample is read
FAULT = "This is a fault in fedcore, and nothing was stored: report it, with the lines of the file that show it."

CountedFile = CsvFile | JsonFile | ParquetFile | ArrowFile


class CsvScanner:
    """Records of CSV: runs of bytes between line ends (LF, CR LF or a lone CR) that no quotes enclose. Empty lines are
    none. A quotation mark opens a quoted field only at the start of a field. delimiter: between fields, as stored
    """

    def __init__(self, delimiter: bytes):
        self.records = 0
        self._delimiter = delimiter
        self._quoted = self._inside = False  # inside of quotes; inside of a record
        self._closed = False  # quotes, by the last byte of the piece before
        self._before = b"\n"  # the last bytes of the piece before
        self._beside = np.zeros(256, bool)  # bytes that may be next to a mark, outside of its quotes
        self._beside[[LF, CR, QUOTE, *self._delimiter[:1]]] = True

    def scan(self, piece: bytes) -> np.ndarray:
        """Counts the records of the next piece. Returns (n,) bool: which bytes end a line, outside of quotes."""
        held = np.frombuffer(piece, np.uint8)
        ends = held == LF
        if b"\r" in piece:
            ends |= held == CR
        self._closed = (self._quoted or b'"' in piece) and self._leave_out_quoted(piece, held, ends)
        self.records += int(np.count_nonzero(ends[:-1] > ends[1:])) + int(not self._inside and not ends[0])
        self._inside = not ends[-1]
        self._before = (self._before + piece[-4:])[-4:]
        return ends

    def _leave_out_quoted(self, piece: bytes, held: np.ndarray, ends: np.ndarray) -> bool:
        """Clears `ends` inside of quotes. Marks open and close in turn, unless one stands where it could do neither.
        Returns whether the last byte closes: a mark that follows it opens again, since two marks inside mean one.
        """
        marks = np.flatnonzero(held == QUOTE)
        opening, closing = marks[int(self._quoted) :: 2], marks[1 - int(self._quoted) :: 2]
        before, after = held[np.maximum(opening, 1) - 1], held[np.minimum(closing + 1, len(held) - 1)]
        if len(opening) and opening[0] == 0:
            before[0] = self._before[-1] if self._closed or self._before[-1] != QUOTE else 0
        if len(self._delimiter) > 1 or not (self._beside[before].all() and self._beside[after].all()):
            return self._one_by_one(piece, ends)
        places = np.flatnonzero(ends)
        enclosed = (np.searchsorted(marks, places) + self._quoted) % 2 == 1
        if enclosed.any():
            ends[places[enclosed]] = False
        self._quoted ^= bool(len(marks) % 2)
        return not self._quoted and piece.endswith(b'"')

    def _one_by_one(self, piece: bytes, ends: np.ndarray) -> bool:
        """The same where a quotation mark is inside of a field that is not quoted."""
        before, at, start, closed = self._before, 0, 0, 0
        while (at := piece.find(b'"', at)) >= 0:
            if not self._quoted:
                left = (before + piece[:at])[-4:] if at < 4 else piece[at - 4 : at]
                if left.endswith((b"\n", b"\r", self._delimiter)) or (at == 0 and self._closed):
                    self._quoted, start = True, at
                at += 1
            elif piece[at + 1 : at + 2] == b'"':
                at += 2
            else:
                self._quoted, at = False, at + 1
                ends[start:at], closed = False, at
        if self._quoted:
            ends[start:] = False
        return closed == len(piece)


class LineScanner:
    """Records of JSON lines: lines, which LF, CR LF or a lone CR ends, that are not blank."""

    def __init__(self) -> None:
        self.records = 0
        self._blank = True  # whether the line holds nothing yet

    def scan(self, piece: bytes) -> np.ndarray:
        """As `CsvScanner.scan`."""
        held = np.frombuffer(piece, np.uint8)
        ends = held == LF
        if b"\r" in piece:
            ends |= held == CR
        places = np.flatnonzero(ends[:-1])
        next_to = held[places + 1]
        begun = next_to[(next_to != LF) & (next_to != CR)]
        first = self._blank and not ends[0]
        if (first and held[0] <= SPACE) or (begun <= SPACE).any():
            for number, line in enumerate(piece.replace(b"\r", b"\n").split(b"\n")):
                self._blank |= number > 0
                if self._blank and line.strip():
                    self.records, self._blank = self.records + 1, False
        else:
            self.records += len(begun) + int(first)
            self._blank = bool(ends[-1]) or (self._blank and not first and not len(begun))
        return ends


@dataclass(frozen=True, slots=True)
class Seen:
    """What a file was. records: None where they are not counted; sample: parts of it for other readers"""

    size: int
    modified: int
    digest: bytes
    records: int | None = None
    sample: tuple[Span, ...] = ()

    @property
    def state(self) -> tuple[int, int, bytes]:
        return self.size, self.modified, self.digest


def look(path: Path, file: CountedFile | None = None) -> Seen:
    """Reads a file once. file: of CSV or JSON lines, whose records are counted. Raises IngestError."""
    encoding = file.encoding if isinstance(file, (CsvFile, JsonFile)) else "utf-8"
    width, header = 1 + (encoding == "utf-16"), int(isinstance(file, CsvFile))
    hasher, sample = Hasher(), list[Span]()
    try:
        with open(path, "rb", buffering=0) as handle:
            before = os.fstat(handle.fileno())
            pieces, start = -(-before.st_size // PIECE), 0
            codec, start = stored_as(head := handle.read(LONGEST_MARK), encoding)
            hasher.update(head[:start])
            handle.seek(start)
            scanner = _scanner_of(file, codec)
            for number, piece in enumerate(iter(lambda: handle.read(PIECE), b"")):
                hasher.update(piece)
                if scanner is None:
                    continue
                if not (short := piece if width == 1 else _one_byte_each(piece, codec, file)):
                    continue
                ends = scanner.scan(short)
                if number in (0, pieces // 2, pieces - 1):
                    last = start + len(piece) == before.st_size
                    spans = _sampled(short, ends, last, before.st_size, -1 if number else header)
                    sample += [Span(start + width * low, start + width * stop, stop - low) for low, stop in spans]
                start += len(piece)
    except OSError as error:
        raise IngestError(f"{path} cannot be read: {error.strerror}.", "Check the path and its permissions.") from error
    records = None if scanner is None else max(scanner.records - header, 0)
    return Seen(before.st_size, before.st_mtime_ns, hasher.digest(), records, tuple(sample))


def _scanner_of(file: CountedFile | None, codec: str) -> CsvScanner | LineScanner | None:
    if isinstance(file, CsvFile):
        wide = codec.startswith("utf-16")
        sign = file.delimiter.encode("ascii" if wide and file.delimiter.isascii() else codec)
        return CsvScanner(sign if len(sign) == 1 or not wide else bytes([DELIMITER]))
    return LineScanner() if isinstance(file, JsonFile) else None


def _one_byte_each(piece: bytes, codec: str, file: CountedFile | None) -> bytes:
    """A piece of UTF-16 with a byte for each two: that of ASCII, or `OTHER`, or `DELIMITER` for a delimiter."""
    units = np.frombuffer(piece[: len(piece) // 2 * 2], "<u2" if codec.endswith("le") else ">u2")
    made = np.where(units < 128, units, OTHER).astype(np.uint8)
    if isinstance(file, CsvFile) and not file.delimiter.isascii():
        made[units == ord(file.delimiter)] = DELIMITER
    return made.tobytes()


def _sampled(piece: bytes, ends: np.ndarray, last: bool, size: int, before: int) -> list[tuple[int, int]]:
    """(start, stop) of some whole records at the beginning of a piece, if there are any. ends: of lines; last: whether
    the file, of this size, ends with the piece; before: records of the header, if it is the first piece; else -1
    """
    most = min(max(size // OF_THE_FILE, LEAST_SAMPLE), MOST_SAMPLE)
    places, low = np.flatnonzero(ends[:most]), 0
    if before:
        places = places[places > int(np.argmin(ends))] if before > 0 else places
        if not len(places):
            return []
        low = _after(piece, int(places[0]))
    stop = _after(piece, int(places[-1])) if len(places) else 0
    stop = len(piece) if len(piece) <= most and last else stop
    return [(low, stop)] if stop > low else []


def _after(piece: bytes, end: int) -> int:
    """Where the line after this end of a line begins."""
    return end + (2 if piece[end : end + 2] == b"\r\n" else 1)


def _stated(file: Path, array: str | None) -> int:
    """Entries of a stored array along its first axis, as its header states them."""
    if array is None:
        return int(np.load(file, mmap_mode="r").shape[0])
    with zipfile.ZipFile(file) as archive, archive.open(f"{array}.npy") as stored:
        version = np.lib.format.read_magic(stored)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return int(read(stored)[0][0])


def _of_matrix(file: Path, prefix: str) -> int:
    with np.load(file, allow_pickle=False) as arrays:
        return int(arrays[f"{prefix}shape"][0])


def _of_typed(file: ParquetFile | ArrowFile) -> int:
    """As the file's own metadata state it."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    if isinstance(file, ParquetFile):
        return int(parquet.read_metadata(file.path).num_rows)
    with pa.OSFile(os.fspath(file.path)) as opened:
        whole = opened.read(6) == b"ARROW1"
        opened.seek(0)
        if not whole:
            return sum(batch.num_rows for batch in pa.ipc.open_stream(opened))
        reader = pa.ipc.open_file(opened, options=pa.ipc.IpcReadOptions(included_fields=[0]))
        return sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))


class SecondCount:
    """The files of a source before it is read, and what is compared once it was. Raises IngestError if a file cannot be
    read, SourceChanged if its columns are no longer those that the source was opened with.
    """

    def __init__(self, source: Source):
        self.source = source
        self.seen = {path: look(path, file) for path, file in _files_of(source)}
        others = (path for path, file in _files_of(source) if file is not None and _columns(file) != file.names)
        if changed := [str(path) for path in others]:
            raise SourceChanged(changed)

    @property
    def records(self) -> int | None:
        """Return the number of records; None if only reading everything shows it: for rows of a query and frames of
        videos."""
        source = self.source
        found: Iterable[int | None]
        if isinstance(source, TableSource):
            found = (self._of_table(file) for file in (*source.files, *source.heldout))
        elif isinstance(source, MatrixSource):
            found = (_of_matrix(file, source.prefix) for file in source.files)
        elif isinstance(source, DenseSource):
            files = (*source.files, *source.heldout)
            found = (_stated(file, None if file.suffix == ".npy" else source.array) for file in files)
        elif isinstance(source, FrameSource):
            found = (_of_frames(file, source.array) for file in source.files)
        else:
            found = (1 for _ in _files_of(source))
        total = 0
        for records in found:
            if records is None:
                return None
            total += records
        return total

    def _of_table(self, file: TableFile) -> int | None:
        held = file.file if isinstance(file, Partitioned) else file
        if isinstance(held, (ParquetFile, ArrowFile)):
            return _of_typed(held)
        return self.seen[held.path].records if isinstance(held, (CsvFile, JsonFile)) else None

    def settle(self, account: Account, written: int, clients: int | None = None) -> int | None:
        """Compares, once everything is read and written; returns the second count. written: rows, or tokens of counts,
        that the blocks have more than before; clients: that the population has more, if every record is one

        Raises SourceChanged if files were changed meanwhile; IngestError if the two counts differ, if the blocks hold
        another number of rows than was read, or if other readers read the sample differently.
        """
        if changed := sorted(str(path) for path in self._changed()):
            raise SourceChanged(changed)
        records = self.records
        read = account.stored + account.bad + account.skipped
        if records is not None and records != read:
            raise _fault(
                f"The files have {records} records, and {read} were read: {account.stored} stored, {account.bad} "
                f"invalid, {account.skipped} skipped."
            )
        if written != account.handed_on:
            what = "rows" if self.source.kind == "rows" else "tokens"
            raise _fault(f"{account.handed_on} {what} were read, and {written} are in the blocks.")
        if clients not in (None, account.stored):
            raise _fault(f"{account.stored} records were stored, and became {clients} clients.")
        if isinstance(self.source, TableSource):
            for file, heldout in self._sampled_files(self.source):
                for span in self._sample(file):
                    _compare(self.source, file, heldout, span)
        return records

    def _changed(self) -> Iterator[Path]:
        """Files that are not what they were, have come or have gone."""
        now = {path for path, _ in _files_of(self.source)}
        yield from now ^ self.seen.keys()
        for path in now & self.seen.keys():
            if not path.exists() or look(path).state != self.seen[path].state:
                yield path

    def _sampled_files(self, source: TableSource) -> list[tuple[TableFile, bool]]:
        """(file, whether it is held out) of all files; of very many of some, by a fixed rule."""
        files = [*((file, False) for file in source.files), *((file, True) for file in source.heldout)]
        return files[:: -(-len(files) // MOST_FILES)]

    def _sample(self, file: TableFile) -> Sequence[Span]:
        """Parts of a file by a fixed rule: of CSV and JSON lines some records at the beginning, in the middle and at
        the end; of other files, where reading a few records costs more, the first ones of the part in the middle.
        """
        held = file.file if isinstance(file, Partitioned) else file
        if isinstance(held, (CsvFile, JsonFile)):
            return self.seen[held.path].sample
        spans = held.spans(1, False)
        return spans[len(spans) // 2 :][:1]


def _columns(file: CountedFile) -> list[str]:
    """The columns that the file has now."""
    if isinstance(file, (CsvFile, JsonFile)):
        return replace(file).names
    return type(file)(Path(file.path)).names


def _fault(what: str) -> IngestError:
    return IngestError(what, FAULT)


def _files_of(source: Source) -> Iterator[tuple[Path, CountedFile | None]]:
    """Every file that the source reads. The second is how a table reads it."""
    if isinstance(source, TableSource):
        for file in (*source.files, *source.heldout):
            held: TableFile = file.file if isinstance(file, Partitioned) else file
            if isinstance(held, (CsvFile, JsonFile, ParquetFile, ArrowFile)):
                yield Path(held.path), held
    elif isinstance(source, TextSource):
        for folder in (source.folder, *([] if source.heldout is None else [source.heldout])):
            for where, folders, names in os.walk(folder):
                folders[:] = [name for name in folders if not name.startswith(".")]
                yield from ((Path(where) / name, None) for name in names if not name.startswith("."))
    elif isinstance(source, (DenseSource, MatrixSource, FrameSource)):
        others = source.heldout if isinstance(source, DenseSource) else ()
        for path in (*source.files, *others):
            yield path, None
            if isinstance(source, DenseSource) and (ids := source.ids_of(path)) is not None:
                yield ids, None


def _of_frames(file: Path, array: str | None) -> int | None:
    suffix = file.suffix.lower()
    if suffix in VIDEOS:
        return None
    if suffix not in ARRAYS:
        return 1
    return _stated(file, frames_array(file, array))


def _limited(file: TableFile) -> TableFile:
    held = file.file if isinstance(file, Partitioned) else file
    return file if isinstance(held, (CsvFile, JsonFile)) else Limited(file, MOST_ROWS)


def _compare(source: TableSource, file: TableFile, heldout: bool, span: Span) -> None:
    """Raises IngestError if another reader reads something else in a part of the file."""
    usual = _limited(file)
    with nothing_ahead():
        if _sums(source, usual, heldout, span) != _sums(source, other_reader(usual), heldout, span):
            found = "Another reader finds other clients or values in a part of"
            raise IngestError(f"{found} {file.name}.", FAULT, without_values=f"{found} a file.")


def _sums(
    source: TableSource, file: TableFile, heldout: bool, span: Span
) -> tuple[int, dict[str, tuple[int, int]]] | None:
    """(bad records, (rows or tokens, sum) of each client); None if the reader does not take it."""
    alone, account, found = copy(source), Account(), dict[str, tuple[int, int]]()
    alone.files, alone.heldout = ([], [file]) if heldout else ([file], [])
    alone.progress, alone.memory = None, 24 * MOST_SAMPLE
    try:
        for batch in keyed_batches(alone.batches(account, (Portion(0, span),)), account):
            ids = batch.ids[: len(batch.ids)]  # at once: those of PlainNames are slow one by one
            for one, rows, total in zip(ids, *(each.tolist() for each in sums_of(batch)), strict=True):
                before = found.get(one, (0, 0))
                found[one] = (before[0] + rows, (before[1] + total) % 2**64)
    except IngestError:
        return None
    return account.bad, found
