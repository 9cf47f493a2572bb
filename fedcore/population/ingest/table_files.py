"""Files of tables, read piece by piece: CSV and JSON lines; those that know their types are in `typed_files`.

A piece is some consecutive records, column by column, with the place of each for messages about bad ones. Memory is
bounded by the size that is asked for, whatever the file's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from fedcore.errors import IngestError
from fedcore.population.choices import Encoding
from fedcore.population.ingest import csv_blocks
from fedcore.population.ingest.batches import Account
from fedcore.population.ingest.encodings import not_text
from fedcore.population.ingest.parts import Span, joined
from fedcore.population.ingest.reading_ahead import made_ahead, pieces_held

Where = Callable[[int], str]
# What a column is read as: text; number, float64; amount, a number or text of one with other marks; whole,
# int64; stamp, text or a time; any, whatever it is but a list.
As = Literal["text", "id", "number", "amount", "whole", "stamp", "any"]
HEAD = 1000  # lines of JSON whose keys are the columns
HEAD_BYTES = 1 << 20
BLANKS = 4  # at the end or beginning of a line of JSON; where there are more, reading is slower
SCANNED = 1 << 18  # bytes of text in which cuts are looked for together


@dataclass(frozen=True, slots=True)
class Piece:
    """columns: an Arrow array of n records for each column that was asked for; where: names the place of a record;
    records: (n,) int64, its number in the file, bad ones counted too
    """

    columns: list[Any]
    where: Where
    records: np.ndarray


class TableFile(Protocol):
    """name: for messages, and for ids of records; names: of its columns"""

    name: str
    names: list[str]

    def pieces(
        self, wanted: Mapping[str, As], size: int, account: Account, span: Span | None = None
    ) -> Iterator[Piece]:
        """The records, or those of a span; those that are malformed go to the account. wanted: columns, in the order of
        the pieces. size: bytes that a piece may take. Raises IngestError.
        """
        ...

    def spans(self, size: int, numbered: bool) -> list[Span]:
        """All records, in spans of `size` bytes or a little more, which other processes may read; none if they cannot.
        numbered: whether the numbers of records are asked for. Raises IngestError.
        """
        ...


def check_columns(file: TableFile, where: object, wanted: Sequence[str], told: bool = True) -> None:
    """Raise IngestError if the file lacks a wanted column. `told`: whether the user named the columns; else they are
    those of another file."""
    for name in wanted:
        if name not in file.names:
            shown = ", ".join(file.names[:20]) + (", ..." if len(file.names) > 20 else "")
            raise IngestError(
                f"{where} has no column {name!r}.",
                f"Its columns are {shown}.",
                without_values=None if told else f"{where} lacks a column that the first file has.",
                remedy_without_values="Look at its first line." if told else "Look at the first lines of both.",
            )


# --- CSV --------------------------------------------------------------------------------------------------------------


@dataclass
class CsvFile:
    """With a header line. missing: texts of missing numbers; decimal: the sign before decimal places; longest: bytes of
    a record
    """

    path: Path
    delimiter: str
    missing: frozenset[str] = frozenset(csv_blocks.MISSING)
    decimal: str = "."
    longest: int = csv_blocks.LONGEST_RECORD
    encoding: Encoding = "utf-8"
    name: str = ""
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.name or self.path.name
        self.names = csv_blocks.header(self.path, self.delimiter, self.longest, self.encoding)
        if len(self.names) == 1:
            for other in (";", "\t", "|", ","):
                if other in self.names[0] and other != self.delimiter:
                    raise IngestError(
                        f"{self.path} has one column, {self.names[0][:60]!r}.",
                        f"Pass the sign between its columns: --option 'delimiter=\"{other}\"'.",
                        without_values=f"{self.path} has one column.",
                    )

    def spans(self, size: int, numbered: bool) -> list[Span]:
        blocks = self._blocks(min(size, SCANNED))
        blocks = csv_blocks.without_header(blocks, self.delimiter)
        count = partial(csv_blocks.count_records, delimiter=self.delimiter) if numbered else None
        return joined(csv_blocks.spans(blocks, count), size)

    def _blocks(self, size: int, span: Span | None = None) -> Iterator[csv_blocks.Block]:
        return csv_blocks.blocks(self.path, size, self.delimiter, span, self.longest, self.encoding)

    def head(self) -> Iterator[list[str]]:
        """The fields of the first records, of about 1 MiB; malformed ones are left out."""
        block = next(csv_blocks.without_header(self._blocks(HEAD_BYTES), self.delimiter), None)
        records = iter(()) if block is None else csv_blocks.records(self.path, block, self.delimiter)
        yield from (fields for _, fields in records if len(fields) == len(self.names))

    def pieces(
        self, wanted: Mapping[str, As], size: int, account: Account, span: Span | None = None
    ) -> Iterator[Piece]:
        import pyarrow as pa

        coded = pa.dictionary(pa.int32(), pa.string())  # few ids for many rows; they are wanted as codes anyway
        first = 0 if span is None else span.first
        types = {name: coded if kind == "id" else arrow_type(kind) for name, kind in wanted.items()}

        def parsed(block: csv_blocks.Block):
            return csv_blocks.parse_quickly(
                block, self.names, types, self.delimiter, sorted(self.missing), self.decimal
            )

        blocks = self._blocks(max(size // pieces_held(), 1), span)
        if span is None:
            blocks = csv_blocks.without_header(blocks, self.delimiter)
        for block, table in made_ahead(blocks, parsed, helping=True):
            if table is None:
                records, piece = self._slowly(block, wanted, first, account)
                yield piece
            else:
                records = table.num_rows
                columns = [table.column(name).chunk(0) for name in wanted]  # of which a block has one
                yield Piece(columns, self._where(block.line), np.arange(first, first + records))
            first += records

    def _where(self, line: int) -> Where:
        return lambda row: f"{self.path.name}, line {line + row}"

    def _slowly(
        self, block: csv_blocks.Block, wanted: Mapping[str, As], first: int, account: Account
    ) -> tuple[int, Piece]:
        """(how many records there are, the good ones), record by record."""
        kept = _Kept(wanted, self.path.name, self.missing, self.decimal)
        places, records = [self.names.index(name) for name in wanted], 0
        for line, fields in csv_blocks.records(self.path, block, self.delimiter):
            number, records = first + records, records + 1
            if len(fields) != len(self.names):
                account.reject(
                    f"{self.path.name}, line {line}", f"{len(fields)} columns instead of {len(self.names)}", number
                )
                continue
            kept.add(line, number, [fields[place] for place in places], account)
        return records, kept.piece()


@dataclass
class _Kept:
    """Records that are read one by one: those that can be read, and where they are."""

    wanted: Mapping[str, As]
    file: str
    missing: frozenset[str]
    decimal: str
    lines: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    columns: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = [[] for _ in self.wanted]

    def add(self, line: int, number: int, fields: Sequence[Any], account: Account) -> None:
        """fields: text, or None for nothing; of JSON also numbers and booleans"""
        values, fault = [], ""
        for (name, kind), one in zip(self.wanted.items(), fields, strict=True):
            try:
                values.append(self._read(kind, one))
            except (ValueError, OverflowError):  # also a whole number beyond the largest float
                shown = repr(one if isinstance(one, str) else json.dumps(one))
                fault = fault or (
                    f"unknown feature id {shown}" if kind == "whole" else f"{name} is not {_whats[kind]}: {shown[:60]}"
                )
                if kind == "number" and account.columns:
                    account.words[name] += 1
        if fault:
            account.reject(f"{self.file}, line {line}", fault, number)
            return
        self.lines.append(line)
        self.records.append(number)
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)

    def _read(self, kind: As, one: Any) -> Any:
        if one is None:
            return None
        if isinstance(one, (list, dict)) or (kind == "amount" and isinstance(one, (float, bool))):
            raise ValueError(one)  # an amount: JSON's point is not the mark of the column
        if kind == "number":
            return csv_blocks.number(one, self.missing, self.decimal) if isinstance(one, str) else float(one)
        if kind != "whole":
            text = one if isinstance(one, str) else json.dumps(one)
            text.encode()  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair
            return text
        if isinstance(one, float) or "_" in str(one) or not -(2**63) <= int(one) < 2**63:
            raise ValueError(one)
        return int(one)

    def piece(self) -> Piece:
        import pyarrow as pa

        columns = [
            pa.array(column, type=arrow_type(kind), from_pandas=False)
            for column, kind in zip(self.columns, self.wanted.values(), strict=True)
        ]
        lines = self.lines
        return Piece(columns, lambda row: f"{self.file}, line {lines[row]}", np.array(self.records, np.int64))


_whats: dict[As, str] = {
    "number": "a number",
    "amount": "text with the marks of the column (decimal, thousands)",
    "text": "text",
    "id": "text or a whole number",
    "stamp": "a time",
    "any": "a single value",
}


def arrow_type(kind: As):
    """The Arrow type in which a column is read from text."""
    import pyarrow as pa

    return {"number": pa.float64(), "whole": pa.int64()}.get(kind, pa.string())


# --- JSON lines -------------------------------------------------------------------------------------------------------


@dataclass
class JsonFile:
    """An object a line. names: the keys of the first 1,000 lines; a key that a line lacks is missing there. longest:
    bytes of a line
    """

    path: Path
    missing: frozenset[str] = frozenset(csv_blocks.MISSING)
    longest: int = csv_blocks.LONGEST_RECORD
    encoding: Encoding = "utf-8"
    name: str = ""
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.name or self.path.name
        seen: dict[str, None] = {}
        others: set[str] = set()  # columns that hold something else than whole numbers
        for value in self.head():
            seen |= dict.fromkeys(value)
            others |= {name for name, one in value.items() if type(one) is not int}
        self.names, self._whole = [*seen], seen.keys() - others
        if not self.names:
            raise IngestError(f"{self.path} holds no JSON object.", "Give a file with one JSON object a line.")

    def head(self) -> Iterator[dict[str, Any]]:
        """The objects of the first 1,000 lines."""
        block = next(self._blocks(HEAD_BYTES), None)
        for line in [] if block is None else block.data.splitlines()[:HEAD]:
            try:
                value = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError):
                continue  # reported when it is read
            if isinstance(value, dict):
                yield value

    def spans(self, size: int, numbered: bool) -> list[Span]:
        return joined(csv_blocks.spans(self._blocks(min(size, SCANNED)), _objects if numbered else None), size)

    def _blocks(self, size: int, span: Span | None = None) -> Iterator[csv_blocks.Block]:
        return csv_blocks.blocks(self.path, size, None, span, self.longest, self.encoding)

    def pieces(
        self, wanted: Mapping[str, As], size: int, account: Account, span: Span | None = None
    ) -> Iterator[Piece]:
        import pyarrow as pa
        import pyarrow.json as arrow_json

        types = {name: arrow_type(kind) for name, kind in wanted.items()}
        whole = [name for name, kind in wanted.items() if kind in ("id", "any") and name in self._whole]
        schema = pa.schema({**types, **dict.fromkeys(whole, pa.int64())})
        parse = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        first = 0 if span is None else span.first
        for block in self._blocks(size, span):
            table = None
            if _an_object_a_line(block.data) and csv_blocks.is_text(block.data):
                read = arrow_json.ReadOptions(use_threads=False, block_size=max(len(block.data), 1))
                try:
                    table = arrow_json.read_json(pa.BufferReader(block.data), read, parse)
                except pa.ArrowException:
                    table = None
            if table is None or table.num_rows != block.lines or table.num_columns != len(wanted):
                records, piece = self._slowly(block, wanted, first, account)
                yield piece
            else:
                records = table.num_rows
                columns = [table.column(name).combine_chunks().cast(kind) for name, kind in types.items()]
                yield Piece(columns, self._where(block.line), np.arange(first, first + records))
            first += records

    def _where(self, line: int) -> Where:
        return lambda row: f"{self.path.name}, line {line + row}"

    def _slowly(
        self, block: csv_blocks.Block, wanted: Mapping[str, As], first: int, account: Account
    ) -> tuple[int, Piece]:
        kept, records = _Kept(wanted, self.path.name, self.missing, "."), 0
        for line, raw in enumerate(block.data.splitlines(), block.line):
            if not raw.strip():
                continue
            number, records = first + records, records + 1
            try:
                value = json.loads(raw.decode("utf-8"))  # of bytes, it takes halves of surrogate pairs
            except UnicodeDecodeError as error:
                raise not_text(self.path, line, block.codec) from error
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                account.reject(f"{self.path.name}, line {line}", "not a JSON object", number)
                continue
            kept.add(line, number, [value.get(name) for name in wanted], account)
        return records, kept.piece()


def _an_object_a_line(data: bytes) -> bool:
    """Whether every line break is between a brace that closes and one that opens, but for a few blanks. JSON allows
    these side by side only between two objects, so that as many objects as lines are one on each.
    """
    if csv_blocks.lone_returns(data):
        return False
    held = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(held == ord("\n"))
    before, after = ends - 1, ends[ends + 1 < len(held)] + 1
    if b"\r" in data:
        before -= held[before] == ord("\r")
    for places, step in ((before, -1), (after, 1)):
        for _ in range(BLANKS):
            if (blank := (held[places] == ord(" ")) | (held[places] == ord("\t"))).any():
                places[blank] = (places[blank] + step) % len(held)
    begins = data.lstrip(b" \t").startswith(b"{")
    return begins and bool((held[before] == ord("}")).all() and (held[after] == ord("{")).all())


def _objects(block: csv_blocks.Block) -> int:
    """How many lines are not blank."""
    return sum(1 for line in block.data.splitlines() if line.strip())
