"""Files of lines cut into blocks of whole records, so that a file of any size is read in bounded memory.

A record ends at a line feed, a carriage return and a line feed, or a lone carriage return, outside quotation marks. A
quotation mark opens at the start of a field and nowhere else; inside, two of them mean one. `_Scan` is the only place
that applies this rule. It is the rule of Python's csv module, which parses the records.

Arrow parses a block faster, where it provably reads the same: every line is a record, none is blank, no carriage return
is alone, and all quotation marks enclose whole fields. All other blocks are parsed record by record, which finds the
line of a fault.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.choices import Encoding
from fedcore.population.ingest.encodings import LONGEST_MARK, MARK, as_utf8, not_text, stored_as, stored_bytes
from fedcore.population.ingest.parts import Span

MISSING = ("", "NA", "NaN", "nan", "null")  # of a number
LINE_FEED, RETURN, QUOTE = b'\n\r"'
HEAD = 1 << 16  # bytes that nearly every header fits in
GROUPS = {" ": " \u00a0\u202f", "'": "'\u2019"}  # marks between thousands that look the same
LONGEST_RECORD = 1 << 20  # bytes, its line end included; a longer one is taken for a lost quotation mark
csv.field_size_limit(2**31 - 1)  # as Arrow, which has none


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records, in UTF-8. line: number of the first line in the file, from 1; start: place of its first byte in
    the file, whose text is stored as the codec does
    """

    line: int
    data: bytes
    start: int = 0
    codec: str = "utf-8"

    @property
    def stop(self) -> int:
        """Place in the file after its last byte."""
        return self.start + stored_bytes(self.data, self.codec)

    @property
    def lines(self) -> int:
        return breaks(self.data) + (not self.data.endswith((b"\n", b"\r")))


class _Scan:
    """Finds where records end, in pieces of a file that follow each other; looks at each byte once.

    delimiter: between fields; None: no quotation mark means anything, and every line is a record
    """

    def __init__(self, delimiter: str | None):
        self.delimiter = (delimiter or "").encode()
        self.quotes = delimiter is not None
        self.inside = False  # quotation marks
        self.closed = False  # by the last byte
        self.before = b"\n" * max(len(self.delimiter), 1)  # the bytes that precede the piece
        self.size = len(self.before)
        self.opens = np.zeros(256, bool)  # by the byte before; of a longer delimiter `_turns` looks at all bytes
        self.opens[[LINE_FEED, RETURN, QUOTE, *(self.delimiter if len(self.delimiter) == 1 else b"")]] = True

    def all_ends(self, piece: bytes) -> np.ndarray:
        """Places in the piece before which a record ends. 0: it ended with the piece before, whose last byte was a
        carriage return
        """
        held, turns, inside = self._take(piece)
        return self._ends(held, turns, inside, 0)

    def last_end(self, piece: bytes) -> int | None:
        """The last one of `all_ends`."""
        held, turns, inside = self._take(piece)
        width = 1 << 10  # enough for nearly all
        while True:
            ends = self._ends(held, turns, inside, max(len(piece) - width, 0))
            if len(ends) or width >= len(piece):
                return int(ends[-1]) if len(ends) else None
            width <<= 4

    def _take(self, piece: bytes) -> tuple[np.ndarray, np.ndarray, bool]:
        """(bytes before the piece and its own; places of quotation marks that open or close; whether it starts inside
        of them)
        """
        data, inside = self.before + piece, self.inside
        held, turns = np.frombuffer(data, np.uint8), np.zeros(0, np.int64)
        if self.quotes and b'"' in piece:
            turns = self._turns(held)
            self.inside ^= bool(len(turns) % 2)
            self.closed = not self.inside and bool(len(turns)) and bool(turns[-1] == len(data) - 1)
        else:
            self.closed = False
        self.before = data[-self.size :]
        return held, turns, inside

    def _turns(self, held: np.ndarray) -> np.ndarray:
        marks = np.flatnonzero(held == QUOTE)
        marks = marks[np.searchsorted(marks, self.size) :]
        opening = marks[int(self.inside) :: 2]  # if all of them turn
        first = held[opening[:1] - 1] != QUOTE  # else it is one of two that are one, if the piece before closed
        if (first.all() or opening[0] > self.size or self.closed) and self.opens[held[opening - 1]].all():
            return marks
        opens = held[marks - 1][:, None] == np.frombuffer(b"\n\r", np.uint8)
        after = [held[marks - 1 - back] == byte for back, byte in enumerate(reversed(self.delimiter))]
        opens = opens.any(axis=1) | np.logical_and.reduce(after)
        turns, inside, last = [], self.inside, self.size - 1 if self.closed else -1
        for mark, opens_here in zip(marks.tolist(), opens.tolist(), strict=True):
            if inside or opens_here or mark == last + 1:
                turns.append(mark)
                inside, last = not inside, mark
        return np.array(turns, np.int64)

    def _ends(self, held: np.ndarray, turns: np.ndarray, inside: bool, first: int) -> np.ndarray:
        """Those from a place on. The last carriage return of all ends a record only if something follows it."""
        first += self.size - 1
        window = held[first:]
        places = np.flatnonzero((window[:-1] == RETURN) & (window[1:] != LINE_FEED))
        feeds = np.flatnonzero(window[1:] == LINE_FEED) + 1
        places = (np.sort(np.concatenate([places, feeds])) if len(places) else feeds) + first
        if len(turns) or inside:
            places = places[(np.searchsorted(turns, places) + inside) % 2 == 0]
        return places + 1 - self.size


