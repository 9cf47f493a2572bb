"""CSV files cut into blocks of whole records, so that a file of any size is read in bounded memory.

A block of which every line is a record, with no quotation mark but around whole fields, is parsed by Arrow; anything
that Arrow does not take without complaint is parsed again record by record, which tells exactly which line is bad and
why.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.ingest.parts import Span

MISSING = ("", "NA", "NaN", "nan", "null")  # of a number
LINE_BREAK, QUOTE = ord("\n"), ord('"')
LONGEST_RECORD = 64 << 20  # bytes; a longer one is taken for a lost quotation mark
csv.field_size_limit(LONGEST_RECORD)  # as Arrow, which has none


@dataclass(frozen=True, slots=True)
class Block:
    """Raw bytes of whole records. line: number of the first line in the file, from 1; start: place of its first byte"""

    line: int
    data: bytes
    start: int = 0

    @property
    def lines(self) -> int:
        return _breaks(self.data) + (not self.data.endswith(b"\n"))


def blocks(file: Path, size: int, quotes: bool = True, span: Span | None = None) -> Iterator[Block]:
    """The file, or a span of it, in blocks of about `size` bytes that end with a line; if there are quotes, not with a
    quoted line break. Raises IngestError.
    """
    line, rest = 1, b""
    try:
        with open(file, "rb") as handle:
            if span is not None:
                line = span.line
                handle.seek(span.start)
            elif handle.read(3) != b"\xef\xbb\xbf":  # UTF-8 byte order mark
                handle.seek(0)
            start = handle.tell()
            while True:
                piece = handle.read(size if span is None else min(size, span.stop - handle.tell()))
                rest += piece
                cut = len(rest) if not piece else _last_record_end(rest, quotes)
                if cut:
                    block = Block(line, rest[:cut], start)
                    yield block
                    line, start, rest = line + _breaks(block.data), start + cut, rest[cut:]
                if not piece:
                    return
                if len(rest) > LONGEST_RECORD + size:
                    raise IngestError(f"{file}, line {line}: the record does not end.", "Look for a lost quote.")
    except OSError as error:
        raise IngestError(f"{file} cannot be read: {error.strerror}.", "Check the path and its permissions.") from error


def _count(data: bytes, sign: int, stop: int) -> int:
    """How often it comes before `stop`; without the interpreter's lock, which `bytes.count` holds, and faster."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, stop) == sign))


def _breaks(data: bytes) -> int:
    return _count(data, LINE_BREAK, len(data))


def _has_lone_return(data: bytes) -> bool:
    """Whether there is one that no line break follows: a record may end there, or not."""
    if b"\r" not in data:
        return False
    held = np.frombuffer(data + b"\n", np.uint8)
    return bool((held[np.flatnonzero(held == ord("\r")) + 1] != LINE_BREAK).any())


def _has_blank_line(data: bytes) -> bool:
    if data.startswith((b"\n", b"\r\n")):
        return True
    held = np.frombuffer(data, np.uint8)
    breaks = np.flatnonzero(held == LINE_BREAK)
    apart = np.diff(breaks)
    return bool((apart == 1).any() or (held[breaks[1:][apart == 2] - 1] == ord("\r")).any())


def _last_record_end(data: bytes, quoted: bool) -> int:
    """Position after the last line break, if quoted outside quotation marks; 0 if there is none."""
    quotes = quoted and b'"' in data
    end = len(data)
    while True:
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            return 0
        if not quotes or _count(data, QUOTE, end) % 2 == 0:
            return end + 1


def without_header(blocks: Iterator[Block]) -> Iterator[Block]:
    """The blocks without the first record that is not an empty line."""
    for block in blocks:
        end = 0
        while end < len(block.data):
            start, end = end, _first_record_end(block.data, end)
            if block.data[start:end].strip(b"\r\n"):
                if end < len(block.data):
                    yield Block(block.line + block.data.count(b"\n", 0, end), block.data[end:], block.start + end)
                yield from blocks
                return


def _first_record_end(data: bytes, start: int) -> int:
    end = start
    while True:
        end = data.find(b"\n", end) + 1
        if not end:
            return len(data)
        if data.count(b'"', start, end) % 2 == 0:
            return end