def ends_of(data: bytes, delimiter: str | None) -> np.ndarray:
    """(R,) where each record of whole ones ends, blank lines too."""
    ends = _Scan(delimiter).all_ends(data)
    return ends if len(ends) and ends[-1] == len(data) or not data else np.append(ends, len(data))


def blocks(
    file: Path,
    size: int,
    delimiter: str | None,
    span: Span | None = None,
    longest: int = LONGEST_RECORD,
    encoding: Encoding = "utf-8",
) -> Iterator[Block]:
    """The file, or a span of it, in blocks of about `size` bytes that end with a record. delimiter: between fields;
    None: quotation marks mean nothing. Raises IngestError, also for a record of more than `longest` bytes, and for
    text that is not of the encoding.
    """
    line, held, codec = 1, [b""], "utf-8"
    try:
        with open(file, "rb") as handle:
            codec, mark = stored_as(handle.read(LONGEST_MARK), encoding)
            if span is not None:
                line = span.line
            handle.seek(mark if span is None else span.start)
            start = handle.tell()
            scan, length = _Scan(delimiter), 0
            for piece in as_utf8(_read(handle, size, span), codec):
                cut = scan.last_end(piece)
                if cut is not None:
                    block = Block(line, b"".join([*held, piece[:cut]]), start, codec)
                    _refuse_long(file, block, delimiter, longest)
                    yield block
                    line, start, held, length = line + breaks(block.data), block.stop, [], -cut
                held.append(piece[cut:])
                length += len(piece)
                if length > longest:
                    raise _too_long(file, line, longest)
            if length:
                yield Block(line, b"".join(held), start, codec)
    except OSError as error:
        raise IngestError(f"{file} cannot be read: {error.strerror}.", "Check the path and its permissions.") from error
    except UnicodeDecodeError as error:
        before = b"".join([*held, error.object[: error.start].decode(codec).encode()])
        raise not_text(file, line + breaks(before), codec) from error


def _read(handle: BinaryIO, size: int, span: Span | None) -> Iterator[bytes]:
    while piece := handle.read(size if span is None else min(size, span.stop - handle.tell())):
        yield piece


def _refuse_long(file: Path, block: Block, delimiter: str | None, longest: int) -> None:
    if len(block.data) <= longest:
        return
    ends = ends_of(block.data, delimiter)
    long = np.flatnonzero(np.diff(ends, prepend=0) > longest)
    if len(long):
        before = block.data[: ends[long[0] - 1] if long[0] else 0]
        raise _too_long(file, block.line + breaks(before), longest)


def _too_long(file: Path, line: int, longest: int) -> IngestError:
    return IngestError(
        f"{file}, line {line}: the record that starts here has more than {longest:,} bytes.",
        "Look for a quotation mark that nothing closes, or allow longer records: --option longest_record=BYTES.",
    )


def breaks(data: bytes) -> int:
    """How many lines end, in quotation marks or not. NumPy counts without the interpreter's lock, and faster."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == LINE_FEED)) + lone_returns(data)


def lone_returns(data: bytes) -> int:
    """How many carriage returns have no line feed after them."""
    if b"\r" not in data:
        return 0
    held = np.frombuffer(data, np.uint8)
    pairs = (held[:-1] == RETURN) & (held[1:] == LINE_FEED)
    return int(np.count_nonzero(held == RETURN)) - int(np.count_nonzero(pairs))


def _has_blank_line(data: bytes) -> bool:
    """Of data without a lone carriage return."""
    if data.startswith((b"\n", b"\r\n")):
        return True
    held = np.frombuffer(data, np.uint8)
    feeds = np.flatnonzero(held == LINE_FEED)
    apart = np.diff(feeds)
    return bool((apart == 1).any() or (held[feeds[1:][apart == 2] - 1] == RETURN).any())


def _is_blank(data: bytes) -> bool:
    return not data.strip(b"\r\n")


def without_header(blocks: Iterator[Block], delimiter: str) -> Iterator[Block]:
    """The blocks without the first record that is not an empty line."""
    for block in blocks:
        start = 0
        for end in ends_of(block.data, delimiter).tolist():
            if not _is_blank(block.data[start:end]):
                if end < len(block.data):
                    here = block.start + stored_bytes(block.data[:end], block.codec)
                    yield Block(block.line + breaks(block.data[:end]), block.data[end:], here, block.codec)
                yield from blocks
                return
            start = end


def spans(blocks: Iterator[Block], records: Callable[[Block], int] | None) -> Iterator[Span]:
    """Yield where the blocks are. records: counts the records of a block; None: their numbers are not needed"""
    first = 0
    for block in blocks:
        yield Span(block.start, block.stop, block.stop - block.start, block.line, first)
        first += 0 if records is None else records(block)


def count_records(block: Block, delimiter: str | None) -> int:
    """How many records there are; an empty line is none."""
    ends = ends_of(block.data, delimiter)
    short = np.flatnonzero(np.diff(ends, prepend=0) <= 2)  # a line end has two bytes at most
    blank = sum(_is_blank(block.data[ends[at - 1] if at else 0 : ends[at]]) for at in short.tolist())
    return len(ends) - blank


def records(file: Path, block: Block, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line on which the record starts, fields) of every record that is not an empty line. Raises IngestError."""
    try:
        text = block.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_text(file, block.line + breaks(block.data[: error.start]), block.codec) from error
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    before = 0
    try:
        for fields in reader:
            if fields:
                yield block.line + before, fields
            before = reader.line_num
    except csv.Error as error:
        raise IngestError(f"{file}, line {block.line + before}: {error}.", "Look for a stray quote.") from error


def first_record(file: Path, delimiter: str, longest: int = LONGEST_RECORD, encoding: Encoding = "utf-8") -> list[str]:
    """Its fields; none if the file is empty. Raises IngestError."""
    for block in blocks(file, HEAD, delimiter, longest=longest, encoding=encoding):
        for _, fields in records(file, block, delimiter):
            return fields
    return []


def header(file: Path, delimiter: str, longest: int = LONGEST_RECORD, encoding: Encoding = "utf-8") -> list[str]:
    """The names in the first record. Raises IngestError if the file is empty or a name comes twice."""
    fields = first_record(file, delimiter, longest, encoding)
    if not fields:
        raise IngestError(f"{file} is empty.", "Give a file with a header line and rows.")
    if len(set(fields)) != len(fields):
        raise IngestError(f"{file} names a column twice in its header.", "Give every column its own name.")
    return fields


def number(text: str, missing: Collection[str] = MISSING, decimal: str = ".", thousands: str = "") -> float:
    """A number, NaN where it is missing. Raises ValueError (also for digits grouped by underscores). decimal: the sign
    before decimal places, in whose place a point is no number; thousands: the sign between groups of three digits, of
    which a number has all or none, and the first of which does not begin with 0
    """
    text = text.strip()
    if text in missing:
        return np.nan
    if thousands and (marks := GROUPS.get(thousands, thousands)):
        whole, point, places = text.partition(decimal)
        if any(mark in whole for mark in marks):
            if not re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}(?:[{re.escape(marks)}]\d{{3}})+", whole, re.ASCII):
                raise ValueError(text)
            text = re.sub(rf"[{re.escape(marks)}]", "", whole) + point + places
    if "_" in text or (decimal != "." and "." in text):
        raise ValueError(text)
    if re.fullmatch(r"[+-]?nan\(\w*\)", text, re.ASCII | re.IGNORECASE):  # as C prints it, and as Arrow reads it
        return np.nan
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


def is_text(data: bytes) -> bool:
    """Whether it is UTF-8."""
    try:
        return data.isascii() or bool(data.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def parse_quickly(
    block: Block, names: list[str], types: dict, delimiter: str, missing: Collection[str] = MISSING, decimal: str = "."
):
    """The columns in `types` as an Arrow table with one row for each line, or None if Arrow cannot take all of it."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    quoted = b'"' in block.data
    if len(delimiter.encode()) > 1 or lone_returns(block.data) or _has_blank_line(block.data):
        return None
    if not is_text(block.data):  # Arrow does not look at the last line of columns that are not wanted
        return None
    if block.data.startswith(MARK):  # which Arrow drops, as if the file began here
        return None
    if quoted and not _plainly_quoted(block.data, delimiter):
        return None
    if pa.int64() in types.values() and (b"0x" in block.data or b"0X" in block.data):  # Arrow reads such numbers
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