def spans(blocks: Iterator[Block], records: Callable[[Block], int] | None) -> Iterator[Span]:
    """Where the blocks are. records: how many a block has; None: nobody asks for the numbers of records"""
    first = 0
    for block in blocks:
        yield Span(block.start, block.start + len(block.data), len(block.data), block.line, first)
        first += 0 if records is None else records(block)


def count_records(file: Path, block: Block, delimiter: str) -> int:
    """How many `records` there are. Raises IngestError."""
    odd = _has_blank_line(block.data) or _has_lone_return(block.data)
    if odd or (b'"' in block.data and not _plainly_quoted(block.data, delimiter)):
        return sum(1 for _ in records(file, block, delimiter))
    held = np.frombuffer(block.data, np.uint8)
    inside = np.searchsorted(np.flatnonzero(held == QUOTE), np.flatnonzero(held == LINE_BREAK)) % 2
    return block.lines - int(inside.sum())


def records(file: Path, block: Block, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line on which the record starts, fields) of every record that is not an empty line. Raises IngestError."""
    try:
        text = block.data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = block.line + block.data.count(b"\n", 0, error.start)
        raise IngestError(f"{file}, line {line}: not UTF-8 text.", "Save the file as UTF-8.") from error
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    before = 0
    try:
        for fields in reader:
            if fields:
                yield block.line + before, fields
            before = reader.line_num
    except csv.Error as error:
        raise IngestError(f"{file}, line {block.line + before}: {error}.", "Look for a stray quote.") from error


def header(file: Path, delimiter: str) -> list[str]:
    """The names in the first record. Raises IngestError if the file is empty or a name comes twice."""
    for block in blocks(file, 1 << 16):
        for _, fields in records(file, block, delimiter):
            if len(set(fields)) != len(fields):
                raise IngestError(f"{file} names a column twice in its header.", "Give every column its own name.")
            return fields
    raise IngestError(f"{file} is empty.", "Give a file with a header line and rows.")


def number(text: str, missing: Collection[str] = MISSING, decimal: str = ".") -> float:
    """A number, NaN where it is missing. Raises ValueError (also for digits grouped by underscores). decimal: the sign
    before decimal places, in whose place a point is no number
    """
    text = text.strip()
    if text in missing:
        return np.nan
    if "_" in text or (decimal != "." and "." in text):
        raise ValueError(text)
    return float(text.replace(decimal, "."))


def _plainly_quoted(data: bytes, delimiter: str) -> bool:
    """Whether every quotation mark opens a field, closes one, or is one of two that stand for one inside a field."""
    held = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero(held == QUOTE)
    if len(marks) % 2:
        return False
    opening, closing = marks[::2], marks[1::2]
    ends = np.frombuffer(b"\r\n" + delimiter.encode(), np.uint8)
    before = np.isin(held[np.maximum(opening - 1, 0)], ends) | (opening == 0)
    after = np.isin(held[np.minimum(closing + 1, len(held) - 1)], ends) | (closing == len(held) - 1)
    doubled = opening[1:] == closing[:-1] + 1
    before[1:] |= doubled
    after[:-1] |= doubled
    return bool(before.all() and after.all())


def parse_quickly(
    block: Block, names: list[str], types: dict, delimiter: str, missing: Collection[str] = MISSING, decimal: str = "."
):
    """The columns in `types` as an Arrow table with one row for each line, or None if Arrow cannot take all of it."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    quoted = b'"' in block.data
    if len(delimiter.encode()) > 1 or _has_blank_line(block.data) or _has_lone_return(block.data):
        return None
    if quoted and not _plainly_quoted(block.data, delimiter):
        return None
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block.data),
            read_options=arrow_csv.ReadOptions(
                column_names=names, use_threads=False, block_size=max(len(block.data), 1)
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=delimiter, quote_char='"' if quoted else False, ignore_empty_lines=False
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(missing),
                strings_can_be_null=False,
                decimal_point=decimal,
            ),
        )
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == block.lines else None
